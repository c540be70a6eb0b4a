"""What a folder with a run in it accepts and refuses, and what is run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opbench import api
from opbench.results.files import FILE, RunWriter
from opbench.running.runner import Progress, RunSetup, run_suite
from support.builders.two_problems import NAMES, SUITE, cases_on_disk, own_variant
from support.checks.errors import refuses, refuses_setting
from support.common import RELU, Cli


def of_run(folder: Path) -> dict[str, Any]:
    """Arguments of `api.run`."""
    return {"backend": "cpu", "variants": [folder / "mine"], "out": folder / "out", "report": False}


def test_a_folder_with_a_run_is_refused_unless_it_is_that_runs(cli: Cli, suite_file: Path) -> None:
    folder = suite_file.parent
    arguments = of_run(folder)
    api.run(suite_file, **arguments)
    before = (folder / "out" / FILE).read_bytes()
    with refuses("run-exists", FILE):
        api.run(suite_file, **arguments)
    with refuses_setting("seed", 20260, 7):
        api.run(suite_file, **arguments, resume=True, seed=7)
    other = folder / "other.toml"
    other.write_text(SUITE)
    with refuses_setting("suite", "two", "other"):
        api.run(other, **arguments, resume=True)
    suite, roots, _ = api.expand_target(suite_file, "cpu", (), [folder / "mine"])
    with refuses_setting("backend", "cpu", "cuda"):
        run_suite(suite, RunSetup("cuda", folder / "out", resume=True, roots=roots))
    done = cli("run", suite_file, "--backend", "cpu", "--variants", "mine", "--out", "out")
    assert done.returncode == 2 and "add --resume" in done.stderr
    assert (folder / "out" / FILE).read_bytes() == before


def test_only_one_opbench_writes_a_run(suite_file: Path) -> None:
    folder = suite_file.parent
    writer = RunWriter(folder / "out")
    with refuses("run-in-use", FILE):
        api.run(suite_file, backend="cpu", variants=[folder / "mine"], out=folder / "out")
    writer.close()
    RunWriter(folder / "out").close()


def test_a_suite_that_has_grown_runs_the_new_cases_only(suite_file: Path) -> None:
    folder = suite_file.parent
    arguments = of_run(folder)
    api.run(suite_file, **arguments)
    suite_file.write_text(SUITE.replace("{ n = 7 }", "{ n = 7 }, { n = 3 }"))
    told: list[Progress] = []
    run = api.run(suite_file, **arguments, resume=True, tell=told.append)
    new = [name.replace("n=7", "n=3") for name in NAMES[:3]]
    assert [p.case for p in told if p.phase == "done"] == new
    assert cases_on_disk(folder) == [r.case for r in run.results] == [*NAMES, *new]
    assert (told[-1].done, told[-1].total) == (9, 9)


def test_a_kernel_edited_since_is_run_again(suite_file: Path) -> None:
    folder = suite_file.parent
    arguments = of_run(folder)
    api.run(suite_file, **arguments)
    own_variant(folder, RELU.replace(": 0.0f", ": 1.0f"))
    run = api.run(suite_file, **arguments, resume=True)
    assert {r.case for r in run.results if r.status == "wrong"} == {NAMES[2], NAMES[5]}
    assert len(run.results) == len(NAMES) and len(cases_on_disk(folder)) == len(NAMES) + 2


def test_a_header_edited_since_makes_its_kernels_run_again(suite_file: Path) -> None:
    folder = suite_file.parent
    own_variant(folder, RELU.replace("extern", '#include "limit.cuh"\nextern').replace("0.0f;", "LIMIT;"))
    header = folder / "mine" / "relu" / "limit.cuh"
    header.write_text("#define LIMIT 0.0f\n")
    arguments = of_run(folder)
    before = api.run(suite_file, **arguments)
    assert {r.status for r in before.results} == {"right"}
    header.write_text("#define LIMIT 1.0f\n")
    run = api.run(suite_file, **arguments, resume=True)
    assert {r.case for r in run.results if r.status == "wrong"} == {NAMES[2], NAMES[5]}
    changed = {r.case for r, b in zip(run.results, before.results, strict=True) if r.source_sha256 != b.source_sha256}
    assert changed == {NAMES[2], NAMES[5]}


def test_a_kernel_edited_during_the_run_costs_its_own_cases(suite_file: Path) -> None:
    """Its result would stand under a text that did not run."""
    folder = suite_file.parent
    kernel = own_variant(folder, RELU)

    def edit(progress: Progress) -> None:
        (folder / "new.cu").write_text(RELU.replace(": 0.0f", ": 1.0f"))
        (folder / "new.cu").replace(kernel)

    arguments: dict[str, Any] = {"backend": "cpu", "variants": [folder / "mine"], "out": folder / "out"}
    run = api.run(suite_file, **arguments, report=False, tell=edit)
    assert {r.case for r in run.results if r.status == "right"} == set(NAMES) - {NAMES[2], NAMES[5]}
    reasons = [r.reason for r in run.results if r.status != "right"]
    assert all("edited after the run began" in reason for reason in reasons), reasons


def test_a_problem_too_large_for_the_machine_costs_its_own_cases(suite_file: Path) -> None:
    folder = suite_file.parent
    suite_file.write_text(SUITE.replace("{ n = 7 }", "{ n = 2000000000000 }"))
    run = api.run(suite_file, backend="cpu", variants=[folder / "mine"], out=folder / "out", report=False)
    status = {r.case: r.status for r in run.results}
    assert {s for name, s in status.items() if "(n=1000)" in name} == {"right"}
    # "wrong" where the launch itself is beyond any GPU's grid.
    assert {s for name, s in status.items() if "(n=1000)" not in name} <= {"failed", "unsupported", "wrong"}
