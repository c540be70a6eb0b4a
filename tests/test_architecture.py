"""Modules import downwards only, each does what its layer may, and nothing names the machine that it was written on."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import networkx
import pytest

from support.common import ROOT

OPBENCH = ROOT / "opbench"
TABLE = ROOT / "docs" / "architecture.md"


class Package(NamedTuple):
    """One row of the table in docs/architecture.md."""

    layer: int
    may_import: frozenset[str]


def read_packages(page: Path) -> dict[str, Package]:
    """Name of each package, or of each module that stands alone, to its row in one of the three tables."""
    rows = re.findall(r"^\| (\d+) \| ([\w., ]+) \| .* \| ([\w., ]*?) *\|$", page.read_text(), re.MULTILINE)
    return {
        name: Package(int(layer), frozenset(re.findall(r"[\w.]+", allowed)))
        for layer, names, allowed in rows
        for name in re.findall(r"[\w.]+", names)
    }


PACKAGES = read_packages(TABLE)
GROUND = {name for name, package in PACKAGES.items() if package.layer <= 1}

FOLDERS = {name.partition(".")[0] for name in PACKAGES if "." in name}
"""Folders that hold packages and nothing of their own."""

MODULES = sorted(p for p in OPBENCH.rglob("*.py") if p != OPBENCH / "__init__.py")


def name_of(path: Path) -> str:
    """Such as "backends.cpu.build"."""
    return ".".join(path.relative_to(OPBENCH).with_suffix("").parts).removesuffix(".__init__")


def package_of(module: str) -> str:
    """The package that a module is in, or itself where it stands alone; of a folder of packages its own name."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in names if name in PACKAGES), parts[0])


class ParsedFile(NamedTuple):
    """Facts of a Python file. Syntax trees of all files would take too much memory."""

    docstring: str | None
    imports: list[tuple[int, str]]
    """Line and full name of everything that the file imports, wherever in it."""


@functools.cache
def parsed(path: Path) -> ParsedFile:
    """Parse a file once for all tests."""
    tree = ast.parse(path.read_text())
    return ParsedFile(ast.get_docstring(tree), list(each_import(path, tree)))


def imports(path: Path) -> list[tuple[int, str]]:
    """Return line and full name of everything that a file imports, wherever in it."""
    return parsed(path).imports


def is_import_function(function: ast.expr) -> bool:
    """Whether a called function is `importlib.import_module` or `__import__`."""
    match function:
        case ast.Name(id="__import__") | ast.Attribute(value=ast.Name(id="importlib"), attr="import_module"):
            return True
    return False


def each_import(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                submodule = ROOT.joinpath(*(node.module or "").split("."), alias.name)
                is_module = submodule.with_suffix(".py").exists() or submodule.is_dir()
                yield node.lineno, f"{node.module}.{alias.name}" if is_module else str(node.module)
        elif isinstance(node, ast.Call) and is_import_function(node.func):
            yield from ((node.lineno, str(a.value)) for a in node.args if isinstance(a, ast.Constant))


def test_every_package_has_its_row_and_every_row_its_package() -> None:
    found = {package_of(name_of(path)) for path in MODULES} - {"__main__", *FOLDERS}
    assert found == set(PACKAGES), f"{TABLE.name} and opbench/ name different packages"


@pytest.mark.parametrize("part", ["", "emulator", "networks"])
def test_the_page_of_a_part_names_files_that_are_there(part: str) -> None:
    page = OPBENCH / part / "README.md"
    named = re.findall(r"`((?:opbench/)?[\w/]+(?:\.py|/))`", page.read_text())
    places = [[page.parent / name, ROOT / name, OPBENCH / name] for name in named]
    assert (
        named and [name for name, tried in zip(named, places, strict=True) if not any(p.exists() for p in tried)] == []
    )


def test_rows_allow_only_lower_layers_so_that_there_is_no_circle() -> None:
    for name, package in PACKAGES.items():
        for other in package.may_import - {"everything"}:
            assert PACKAGES[other].layer < package.layer, f"{TABLE.name}: {name} may not import {other}"


def may_import(here: str, there: str) -> bool:
    """Whether the table allows modules of the package `here` to import those of `there`."""
    if here in FOLDERS:
        return False
    allowed = PACKAGES[here].may_import | GROUND | {here}
    return here == there or (
        PACKAGES[there].layer < PACKAGES[here].layer and (there in allowed or "everything" in allowed)
    )


def test_imports_go_only_where_the_table_allows() -> None:
    wrong = [
        f"{path}:{line}: {here} must not import {name}; docs/architecture.md has what it may"
        for path in MODULES
        if (here := package_of(name_of(path))) != "__main__"
        for line, name in imports(path)
        if name.startswith("opbench.") and not may_import(here, package_of(name.removeprefix("opbench.")))
    ]
    assert wrong == []


def test_no_circle_of_modules() -> None:
    """Neither by imports of type checking nor by those inside functions."""
    graph = networkx.DiGraph()
    for path in MODULES:
        graph.add_edges_from((f"opbench.{name_of(path)}", name) for _, name in imports(path) if name != "opbench")
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]
    assert circles == []


