"""All ranks as streams of one process on one device.

One host thread goes round the ranks and launches of each as much as has its
inputs posted; on a GPU the streams then run beside each other, on a CPU one
action runs at a time.
"""

from __future__ import annotations

from tracegen.errors import ExecuteError
from tracegen.execute import check
from tracegen.execute.clock import Cpu, Cuda, Device, Recorder, cost_of_measuring_ns
from tracegen.execute.experts import Shard
from tracegen.execute.job import about, make_model, shape_of
from tracegen.execute.options import Options, slices
from tracegen.execute.outcome import Offset, Outcome
from tracegen.execute.progress import BETWEEN_STEPS, SETUP, Progress
from tracegen.execute.replicas import copies, sum_copies
from tracegen.execute.runner import Runner, Shape
from tracegen.execute.session import device_of
from tracegen.execute.transport import Mailbox
from tracegen.ir import Program


def run_shared(program: Program, options: Options, progress: Progress) -> Outcome:
    """Execute a program in this process alone.

    Raises:
        ExecuteError: if the device is not there, or the model does not fit the program.
    """
    progress.set(SETUP)
    whole_device = device_of(options.device, 0)
    runners = _runners(program, options, whole_device, progress)
    modules = {stage: runner.modules[stage] for runner in runners for stage in runner.modules}
    steps = []
    for number in range(options.warmup_steps + options.measure_steps):
        progress.set(BETWEEN_STEPS)
        whole_device.synchronize()
        for runner in runners:
            runner.begin_step()
        _run_in_turns(runners)
        times = [runner.recorder.read() for runner in runners]
        progress.set(BETWEEN_STEPS)
        if not program.forward_only:
            for stages in copies(program):
                sum_copies([modules[stage] for stage in stages])
        if number >= options.warmup_steps:
            steps.append(times)
    progress.set(SETUP)
    verdict = None
    if options.check:
        whole = make_model(options, program, Shard(), whole_device.torch_device)
        losses = {mb: float(loss) for runner in runners for mb, loss in runner.losses.items()}
        grads = {stage: check.gradients(module) for stage, module in modules.items()}
        verdict = check.compare(program, whole, [losses], [grads], tick=lambda: progress.set(SETUP))
    peak = whole_device.peak_bytes()
    return Outcome(
        steps,
        [Offset()] * program.num_ranks,
        verdict,
        cost_of_measuring_ns(whole_device),
        None if peak is None else [peak],
        {**about(whole_device, 1), "streams": program.num_ranks},
    )


def _runners(
    program: Program, options: Options, device: Device, progress: Progress
) -> list[Runner]:
    model = make_model(options, program, Shard(), device.torch_device)
    of_slice = slices(program)
    modules = {stage: model.build(of_slice[stage]) for stage in range(program.num_stages)}
    shapes: dict[int, Shape] = {}
    for chain in program.placement.chains:
        before = None
        for stage in chain:
            before = shape_of(modules[stage], model, before, 0, device.torch_device)
            shapes[stage] = before
    box = Mailbox(device)
    runners = []
    for rank in range(program.num_ranks):
        own: Device = Cuda(0, own_stream=True) if device.torch_device.type == "cuda" else Cpu()
        mine = {stage: modules[stage] for stage in program.placement.stages_of(rank)}
        runners.append(
            Runner(
                program,
                rank,
                model,
                mine,
                shapes,
                box.of(own),
                own,
                Recorder(own),
                progress,
                gate=options.gate,
            )
        )
    return runners


def _run_in_turns(runners: list[Runner]) -> None:
    """Each rank in turn one step, if what it waits for has been posted.

    Raises:
        ExecuteError: if no rank can go on.
    """
    at = [0] * len(runners)
    unfinished = [rank for rank, runner in enumerate(runners) if len(runner.stream)]
    while unfinished:
        able = [rank for rank in unfinished if runners[rank].ready(at[rank])]
        if not able:
            stuck = (
                f"rank {rank} waits at {runners[rank].stream[at[rank]]}" for rank in unfinished
            )
            raise ExecuteError(f"{', '.join(stuck)}: a message is not sent, or no RECV takes it")
        for rank in able:
            runners[rank].do(at[rank])
            at[rank] += 1
        unfinished = [rank for rank in unfinished if at[rank] < len(runners[rank].stream)]
