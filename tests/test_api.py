"""The Python interface: what a notebook calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import opbench
from opbench import api
from opbench.errors import UsageError
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.results.files import Run
from opbench.results.header import RecordedTiming
from opbench.running import targets
from opbench.running.options import RunSetup
from opbench.running.runner import Progress
from support.checks.errors import Refusal, refuses
from support.common import CATALOG


def test_run_load_and_check_agree(tiny_suite: Path) -> None:
    told: list[Progress] = []
    run = opbench.run(tiny_suite, backend="cpu", out=tiny_suite.parent / "out", tell=told.append)
    table = opbench.load(tiny_suite.parent / "out")
    assert list(table.case) == [r.case for r in run.results] and set(table.status) == {"right"}
    assert table.time_s.isna().all(), "the cpu backend has no times"
    assert told[0].phase == "build" and (told[-1].phase, told[-1].done, told[-1].total) == ("done", 8, 8)
    assert [p.done for p in told] == sorted(p.done for p in told)
    checked = opbench.check(["relu/scalar"], random_shapes=0, cases=["*(n=7)", "*(n=1)"][1:])
    assert {r.problem for r in checked} == {"(n=1)"}


def test_cases_are_chosen_by_name_and_glob(tiny_suite: Path) -> None:
    out = tiny_suite.parent / "out"
    chosen = ["relu/vec4[BLOCK=128](n=7)", "relu/scalar*(n=1000)"]
    run = opbench.run(tiny_suite, backend="cpu", out=out, cases=chosen, report=False)
    assert [r.case for r in run.results] == [
        "relu/scalar[BLOCK=256](n=1000)", "relu/scalar[BLOCK=128](n=1000)", "relu/vec4[BLOCK=128](n=7)",
    ]  # fmt: skip
    assert not (out / "report.html").exists()
    rest = opbench.run(tiny_suite, backend="cpu", out=out, resume=True, report=False)
    assert len({r.case for r in rest.results}) == len(rest.results) == 8


def test_the_number_of_samples_overrides_that_of_the_suite_and_is_recorded(tiny_suite: Path) -> None:
    def timing(**options: int) -> RecordedTiming:
        out = tiny_suite.parent / f"out{len(options)}"
        run = opbench.run(tiny_suite, backend="cpu", out=out, cases=["relu/scalar*(n=7)"], report=False, **options)
        return run.header.timing

    usual, chosen = timing(), timing(samples=1000)
    assert usual.max_samples == 200 and (chosen.min_samples, chosen.max_samples) == (1000, 1000)
    assert usual.budget_s and chosen.budget_s == pytest.approx(5 * usual.budget_s)


def test_a_refused_run_leaves_nothing_behind(tiny_suite: Path) -> None:
    out = tiny_suite.parent / "out"
    for arguments in ({"gpu": "h20"}, {"cases": ["none"]}, {"variants": ["nowhere"]}, {"backend": "gpu"}):
        with pytest.raises(UsageError):
            opbench.run(tiny_suite, **{"backend": "cpu", "out": out, **arguments})  # type: ignore[arg-type]
    assert not out.exists()


def test_the_same_seed_gives_the_same_shapes_and_another_others() -> None:
    def problems(seed: int) -> list[str]:
        return [str(c.problem) for c in targets.cases_to_check(CATALOG, "matmul/coalesced", 4, seed)]

    assert problems(1) == problems(1) != problems(2)
    assert set(map(str, CATALOG.operator("matmul").examples())) & set(problems(1))


@pytest.mark.parametrize("name", ["relu/scalar[BLOCK=512](n=3)", "matmul/coalesced(m=2,n=3,k=4)"])
def test_a_case_is_found_by_its_name(name: str) -> None:
    assert case_named(name).name.split("(")[1] == name.split("(")[1]
    assert case_named(case_named(name).name) == case_named(name)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("relu", Refusal("not-a-case")),
        ("relu/scalar", Refusal("not-a-case")),
        ("relo/scalar(n=3)", Refusal("unknown-name", "operator", "relo")),
        ("relu/scaler(n=3)", Refusal("unknown-name", "variant", "scaler")),
        ("relu/scalar(m=3)", Refusal("unknown-name", "axis", "m", ("dtype", "n"))),
        ("relu/scalar(n=x)", Refusal("not-allowed", "n", "x")),
        ("relu/scalar(n=0)", Refusal("empty-tensor", "x", (0,))),
        ("relu/scalar()", Refusal("missing-axis", "n")),
        ("relu/scalar[BLOCK=3](n=3)", Refusal("no-such-config", "relu/scalar", "BLOCK=3")),
    ],
)
def test_the_error_of_a_case_that_does_not_exist_names_the_wrong_part(name: str, refusal: Refusal) -> None:
    with refuses(refusal):
        case_named(name)


def test_importing_opbench_is_cheap_and_its_names_are_complete() -> None:
    code = (
        "import sys, opbench; assert not {'numpy', 'pandas', 'matplotlib', 'click'} & set(sys.modules), 'heavy'; "
        "from opbench import *; print(run.__name__, check.__name__, load.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("run check load\n", "")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        opbench.nothing  # noqa: B018


PER_PROBLEM = """\
// /// opbench
// title = "one module for each problem"
// operator = "relu"
// tune = { BLOCK = [32, 64, 96, 128, 160, 192] }
// define = { SIZE = "n" }
// launch = [{ kernel = "mine", grid = ["cdiv(n, BLOCK)"], block = ["BLOCK"], args = ["x", "out"] }]
// ///
extern "C" __global__ void mine(const float* x, float* out) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < SIZE) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
"""


def test_configs_take_turns_where_each_problem_is_a_module_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PER_PROBLEM)
    every = targets.cases_to_check(CATALOG, path, 3, 1)
    assert len(every) == len({case.request() for case in every}) > targets.MAX_MODULES
    notes: list[str] = []
    kept = targets.cases_to_check(CATALOG, path, 3, 1, every=False, note=notes.append)
    assert len(notes) == 1 and f"{len(kept)} of {len(every)} pairs" in notes[0] and "--all" in notes[0]
    assert len(kept) < 0.7 * len(every) and set(map(str, kept)) <= set(map(str, every))
    shapes = {case.problem for case in every} - set(CATALOG.operator("relu").examples())
    for config in every[0].variant.configs:
        problems = [case.problem for case in kept if case.config == config]
        assert len(problems) >= 3 and shapes & set(problems), "each config meets examples and a random shape"
    assert {case.problem for case in kept} == {case.problem for case in every}
    # What is the same module for all problems is checked on all of them.
    alike = tmp_path / "alike.cu"
    alike.write_text(PER_PROBLEM.replace('"n" }', '"7" }'))
    assert len(targets.cases_to_check(CATALOG, alike, 3, 1, every=False)) == len(every)
    # A case that is named is checked, whoever's turn it is.
    left_out = next(case.name for case in every if case not in kept)
    assert [r.case for r in opbench.check([path], random_shapes=3, seed=1, cases=[left_out])] == [left_out]
    monkeypatch.setattr(targets, "MAX_MODULES", len(every))
    assert len(targets.cases_to_check(CATALOG, path, 3, 1, every=False)) == len(every)


@pytest.mark.parametrize(
    ("patterns", "searched"),
    [
        (["sum/*", "relu/vec4[BLOCK=256](n=1021)"], ["relu", "sum"]),
        (["relu/*(n=31)", "*(n=31)"], CATALOG.operator_names()),
        (["rel*/vec4"], CATALOG.operator_names()),
        ([], CATALOG.operator_names()),
    ],
)
def test_a_check_without_targets_makes_the_cases_of_the_operators_that_its_patterns_name(
    patterns: list[str], searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def cases_to_check(catalog: object, target: str, *others: object) -> list[Case]:
        made.append(target)
        return targets.cases_to_check(CATALOG, target, 0, 1) if target in ("relu", "sum") else []

    monkeypatch.setattr(api, "cases_to_check", cases_to_check)
    monkeypatch.setattr(api, "check_cases", lambda cases, options, on_progress: [])
    api.check([], cases=patterns)
    assert made == searched


@pytest.mark.parametrize(("backend", "workers"), [("cpu", 5), ("cuda", 1)])
def test_a_run_without_times_uses_every_core(
    tiny_suite: Path, backend: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def run_suite(suite: object, options: RunSetup, *others: object) -> Run:
        seen.append(options.workers)
        raise UsageError("enough")

    monkeypatch.setattr(api, "run_suite", run_suite)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    with pytest.raises(UsageError, match="enough"):
        api.run(tiny_suite, backend=backend, report=False)
    assert seen == [workers]
