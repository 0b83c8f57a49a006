"""One execution, from the inside of a process: build, warm up, measure, check, gather."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from tracegen.errors import ExecuteError
from tracegen.execute import check
from tracegen.execute.clock import Device, Recorder, cost_of_measuring_ns
from tracegen.execute.custom import own_model
from tracegen.execute.experts import Shard
from tracegen.execute.options import Options, slices
from tracegen.execute.outcome import Outcome, StepTimes
from tracegen.execute.progress import BETWEEN_STEPS, DONE, SETUP, Progress
from tracegen.execute.replicas import sum_over_processes
from tracegen.execute.runner import Runner, Shape
from tracegen.execute.session import Place, Session
from tracegen.execute.stages import Model, transformer
from tracegen.execute.transport import Links, check_order, links_of
from tracegen.ir import Program


def make_model(options: Options, program: Program, shard: Shard, device: torch.device) -> Model:
    """The model that the options ask for, cut for the program."""
    num_slices = len(program.placement.chains[0])
    m = program.num_microbatches
    if options.model is not None:
        return own_model(options, num_slices, m, device)
    return transformer(options, num_slices, m, shard, device)


def run_job(
    session: Session, program: Program, options: Options, progress: Progress
) -> Outcome | None:
    """Execute a program on an open world; the outcome on world rank 0, None elsewhere.

    Raises:
        ExecuteError: if the program or the model does not fit the world.
    """
    progress.set(SETUP)
    place = Place.of(session, program.num_ranks, options.ep)
    runner = make_runner(program, options, place, progress)
    total = sum_over_processes(program, runner.modules, place)
    steps = []
    for number in range(options.warmup_steps + options.measure_steps):
        progress.set(BETWEEN_STEPS)
        runner.device.synchronize()
        session.barrier()
        runner.begin_step()
        runner.run()
        times = runner.recorder.read()
        progress.set(BETWEEN_STEPS)
        if not program.forward_only:
            total()
        if number >= options.warmup_steps:
            steps.append(times)
    progress.set(SETUP)
    outcome = _outcome(runner, place, options, steps, lambda: progress.set(SETUP))
    progress.set(DONE)
    return outcome


def make_runner(program: Program, options: Options, place: Place, progress: Progress) -> Runner:
    """Build this process's stages and links; every process calls it at once."""
    session, m = place.session, program.num_microbatches
    device = session.device
    if device.torch_device.type == "cuda":
        check_order(program)
    model = make_model(options, program, place.shard, device.torch_device)
    of_slice = slices(program)
    mine = program.placement.stages_of(place.rank)
    modules = {stage: model.build(of_slice[stage]) for stage in mine}
    everyone = tuple(range(program.num_ranks))
    links = Links(
        place.world_rank, place.rank, place.group("up", everyone), place.group("down", everyone), m
    )
    links.warm_up(links_of(program), device.torch_device)
    outputs = exchange_shapes(program, model, modules, place)
    return Runner(
        program,
        place.rank,
        model,
        modules,
        outputs,
        links,
        device,
        Recorder(device),
        progress,
        place.shard.index,
        options.gate,
    )


def exchange_shapes(
    program: Program, model: Model, modules: Mapping[int, nn.Module], place: Place
) -> dict[int, Shape]:
    """The shape of every stage's output: one forward down each chain, sizes told to all."""
    shapes: dict[int, Shape] = {}
    device = place.session.device.torch_device
    for chain in program.placement.chains:
        for at, stage in enumerate(chain):
            made: Shape | None = None
            if stage in modules:
                before = shapes[chain[at - 1]] if at else None
                made = shape_of(modules[stage], model, before, place.shard.index, device)
            box = [made]
            owner = place.world_rank(program.placement.ranks[stage])
            dist.broadcast_object_list(
                box,
                src=owner - place.shard.index,
                group=place.session.control,
            )
            assert box[0] is not None
            shapes[stage] = box[0]
    return shapes


def shape_of(
    module: nn.Module, model: Model, before: Shape | None, shard: int, device: torch.device
) -> Shape:
    """What a stage gives when it is given zeros of the shape before, or the model's example."""
    if before is None:
        given = model.example(0, shard)
    else:
        given = torch.zeros(before.size, dtype=before.dtype, device=device)
    with torch.no_grad():
        out = module(given)
    if not isinstance(out, torch.Tensor):
        raise ExecuteError(f"a stage gives a {type(out).__name__}; expected one tensor")
    return Shape(out.size(), out.dtype)


def _outcome(
    runner: Runner,
    place: Place,
    options: Options,
    steps: list[StepTimes],
    tick: Callable[[], None],
) -> Outcome | None:
    session, program = place.session, runner.program
    losses = {mb: float(loss) for mb, loss in runner.losses.items()}
    grads = {}
    if options.check:
        grads = {stage: check.gradients(module) for stage, module in runner.modules.items()}
    found = session.gather((losses, grads, steps, session.device.peak_bytes()))
    offsets = session.offsets()
    if found is None or offsets is None:
        return None
    verdict = None
    if options.check:
        whole = make_model(options, program, Shard(), session.device.torch_device)
        losses_of, grads_of = [f[0] for f in found], [f[1] for f in found]
        verdict = check.compare(program, whole, losses_of, grads_of, place.ep, tick)
    firsts = [found[rank * place.ep] for rank in range(program.num_ranks)]
    return Outcome(
        [[of_rank[2][k] for of_rank in firsts] for k in range(options.measure_steps)],
        [offsets[rank * place.ep] for rank in range(program.num_ranks)],
        verdict,
        cost_of_measuring_ns(session.device),
        None if firsts[0][3] is None else [of_rank[3] for of_rank in firsts],
        about(session.device, session.world.size),
    )


def about(device: Device, processes: int) -> dict[str, Any]:
    """The machine, as the trace's metadata names it."""
    of = device.torch_device
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(of) if of.type == "cuda" else "cpu",
        "processes": processes,
        "threads": torch.get_num_threads(),
    }
