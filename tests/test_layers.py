"""Which module may import which, which may know heavy packages, and how long files may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE, SCHEDULES = ROOT / "tracegen", ROOT / "schedules"

# Each module or package imports only from those before it, in a function or at the top.
ORDER = """
    errors checks files
    ir alike shape found mode repeat deps                what ranks do, and what waits for what
    order numbering schedule registry torch_csv passes compiler   where programs come from
    rates moe_model moe jitter cost_checks times costs   how long it takes
    kernels collective tail held work clock longest_path sharing    jobs on streams
    kernel_work kernel_line dynamic full_work deadlock full_line
    timeline blame recompute memory metrics              what happened when
    full_replay engine blocks attribution                the replay
    tiles drawn layout_more layout_kernels layout emit_proto emit   traces
    view view_idle ui                                    what people see
    readers comparison differ golden pytest_plugin       traces read, and held against each other
    analysis execute
    profiles                                             other tools' profiles of a run
    cli __main__
"""
# Steps against the order, in a function, each with its reason.
BACK = {
    ("ir", "alike"): "a program counts its kinds by the sorts of its steps",
    ("timeline", "ui"): "a notebook draws a timeline that is the value of a cell",
}

# Third-party packages, and the only modules and packages that may know them.
MAY_IMPORT = {
    "click": {"cli"},
    "pytest": {"pytest_plugin"},
    "rich": {"view", "view_idle", "cli", "analysis"},
    "torch": {"execute"},
    "perfetto": {"emit_proto", "ui"},
    "google": {"ui"},
    "wasmtime": {"ui"},
    "ortools": {"analysis"},
}

MAX_FILE, MAX_FUNCTION, MAX_SCHEDULE = 400, 50, 60  # lines; docstrings of functions do not count

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"
}
FILES = {
    str(path.relative_to(ROOT)): path
    for folder in (PACKAGE, SCHEDULES)
    for path in folder.rglob("*.py")
}


def order() -> list[str]:
    """The names of the table; what stands behind three blanks is a comment."""
    lines = (line.strip().split("   ")[0] for line in ORDER.splitlines())
    return [name for line in lines for name in line.split()]


PLACE = {name: at for at, name in enumerate(order())}


def part(module: str) -> str:
    """The module as the table names it: a package for those in it."""
    return module.partition(".")[0]


def imported(path: Path, top: bool = False) -> Iterator[str]:
    """What a file imports, less what only a type checker reads; `top`: outside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if typing or (top and isinstance(node, ast.FunctionDef)):
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if _is_module(whole) else str(node.module)


def _is_module(name: str) -> bool:
    return name.removeprefix("tracegen.") in MODULES and name.startswith("tracegen.")


def own(path: Path, top: bool = False) -> set[str]:
    """The modules of this package that a file imports."""
    names = {name for name in imported(path, top) if name.startswith("tracegen.")}
    return {name.removeprefix("tracegen.") for name in names}


def test_every_module_has_a_place_and_every_place_a_module() -> None:
    assert sorted(PLACE) == sorted({part(module) for module in MODULES})


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    here = part(module)
    for other in sorted({part(name) for name in own(MODULES[module])} - {here}):
        if (here, other) in BACK:
            assert other not in {part(name) for name in own(MODULES[module], top=True)}
            continue
        assert PLACE[other] < PLACE[here], f"tracegen/{module} imports {other}, which comes later"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: own(path, top=True) & MODULES.keys() for module, path in MODULES.items()}
    while graph:
        free = [module for module, needs in graph.items() if not needs & graph.keys()]
        assert free, f"a circle of imports among {sorted(graph)}"
        for module in free:
            del graph[module]


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_stay_where_they_belong(module: str) -> None:
    for name in imported(MODULES[module]):
        root = name.partition(".")[0]
        if root != "tracegen" and root not in sys.stdlib_module_names:
            assert part(module) in MAY_IMPORT.get(root, ()), f"tracegen/{module} imports {root}"


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("*.py")), ids=lambda path: path.stem)
def test_a_schedule_knows_only_its_words(path: Path) -> None:
    assert set(imported(path)) <= {"tracegen.ir", "tracegen.order", "tracegen.schedule"}
    assert path.read_text().count("\n") <= MAX_SCHEDULE


def test_the_whole_public_door_needs_no_torch() -> None:
    code = (
        "import pydoc, sys, tracegen; tracegen.replay(tracegen.compile('zbv')); "
        "assert all(name in pydoc.render_doc(tracegen) for name in tracegen.__all__); "
        "print([n for n in ('torch', 'rich', 'click', 'wasmtime') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "[]\n"


@pytest.mark.parametrize("name", FILES)
def test_size_budget(name: str) -> None:
    source = FILES[name].read_text(encoding="utf-8")
    assert source.count("\n") <= MAX_FILE
    tree = ast.parse(source)
    assert ast.get_docstring(tree), f"{name} does not say what it owns"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            doc = node.body[0] if ast.get_docstring(node) else None
            lines = _lines(node) - (_lines(doc) if doc else 0)
            assert lines <= MAX_FUNCTION, f"{name}:{node.lineno} {node.name}: {lines} lines"


def _lines(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1
