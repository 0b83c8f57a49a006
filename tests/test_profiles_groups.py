"""Data-parallel runs whose actions name no stage, and whose files name no pipeline's group."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.profiles_made import Event, info, write
from tracegen.errors import FileError
from tracegen.profiles.reading import read

SAMPLES = Path(__file__).parent.parent / "examples" / "profiles"
GROUPS = {
    "one for all": {"default_pg": [0, 1, 2, 3]},
    "none": {},
    "none that says what it is": {"undefined": [0, 1], "default_pg": [0, 1, 2, 3]},
}


def replicas(folder: Path, name: str, stages: list[int], groups: dict[str, list[int]]) -> Path:
    """A file a rank, each of a run on two processes whose stage it is given; 20 us later each."""
    for rank, stage in enumerate(stages):
        said = json.loads(gzip.decompress((SAMPLES / name / f"rank{stage}.json.gz").read_bytes()))
        events: list[Event] = said["traceEvents"]
        for event in events:
            event["ts"] += 20 * rank
        base = said["baseTimeNanoseconds"]
        about = info(rank, len(stages), groups) if groups else {}
        path = folder / f"rank{rank}.json"
        write(path, events, host_name="n", baseTimeNanoseconds=base, **about)
    return folder


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("mesh", "stages"), [("dp=2,pp=2", [0, 1, 0, 1]), ("pp=2,dp=2", [0, 0, 1, 1])]
)
def test_ranks_that_both_begin_a_pipeline_are_of_several(
    groups: str, name: str, mesh: str, stages: list[int], tmp_path: Path
) -> None:
    folder = replicas(tmp_path, name, stages, GROUPS[groups])
    other = 2 if mesh.startswith("dp") else 1
    with pytest.raises(FileError) as refused:
        read([folder])
    assert str(refused.value) == (
        f"{tmp_path}/rank0.json and {tmp_path}/rank{other}.json both begin a pipeline, for their "
        "forwards receive nothing, and nothing says which ranks are of one; give --rank-map: the "
        "ranks of one pipeline in order, such as 0,4,8,12, or the mesh, outermost first, such as "
        "dp=2,pp=4,tp=2"
    )
    found = read([folder], rank_map=mesh)
    assert found.program.ranks == read([SAMPLES / name]).program.ranks


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_one_pipeline_is_seen_to_be_one(name: str, tmp_path: Path) -> None:
    found = read([replicas(tmp_path, name, [0, 1], {"default_pg": [0, 1]})])
    assert not any("rank-map" in text for text in found.found.warnings)


def test_ranks_in_another_order_than_the_pipeline_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError) as refused:
        read([replicas(tmp_path, "gpipe", [1, 0], {"default_pg": [0, 1]})])
    assert str(refused.value).startswith(
        f"{tmp_path}/rank1.json begins the pipeline, for its forwards receive nothing, and "
        f"{tmp_path}/rank0.json is the first by rank; give --rank-map: "
    )
    found = read([tmp_path], rank_map="1,0")
    assert found.program.ranks == read([SAMPLES / "gpipe"]).program.ranks


def test_where_nothing_is_received_that_is_said(tmp_path: Path) -> None:
    for rank in range(2):
        said = json.loads(gzip.decompress((SAMPLES / "gpipe" / f"rank{rank}.json.gz").read_bytes()))
        events = [e for e in said["traceEvents"] if not e["name"].startswith(("gloo:", "c10d::"))]
        write(tmp_path / f"rank{rank}.json", events, host_name="n")
    found = read([tmp_path])
    assert (
        "nothing names the group of the pipeline: all 2 ranks count as one; if there are several, "
        "give --rank-map"
    ) in found.found.warnings
