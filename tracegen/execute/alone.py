"""Each distinct stage run alone on the one device at hand: its ops, its activations."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tracegen.errors import ExecuteError
from tracegen.execute import private
from tracegen.execute.calibrate import Calibration
from tracegen.execute.clock import Device, Recorder
from tracegen.execute.experts import Shard
from tracegen.execute.job import about, make_model, shape_of
from tracegen.execute.op_costs import Op, OpCosts
from tracegen.execute.options import Options, slices
from tracegen.execute.progress import SETUP, Progress
from tracegen.execute.runner import Shape
from tracegen.execute.session import device_of
from tracegen.execute.stages import Model
from tracegen.ir import NO_MATE, Program, encode
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT


def measure_stages(program: Program, options: Options, progress: Progress) -> Calibration:
    """Measure every distinct slice of the model; slices of one structure are measured once.

    Raises:
        ExecuteError: if the device is not there, or the experts are spread over processes.
    """
    if options.ep > 1:
        raise ExecuteError("a stage alone has no expert group; leave --ep or --alone out")
    device = device_of(options.device, 0)
    model = make_model(options, program, Shard(), device.torch_device)
    known: dict[str, tuple[dict[int, int], int]] = {}
    of_slice: list[tuple[dict[int, int], int, Shape]] = []
    before: Shape | None = None
    for number in range(model.num_slices):
        progress.set(SETUP)
        module = model.build(number)
        last = number == model.num_slices - 1
        looks = f"{number == 0} {last} {before} {_structure(module)}"
        if looks not in known:
            stage = _Stage(module, model, before, last, device)
            ops = stage.measure(options.warmup_steps, options.measure_steps, progress)
            known[looks] = (ops, stage.held_bytes())
        before = shape_of(module, model, before, 0, device.torch_device)
        of_slice.append((*known[looks], before))
    return _calibration(program, of_slice, str(about(device, 1)["device"]))


def _calibration(
    program: Program, of_slice: list[tuple[dict[int, int], int, Shape]], device: str
) -> Calibration:
    ns: dict[Op, int] = {}
    held: dict[int, int] = {}
    boundary: dict[int, int] = {}
    for stage, number in enumerate(slices(program)):
        ops, held[stage], shape = of_slice[number]
        ns |= {(kind, stage): of_op for kind, of_op in ops.items()}
        last = number == len(of_slice) - 1
        boundary[stage] = 0 if last else shape.size.numel() * shape.dtype.itemsize
    costs = replace(OpCosts(ns), activation_bytes=held)
    return Calibration(costs, device, alone=True, boundary_bytes=boundary)


def _structure(module: nn.Module) -> str:
    """What two modules that take the same time have in common."""
    shapes = [(name, tuple(p.shape), p.dtype) for name, p in module.named_parameters()]
    return f"{module} {shapes}"


class _Stage:
    """A stage with an input and an output gradient made up."""

    def __init__(
        self, module: nn.Module, model: Model, before: Shape | None, last: bool, device: Device
    ) -> None:
        self.module, self.model, self.before, self.last = module, model, before, last
        self.device = device

    def measure(self, warmup: int, steps: int, progress: Progress) -> dict[int, int]:
        """The median ns of F, B, I and W over the steps."""
        found: dict[int, list[int]] = {kind: [] for kind in (FORWARD, FULL, INPUT, WEIGHT)}
        for number in range(warmup + steps):
            progress.set(SETUP)
            recorder = Recorder(self.device)
            recorder.start_step()
            self._step(recorder)
            times = recorder.read()
            if number >= warmup:
                for code, start, end in zip(times.codes, times.start_ns, times.end_ns, strict=True):
                    found[code].append(end - start)
        return {kind: round(median(of_kind)) for kind, of_kind in found.items()}

    def _step(self, recorder: Recorder) -> None:
        """One microbatch with a full backward, one with a split one."""
        self.module.zero_grad(set_to_none=True)
        given, output, grad = self._forward(recorder)
        self._timed(recorder, FULL, lambda: private.backward_full(output, grad, given))
        given, output, grad = self._forward(recorder)
        if self.before is None:  # all is left to W
            self._timed(recorder, INPUT, lambda: None)
            self._timed(recorder, WEIGHT, lambda: private.backward_full(output, grad, given))
            return
        parameters = list(self.module.parameters())
        _, rest = self._timed(
            recorder,
            INPUT,
            lambda: private.backward_input(output, grad, given, iter(parameters)),
        )
        self._timed(recorder, WEIGHT, lambda: private.backward_weight(iter(parameters), rest))

    def _forward(self, recorder: Recorder) -> tuple[Tensor, Tensor, Tensor | None]:
        given = self._given()
        output = self._timed(recorder, FORWARD, lambda: self._run(given))
        return given, output, None if self.last else torch.ones_like(output)

    def _given(self) -> Tensor:
        if self.before is None:
            return self.model.example(0, 0)
        at = self.device.torch_device
        given = torch.randn(self.before.size, device=at).to(self.before.dtype)
        return given.requires_grad_()

    def _run(self, given: Tensor) -> Tensor:
        output: Tensor = self.module(given)
        if output._is_view():
            output = output.clone()
        return self.model.loss(output, 0, 0) if self.last else output

    def _timed(self, recorder: Recorder, kind: int, do: Any) -> Any:
        start = recorder.mark()
        made = do()
        recorder.note(encode(0, kind, 0), NO_MATE, None, start, recorder.mark())
        return made

    def held_bytes(self) -> int:
        """What a forward keeps for its backward, its input included and parameters not."""
        own = {p.untyped_storage().data_ptr() for p in self.module.parameters()}
        held: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        given = self._given()
        keep(given)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = self._run(given)
        del output
        return sum(held.values())
