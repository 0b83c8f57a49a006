"""Two processes train from our files in torch's own runtime, and have the right gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import ChainMap
from pathlib import Path

import pytest

import tracegen
from tracegen import torch_csv
from tracegen.passes.communication import add_communication
from tracegen.passes.whole_stage import add_whole_stage

pytest.importorskip("torch")

WORKER = Path(__file__).with_name("torch_worker.py")

# name -> m and v, at two ranks
RUNS: dict[str, tuple[int, int | None]] = {
    "gpipe": (3, None),
    "1f1b": (4, None),
    "zb-h1": (6, None),
    "interleaved-1f1b": (4, 2),
    "interleaved-zb": (4, 2),
    "looped-bfs": (3, 2),
    "zbv": (4, None),
    "v-half": (5, None),
    "v-min": (5, None),
    "dualpipev": (5, None),
    "hanayo": (4, 2),
}
EVALUATED = ("1f1b", "interleaved-1f1b", "zb-h1")
CLOSE = 1e-10


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """What each run has that the whole model has not: one process group for all of them."""
    folder = tmp_path_factory.mktemp("torch")
    cases = []
    for name, (m, v) in RUNS.items():
        program = tracegen.compile(name, 2, m, v, communication=False)
        about = {
            "stages": program.num_stages,
            "microbatches": m,
            "owner": program.placement.ranks,
        }
        forms = {
            "comms": add_communication(add_whole_stage(program)),
            "bare": add_communication(program),
            "compute": program,
        }
        for form, made in forms.items():
            (folder / f"{name}-{form}.csv").write_text(torch_csv.write(made))
            csv_format = "compute_only" if form == "compute" else "compute_comms"
            evaluate = form == "comms" and name in EVALUATED
            cases.append(
                {"name": f"{name}-{form}", "format": csv_format, "eval": evaluate, **about}
            )
    (folder / "cases.json").write_text(json.dumps(cases))
    run(folder)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {name: dict(ChainMap(*(rank[name] for rank in ranks))) for name in ranks[0]}


def run(folder: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), "2", folder],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=400)
            assert rank.returncode == 0, said
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("form", ["comms", "compute"])
@pytest.mark.parametrize("name", RUNS)
def test_gradients_and_loss_are_those_of_the_whole_model(
    name: str, form: str, results: dict[str, dict[str, float]]
) -> None:
    found = results[f"{name}-{form}"]
    stages = 2 * (RUNS[name][1] or tracegen.compile(name, 2).stages_per_rank)
    for stage in range(stages):
        assert found[f"stage {stage}"] < CLOSE
    assert found["loss"] < CLOSE


@pytest.mark.parametrize("name", RUNS)
def test_without_reduce_grad_the_gradients_are_m_fold(
    name: str, results: dict[str, dict[str, float]]
) -> None:
    found = results[f"{name}-bare"]
    ratios = [value for key, value in found.items() if key.endswith("ratio")]
    assert ratios == pytest.approx([RUNS[name][0]] * len(ratios), rel=1e-9)
    assert found["loss"] < CLOSE


@pytest.mark.parametrize("name", EVALUATED)
def test_the_training_file_evaluates_too(name: str, results: dict[str, dict[str, float]]) -> None:
    assert results[f"{name}-comms"]["eval"] < CLOSE
