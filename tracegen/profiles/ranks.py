"""Which of the files given are the ranks of one pipeline, and in which order.

A run of data x tensor x expert x pipeline parallelism leaves a file for each of its ranks; a
picture is of one pipeline. `distributedInfo` says it, or `--rank-map`, or the stages in the
names of the actions, if no two files have the same.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

from tracegen.errors import FileError
from tracegen.ir import KIND_MASK, NO_MATE, STAGE_MASK, STAGE_SHIFT
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT
from tracegen.profiles.model import Message, Recorded
from tracegen.readers.warn import Warnings

MAP_HELP = (
    "the ranks of one pipeline in order, such as 0,4,8,12, or the mesh, outermost first, such as "
    "dp=2,pp=4,tp=2"
)


def pipeline(
    files: Sequence[Recorded], rank_map: str | None, warnings: Warnings
) -> tuple[list[Recorded], list[int]]:
    """The files of one pipeline in order, and the place of each in it.

    Raises:
        FileError: if that cannot be told, with what would tell it.
    """
    if rank_map is not None:
        chosen = _mapped(files, ranks_of(rank_map, len(files)))
    elif any(one.peers for one in files):
        chosen = _by_groups(files, warnings)
    else:
        chosen = _by_stages(files, warnings)
    kept = {id(one) for one, _ in chosen}
    if left := [one for one in files if id(one) not in kept]:
        warnings.add(
            "left out",
            f"{len(left)} of {len(files)} files are of other ranks of the run and left out, such "
            f"as {left[0].path}; --rank-map chooses others",
        )
    return [one for one, _ in chosen], [place for _, place in chosen]


def ranks_of(text: str, files: int) -> list[int]:
    """The ranks that `--rank-map` says.

    Raises:
        FileError: if it is neither a list nor a mesh with pp.
    """
    if re.fullmatch(r"\d+(,\d+)*", text):
        ranks = [int(one) for one in text.split(",")]
        if len(set(ranks)) < len(ranks):
            raise FileError(f"--rank-map {text}: a rank is there twice; expected {MAP_HELP}")
        return ranks
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"([a-z_]+)=([1-9]\d{0,6})", part.strip())
        if match is None:
            raise FileError(f"--rank-map {text}: expected {MAP_HELP}")
        if match[1] in sizes:
            both = f"{match[1]}={sizes[match[1]]} and {match[0]}"
            raise FileError(f"--rank-map {text}: {both}; expected {MAP_HELP}")
        sizes[match[1]] = int(match[2])
    if "pp" not in sizes:
        raise FileError(f"--rank-map {text}: the mesh has no pp; expected {MAP_HELP}")
    inner = 1
    for name in reversed(sizes):
        if name == "pp":
            return [place * inner for place in range(sizes["pp"])]
        inner *= sizes[name]
    raise AssertionError(sizes)


def _mapped(files: Sequence[Recorded], ranks: list[int]) -> list[tuple[Recorded, int]]:
    known = {one.rank: one for one in files if one.rank >= 0}
    if not known and len(files) == len(ranks):
        return [(files[rank], place) for place, rank in enumerate(ranks) if rank < len(files)]
    if missing := [rank for rank in ranks if rank not in known]:
        raise FileError(
            f"--rank-map asks for rank {missing[0]}, and no file is of it; there are "
            f"{', '.join(map(str, sorted(known))) or 'files that say no rank'}"
        )
    return [(known[rank], place) for place, rank in enumerate(ranks)]


def _by_groups(files: Sequence[Recorded], warnings: Warnings) -> list[tuple[Recorded, int]]:
    """By the process groups that the files say: the first pipeline that is most complete."""
    groups: defaultdict[tuple[int, ...], dict[int, Recorded]] = defaultdict(dict)
    for one in files:
        if one.rank in one.peers:
            if one.rank in groups[one.peers]:
                raise FileError(
                    f"{one.path}, {groups[one.peers][one.rank].path}: both say they are of rank "
                    f"{one.rank}; give one file a rank, of one run"
                )
            groups[one.peers][one.rank] = one
    if not groups:
        return _by_stages(files, warnings)
    peers, there = min(groups.items(), key=lambda item: (len(item[0]) - len(item[1]), item[0]))
    clash = _same_stages(list(there.values()))
    if clash and len(peers) > 1 and not any(one.one_stage for one in there.values()):
        raise FileError(
            f"{clash[0].path} and {clash[1].path} run the same stages, and distributedInfo names "
            f"no group of the pipeline; give --rank-map: {MAP_HELP}"
        )
    if all(one.one_stage and one.only_group for one in there.values()):
        _be_one([there[rank] for rank in peers if rank in there], warnings)
    if lost := [rank for rank in peers if rank not in there]:
        warnings.add(
            "missing",
            f"no file is of rank {', '.join(map(str, lost))} of the pipeline "
            f"{', '.join(map(str, peers))}: what they did is not shown",
        )
    return [(there[rank], place) for place, rank in enumerate(peers) if rank in there]


def _by_stages(files: Sequence[Recorded], warnings: Warnings) -> list[tuple[Recorded, int]]:
    """By the stages of the actions; of files that say none, by their ranks."""
    if any(one.one_stage for one in files):
        numbers = [one.rank for one in files]
        if min(numbers) < 0 or len(set(numbers)) < len(numbers):
            raise FileError(
                f"{files[0].path}: neither its actions nor distributedInfo nor its name (rank0) "
                "say its place in the pipeline; name the files by rank"
            )
        ordered = sorted(files, key=lambda one: one.rank)
        _be_one(ordered, warnings)
        return [(one, at) for at, one in enumerate(ordered)]
    if clash := _same_stages(files):
        raise FileError(
            f"{clash[0].path} and {clash[1].path} run the same stages: they are of several "
            f"pipelines, and no distributedInfo says which; give --rank-map: {MAP_HELP}"
        )
    ordered = sorted(files, key=lambda one: min(stages(one), default=0))
    return [(one, at) for at, one in enumerate(ordered)]


def _be_one(ordered: Sequence[Recorded], warnings: Warnings) -> None:
    """Check that ranks that nothing says to be of one pipeline are, by what they receive.

    Raises:
        FileError: if others than the first begin a pipeline.
    """
    if len(ordered) < 2:
        return
    receive = [_in_forwards(one, one.receives) for one in ordered]
    send = [_in_forwards(one, one.sends) for one in ordered]
    begin = [one for one, receives in zip(ordered, receive, strict=True) if not receives]
    if any(receive) and begin[1:]:
        raise FileError(
            f"{begin[0].path} and {begin[1].path} both begin a pipeline, for their forwards "
            "receive nothing, and nothing says which ranks are of one; give --rank-map: "
            f"{MAP_HELP}"
        )
    if any(receive) and begin and begin[0] is not ordered[0]:
        raise FileError(
            f"{begin[0].path} begins the pipeline, for its forwards receive nothing, and "
            f"{ordered[0].path} is the first by rank; give --rank-map: {MAP_HELP}"
        )
    if receive != [False] + [True] * (len(ordered) - 1) or send != receive[::-1]:
        warnings.add(
            "groups",
            f"nothing names the group of the pipeline: all {len(ordered)} ranks count as one; if "
            "there are several, give --rank-map",
        )


def _in_forwards(one: Recorded, messages: Sequence[Message]) -> bool:
    """Whether a forward, which holds its own messages, has any of these."""
    starts = [message.start_ns for message in messages]
    return any(
        bisect_left(starts, window.start_ns) < bisect_right(starts, window.end_ns)
        for window in one.windows
        if window.talks and window.code & KIND_MASK == FORWARD
    )


def stages(one: Recorded) -> set[int]:
    """The stages that a file's actions compute."""
    return {
        code >> STAGE_SHIFT & STAGE_MASK
        for window in one.windows
        for code in (window.code, window.mate)
        if code != NO_MATE and code & KIND_MASK <= WEIGHT
    }


def _same_stages(files: Sequence[Recorded]) -> tuple[Recorded, Recorded] | None:
    owner: dict[int, Recorded] = {}
    for one in files:
        for stage in stages(one):
            if owner.setdefault(stage, one) is not one:
                return owner[stage], one
    return None
