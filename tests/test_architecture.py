"""Modules import downwards only, each does what its layer may, and nothing names the machine that it was written on."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from common import ROOT

PACKAGE = ROOT / "opbench"
LAYERS = (
    ("__main__",),
    ("cli",),
    ("pytest_plugin",),
    ("api",),
    ("doctor",),
    ("nets",),
    ("report", "profile", "probes", "export"),
    ("runner",),
    ("worker", "trace"),
    ("resources",),
    ("session", "sass"),
    ("backends",),
    ("history", "selftest"),
    ("records",),
    ("suite", "frame", "explain", "agreement", "comparison", "processes", "floor", "canary"),
    ("nets.graph", "nets.build", "nets.networks", "nets.passes", "nets.layouts", "nets.problems"),
    ("diagnosis", "lowering", "levels", "binding", "prepared", "rotation"),
    ("case", "catalog", "ceiling", "timing", "traffic", "verdict", "families", "samples", "environments"),
    ("variant", "results", "stopping", "soaking"),
    ("operator", "backends.base", "occupancy"),
    ("expression", "stats", "ranges", "cubin", "arrays"),
    ("errors", "units", "places", "precision"),
)
"""From the top; a module may import from the layers below its own, and from its own package."""

MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def name_of(path: Path) -> str:
    """Such as "backends.cpu.build"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def layer(module: str) -> int:
    """The layer of a module or of the package that it is in; larger is lower."""
    for prefix in (module, module.rpartition(".")[0], module.partition(".")[0]):
        for depth, names in enumerate(LAYERS):
            if prefix in names:
                return depth
    raise AssertionError(
        f"opbench/{module.replace('.', '/')}.py has no layer; say in LAYERS of this test where it stands"
    )


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                submodule = ROOT.joinpath(*(node.module or "").split("."), alias.name)
                is_module = submodule.with_suffix(".py").exists() or submodule.is_dir()
                yield node.lineno, f"{node.module}.{alias.name}" if is_module else str(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from ((node.lineno, str(a.value)) for a in node.args if isinstance(a, ast.Constant))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_downwards(path: Path) -> None:
    module = name_of(path)
    for line, name in imports(path):
        if not name.startswith("opbench."):
            continue
        imported = name.removeprefix("opbench.")
        own_package = imported.partition(".")[0] == module.partition(".")[0]
        assert own_package or layer(imported) > layer(module), f"{path}:{line}: {module} must not import {imported}"


def test_the_two_backends_know_nothing_of_each_other() -> None:
    for one, other in (("cpu", "cuda"), ("cuda", "cpu")):
        for path in (PACKAGE / "backends" / one).rglob("*.py"):
            assert not [n for _, n in imports(path) if n.startswith(f"opbench.backends.{other}")], path
    assert not [n for _, n in imports(PACKAGE / "backends" / "base.py") if n.startswith("opbench.")]


ALLOWED = {
    "ctypes": ("backends", "profile", "doctor"),
    "cupy": ("backends.cuda", "doctor", "arrays"),  # float64 references of long problems
    "cuda": ("backends.cuda", "doctor"),
    "pynvml": ("backends.cuda", "doctor"),
    "ziglang": ("backends.cpu", "doctor"),
    "subprocess": ("backends", "profile", "doctor", "worker", "sass"),
    "nvtx": ("ranges", "doctor"),
    "matplotlib": ("report",),
    "jinja2": ("report",),
}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_modules_for_it_touch_a_driver_a_compiler_or_a_drawing(path: Path) -> None:
    for line, name in imports(path):
        places = ALLOWED.get(name.split(".")[0])
        allowed = places is None or any(name_of(path) == p or name_of(path).startswith(f"{p}.") for p in places)
        assert allowed, f"{path}:{line}: {name} belongs to {places}"


def test_the_report_reads_results_and_nothing_else() -> None:
    """So that a report is a function of the results file, on any machine."""
    reached, todo = set(), {f"report.{p.stem}" for p in (PACKAGE / "report").glob("*.py")}
    while todo:
        module = todo.pop()
        reached.add(module)
        path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
        path = path if path.exists() else PACKAGE.joinpath(*module.split(".")) / "__init__.py"
        if path.exists():
            todo |= {n.removeprefix("opbench.") for _, n in imports(path) if n.startswith("opbench.")} - reached
    forbidden = ("backends.c", "session", "worker", "runner", "api", "cli")
    assert not sorted(m for m in reached if m.startswith(forbidden))


def test_the_harness_holds_no_kernel_of_an_operator() -> None:
    sources = [p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.cu") if "shipped" not in p.parts]
    assert [str(p) for p in sources if p.parts[0] != "backends"] == []
    for path in MODULES:
        if not name_of(path).startswith("backends."):
            assert "__global__" not in path.read_text(), path


def test_every_module_says_what_it_is_for_and_stays_small() -> None:
    for path in [*MODULES, PACKAGE / "__init__.py"]:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
        assert len(path.read_text().splitlines()) <= 400, f"{path} holds more than one idea"


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
