"""One rank of a real PyTorch pipeline run, for test_torch_run.py: RANK WORLD FOLDER.

Reads FOLDER/cases.json, a list of {name, stages, microbatches, owner} with FOLDER/NAME.csv beside
it, runs each as torch does, and writes what differs from the same model run whole to
FOLDER/RANK.json. The rows it saw of torch's own lowering go to FOLDER/NAME.torch.csv.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, LAYERS = 4, 4


def layers() -> list[torch.nn.Module]:
    torch.manual_seed(7)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()).double()
        for _ in range(LAYERS)
    ]


def split(num_stages: int) -> list[torch.nn.Sequential]:
    each, every = LAYERS // num_stages, layers()
    return [torch.nn.Sequential(*every[s * each : (s + 1) * each]) for s in range(num_stages)]


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]


def run(case: dict[str, Any], rank: int, folder: Path) -> dict[str, float]:
    num_stages, m, owner = case["stages"], case["microbatches"], case["owner"]
    torch.manual_seed(11)
    x, y = torch.randn(2, 2 * m, WIDTH, dtype=torch.float64).unbind()

    whole = torch.nn.Sequential(*layers())
    whole_loss = mse(whole(x), y)
    whole_loss.backward()

    mine = [s for s in range(num_stages) if owner[s] == rank]
    parts = split(num_stages)
    stages = [PipelineStage(parts[s], s, num_stages, torch.device("cpu")) for s in mine]
    schedule = _PipelineScheduleRuntime(stages, m, loss_fn=mse)
    schedule._load_csv(str(folder / f"{case['name']}.csv"), format=case["format"])
    losses: list[torch.Tensor] = []
    args = (x,) if 0 in mine else ()
    if num_stages - 1 in mine:
        schedule.step(*args, target=y, losses=losses)
    else:
        schedule.step(*args)

    each = LAYERS // num_stages
    found = {}
    for s in mine:
        expected = gradients(torch.nn.Sequential(*[*whole][s * each : (s + 1) * each]))
        actual = gradients(parts[s])
        found[f"stage {s}"] = (actual - expected).abs().max().item()
        found[f"stage {s} ratio"] = (actual.norm() / expected.norm()).item()
    if losses:
        found["loss"] = abs(torch.stack(losses).mean() - whole_loss).item()
    if case.get("eval"):
        output = schedule.eval(*args, **({"target": y} if num_stages - 1 in mine else {}))
        if num_stages - 1 in mine:
            found["eval"] = (output - whole(x)).abs().max().item()
    return found


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    cases = json.loads((folder / "cases.json").read_text())
    results = {case["name"]: run(case, rank, folder) for case in cases}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