def test_tests_lie_in_folders_named_as_the_packages() -> None:
    folders = {p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and any(p.glob("test_*.py"))}
    assert folders - set(PACKAGES) - FOLDERS - {"bench"} == set()


def test_the_two_backends_know_nothing_of_each_other() -> None:
    for one, other in (("emulator", "gpu.driver"), ("gpu/driver", "emulator")):
        for path in (OPBENCH / one).rglob("*.py"):
            assert not [n for _, n in imports(path) if n.startswith(f"opbench.{other}")], path


ALLOWED = {
    "ctypes": ("cage", "emulator", "gpu", "insight.nsight", "selftest", "doctor"),
    "cupy": (
        "gpu.driver",
        "selftest",
        "doctor",
        "kernels.arrays",
        "kernels.torch_library",
    ),  # arrays that a device holds
    "cuda": ("gpu.driver", "selftest", "doctor"),
    "pynvml": ("gpu.driver", "doctor"),
    "ziglang": ("emulator", "doctor"),
    "subprocess": (
        "child_process",
        "running.worker",
        "kernels.torch_task",
        "emulator",
        "gpu.compile",
        "insight.nsight",
        "running.profile",
        "selftest",
        "doctor",
        "judging.code",
        "running.revision",
        "networks.train.ranks",
        "cli.watch",
    ),
    "nvtx": ("nvtx", "doctor"),
    "matplotlib": ("report", "networks.report", "networks.api"),
    "jinja2": ("report", "networks.report"),
}


def test_only_the_modules_for_it_touch_a_driver_a_compiler_or_a_drawing() -> None:
    wrong = [
        f"{path}:{line}: {name} belongs to {places}"
        for path in MODULES
        for line, name in imports(path)
        if (places := ALLOWED.get(name.split(".")[0]))
        and not f"{name_of(path)}.".startswith(tuple(f"{p}." for p in places))
    ]
    assert wrong == []


def test_the_report_reads_results_and_nothing_else() -> None:
    """So that a report is a function of the results file, on any machine."""
    reached, todo = set(), {name_of(p) for p in (OPBENCH / "report").rglob("*.py")}
    while todo:
        module = todo.pop()
        reached.add(module)
        path = OPBENCH.joinpath(*module.split(".")).with_suffix(".py")
        path = path if path.exists() else OPBENCH.joinpath(*module.split(".")) / "__init__.py"
        if path.exists():
            todo |= {n.removeprefix("opbench.") for _, n in imports(path) if n.startswith("opbench.")} - reached
    forbidden = ("emulator", "gpu.driver", "gpu.compile", "checking", "running", "networks", "api", "cli")
    assert not sorted(m for m in reached if m.startswith(forbidden))


def test_the_harness_holds_no_kernel_of_an_operator() -> None:
    sources = [p.relative_to(OPBENCH) for p in OPBENCH.rglob("*.cu") if "shipped" not in p.parts]
    assert [str(p) for p in sources if p.parts[:2] != ("gpu", "driver")] == []
    for path in MODULES:
        if not name_of(path).startswith(("emulator.", "gpu.", "backend.")):
            assert "__global__ void" not in path.read_text(), path


def test_every_module_says_what_it_is_for() -> None:
    for path in [*MODULES, OPBENCH / "__init__.py"]:
        assert parsed(path).docstring, f"{path} has no docstring"


def test_every_file_of_tests_says_what_it_is_for() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        assert parsed(path).docstring, f"{path} has no docstring"


def test_no_test_file_imports_another() -> None:
    """Else they are bound to each other: what several need stands in a module of its own or in conftest.py."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert [n for _, n in imports(path) if n.split(".")[-1].startswith("test_")] == [], path


def test_files_of_tests_have_names_of_their_own() -> None:
    """Of two with one name pytest collects the first alone, in a whole run only."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_file_names_the_machine_that_it_was_written_on() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("needs git and a clone")
    places = [re.escape(str(p)) for p in (ROOT, Path.home()) if len(p.parts) > 1]
    # A word that only begins like such a folder ("/rooted", "/workflows") is another.
    machine = re.compile(rf"(?<![\w./-])(?:{'|'.join(places)}|/home/\w+|/Users/\w+|/root)(?=/|\b(?![\w-]))".encode())
    found = []
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path != Path(__file__):
            found += [f"{name}: {hit.group().decode()}" for hit in machine.finditer(path.read_bytes())]
    assert found == []
