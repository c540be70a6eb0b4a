"""Lists name what lies in the folders, and a printed name pasted back selects it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opbench.kernels.case import select
from opbench.kernels.folders import case_named
from opbench.paths import shipped_folder, shipped_suites
from opbench.running.suite import read_suite
from support.common import CATALOG, Cli

SUITES = shipped_suites()


def test_list_shows_what_lies_in_the_folders(cli: Cli) -> None:
    operators = [line.split()[0] for line in cli("list", "--all").stdout.splitlines()]
    assert operators == sorted(p.parent.name for p in shipped_folder("variants").glob("*/operator.py"))
    files = {f"{p.parent.name}/{p.stem}" for p in shipped_folder("variants").glob("*/*") if p.suffix in (".cu", ".py")}
    variants = [line.split()[0] for line in cli("list", "variants").stdout.splitlines()]
    told = {v.id: f"{v.operator}/{v.path.stem}" for name in CATALOG.operator_names() for v in CATALOG.variants(name)}
    assert set(variants) == set(told)
    assert set(told.values()) == {f for f in files if not f.endswith("/operator")}, "a file may hold several variants"
    assert [v for v in variants if v.startswith("relu/")] == [
        line.split()[0] for line in cli("list", "variants", "relu").stdout.splitlines()
    ]
    assert cli("list", "relu").stdout == cli("list", "variants", "relu").stdout
    suites = [line.split()[0] for line in cli("list", "suites").stdout.splitlines()]
    assert suites == [f"suites/{p.name}" for p in SUITES]


@pytest.mark.parametrize("what", ["operators", "variants", "suites", "cases"])
def test_list_as_json_has_the_same_names(cli: Cli, what: str) -> None:
    arguments = ("list", what, "--all", *(("quick", "--backend", "cpu") if what == "cases" else ()))
    plain, rows = cli(*arguments), json.loads(cli(*arguments, "--json").stdout)
    assert [re.split(r"\s\s+", line)[0].strip() for line in plain.stdout.splitlines()] == [row["name"] for row in rows]
    assert what == "cases" or all(row["title"] for row in rows)
    assert plain.stderr == ""


def test_list_hides_the_operators_that_opbench_uses_itself(cli: Cli) -> None:
    shown = cli("list")
    rows = json.loads(cli("list", "--json").stdout)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == [row["name"] for row in rows if not row["role"]]
    assert {row["name"]: row["role"] for row in rows}.items() >= {
        "tick": "training step",
        "fma": "probe",
        "add": "",
    }.items()
    assert "opbench list --all" in shown.stderr


@pytest.mark.parametrize("what", ["operators", "variants", "suites"])
def test_list_imports_nothing_heavy(tmp_path: Path, what: str) -> None:
    code = (
        f"import sys; sys.argv = ['opbench', 'list', {what!r}, '--all']; from opbench.cli import main; main(); "
        "heavy = {'numpy', 'cupy', 'matplotlib', 'pandas', 'torch', 'rich', 'jinja2', 'nvtx'}; "
        "print(*sorted(heavy & {m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_printed_names_are_selectors_in_every_suite(path: Path, backend: str) -> None:
    cases = list(read_suite(path, CATALOG, backend).cases)
    for place, case in enumerate(cases[:: max(1, len(cases) // 12)]):
        assert [c.name for c in select(cases, [case.name])] == [case.name]
        found = CATALOG.case(case.name) if place else case_named(case.name)  # which reads all headers of the operator
        assert (found.name, found.problem, found.config) == (case.name, case.problem, case.config)


def test_a_printed_name_pasted_back_gives_that_case_alone(cli: Cli) -> None:
    names = cli("list", "cases", "full", "--backend", "cpu").stdout.splitlines()
    name = max(names, key=len)
    assert cli("list", "cases", "full", "--backend", "cpu", "--case", name).stdout.splitlines() == [name]
    few = cli("list", "cases", "full", "--backend", "cpu", "--case", "sum/*", "--case", name).stdout.splitlines()
    assert few == [n for n in names if n.startswith("sum/") or n == name]
