"""Whole judgements on the CPU: an honest kernel, cheats, replays, tasks and what is refused before anything runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.errors import EnvironmentFault, UsageError
from opbench.judging.document import VerdictDocument, read_document, to_text, write_document
from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from opbench.judging.page import verdict_lines, verdict_page
from opbench.judging.sizes import boundary_problems
from opbench.judging.task import Limits, Task, read_task
from opbench.judging.verify import compare, verify
from opbench.results.files import Run
from opbench.running.options import RunSetup
from opbench.running.runner import run_suite
from opbench.running.suite import Suite
from support.checks.errors import Refusal, refuses, refuses_version
from support.common import CATALOG, CHEATS, RELU, WRONG

QUICK = JudgeOptions(backend="cpu", drawn=1, seed=7)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "mine.cu"
    path.write_text(RELU)
    return path


@pytest.fixture(scope="module")
def accepted(kernel: Path) -> VerdictDocument:
    return judge([kernel], QUICK)


def test_a_missing_gpu_ends_a_judgement_before_any_check(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opbench.gpu.driver.device.why_missing", lambda: "no CUDA device")
    events: list[str] = []
    with refuses("needs-gpu", error=EnvironmentFault):
        judge([kernel], JudgeOptions(backend="cuda"), on_progress=lambda event: events.append(str(event)))
    assert not events


def test_an_honest_kernel_is_accepted_without_a_time(accepted: VerdictDocument) -> None:
    assert (accepted.overall, accepted.code) == ("accepted", "")
    assert accepted.seed == 7 and accepted.seed_given
    statuses = [accepted.compiles, accepted.memory_safe, accepted.race_free, accepted.right, accepted.signs]
    assert [section.status for section in statuses] == ["passed"] * 5
    assert accepted.timed.status == accepted.compared.status == "not decided" and accepted.lacking
    assert accepted.right.cases == accepted.right.right == len(accepted.cases)
    assert accepted.memory_safe.traced == len(accepted.cases)
    assert {"example", "random"} <= {size.origin for size in accepted.right.problems}
    assert accepted.right.special_inputs == ("tiny", "infinite")


def test_a_document_survives_a_file(accepted: VerdictDocument, tmp_path: Path) -> None:
    assert to_text(read_document(write_document(accepted, tmp_path))) == to_text(accepted)


def test_the_same_seed_gives_the_same_verdict(accepted: VerdictDocument, kernel: Path, tmp_path: Path) -> None:
    path = write_document(accepted, tmp_path)
    assert verify(path).differences == ()


@pytest.mark.parametrize("danger", ["trust", "task", "folder", "no_cage"])
def test_a_verdict_decides_alone_about_nothing_that_leaves_the_cage(
    danger: str, accepted: VerdictDocument, tmp_path: Path
) -> None:
    """The document may come from a stranger, who can write into it what he likes."""
    ran = tmp_path / "ran"
    for name in ("task.py", "relu/operator.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(ran)!r}, 'w')\n")
    content = json.loads(write_document(accepted, tmp_path).read_text())
    if danger in ("trust", "no_cage"):
        content["settings"][danger] = True
    elif danger == "task":
        content["submission"]["task"]["operator"] = f"torch:{tmp_path / 'task.py'}:Model"
    else:
        content["settings"]["variants"] = [str(tmp_path)]
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(content))
    flag, other = ("--no-cage", "trust") if danger == "no_cage" else ("--trust", "no_cage")
    with refuses("untrusted-verdict", "theirs.json", allowed=flag):
        verify(path, **{other: True})
    assert not ran.exists()


def test_trust_loads_python_files_and_keeps_the_cage(monkeypatch: pytest.MonkeyPatch, kernel: Path) -> None:
    """Only --no-cage switches the cage off."""
    setups: list[RunSetup] = []

    def keep(suite: Suite, setup: RunSetup, *rest: object) -> Run:
        setups.append(setup)
        raise UsageError("the setup is enough")

    def run_and_keep(suite: Suite, setup: RunSetup, *rest: object) -> Run:
        setups.append(setup)
        return run_suite(suite, setup, *rest)

    monkeypatch.setattr("opbench.judging.judge.run_suite", keep)
    for options in ({}, {"trust": True}, {"no_cage": True}):
        with pytest.raises(UsageError, match="the setup is enough"):
            judge([kernel], replace(QUICK, **options))
    monkeypatch.setattr("opbench.judging.judge.run_suite", run_and_keep)
    options = replace(QUICK, problems=("(n=5)",), trust=True, no_cage=True)
    assert judge([kernel], options).overall == "accepted"
    assert [setup.untrusted for setup in setups] == [True, True, False, False]


def test_a_secret_seed_differs_from_judgement_to_judgement(kernel: Path) -> None:
    options = replace(QUICK, seed=None)
    first, second = judge([kernel], options), judge([kernel], options)
    assert first.seed != second.seed and not first.seed_given


def test_an_edited_kernel_or_document_is_found(accepted: VerdictDocument, kernel: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine.cu"
    other.write_text(WRONG)
    path = write_document(accepted, tmp_path)
    fields = {one.field for one in verify(path, [str(other)]).differences}
    assert {"overall", "code", "submission.files[0].sha256"} <= fields
    content = json.loads(path.read_text())
    content["right"]["worst_error"] = 0.25
    path.write_text(json.dumps(content))
    assert [one.field for one in verify(path).differences] == ["right.worst_error"]


def test_a_document_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text('{"verdict": 99}')
    with refuses_version("verdict", 99):
        read_document(path)


def test_times_differ_only_if_their_intervals_do(accepted: VerdictDocument) -> None:
    from opbench.judging.document import Timed, TimedCase

    def timed(median_s: float) -> VerdictDocument:
        time = TimedCase("c", "(n=1)", median_s, 0.9 * median_s, 1.1 * median_s, 20, "cold")
        return replace(accepted, timed=Timed("passed", f"{median_s}", "GPU", (time,)))

    assert compare(timed(1.0), timed(1.1)).differences == ()
    (one,) = compare(timed(1.0), timed(2.0)).differences
    assert one.field == "timed.times[0].median_s"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("time/remembers_its_input", "unwritten-output"),
        ("time/tests_its_old_output", "uninitialised-global"),
        ("forgets_the_guard", "out-of-bounds"),
        ("does_not_compile", "does-not-compile"),
    ],
)
def test_a_cheat_is_refused(name: str, code: str) -> None:
    document = judge([CHEATS / f"{name}.cu"], QUICK)
    assert (document.overall, document.code) == ("refused", code)
    assert document.next_step.sentence and document.next_step.command.startswith("opbench ")


def test_the_page_and_the_terminal_give_the_answer_first(accepted: VerdictDocument) -> None:
    assert next(verdict_lines(accepted)).startswith("accepted: ")
    html = verdict_page(accepted)
    assert html.index("<h1>Accepted") < html.index("Sections") and str(accepted.seed) in html
    refused = judge([CHEATS / "forgets_the_guard.cu"], QUICK)
    assert "out-of-bounds" in verdict_page(refused) and next(verdict_lines(refused)).startswith(
        "refused (out-of-bounds): "
    )


# Tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_is_read_and_its_limits_hold(kernel: Path, tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text('operator = "relu"\nproblems = ["(n=777)"]\n[limits]\ntime_s = 1e-5\n')
    assert read_task(path) == Task("relu", ("(n=777)",), limits=Limits(time_s=1e-5))
    document = judge([kernel], replace(QUICK, task=path))
    assert document.overall == "not decided" and document.code == ""
    assert ("(n=777)", "named") in {(size.problem, size.origin) for size in document.right.problems}


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('operater = "relu"', Refusal("unknown-name", value="operater")),
        ("[limits]\ntime = 1", Refusal("unknown-name", value="time")),
        ("[limits]\ntime_s = -1", Refusal("not-allowed", "time_s", value=-1)),
        ('precision = "f33"', Refusal("unknown-name", "precision", value="f33")),
        ("problems = 3", Refusal("not-allowed", "problems", value=3)),
    ],
)
def test_a_bad_task_is_refused(tmp_path: Path, text: str, refusal: Refusal) -> None:
    path = tmp_path / "task.toml"
    path.write_text(text)
    with refuses(refusal):
        read_task(path)


@pytest.mark.parametrize("target", ["relu", "/", "no/such/file.json", "relu/"])
def test_a_target_that_names_no_kernel_is_a_users_error(target: str) -> None:
    with refuses("not-a-kernel-file", target):
        judge([target], JudgeOptions(backend="cpu"))


def test_a_problem_that_the_kernel_excludes_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(RELU.replace("// launch", '// requires = ["n % 4 == 0"]\n// launch'))
    document = judge([path], replace(QUICK, problems=("(n=5)",)))
    assert (document.overall, document.code) == ("refused", "unsupported-problem")


# What is refused before anything runs -----------------------------------------------------------------------------


def test_host_code_is_refused_without_trust(tmp_path: Path) -> None:
    with refuses("host-code", allowed="--trust"):
        judge(["relu/torch"], replace(QUICK, no_cage=True))
    folder = tmp_path / "relu"
    folder.mkdir()
    (folder / "operator.py").write_text((CATALOG.operator_file("relu")).read_text())
    (folder / "mine.cu").write_text(RELU)
    with refuses("replaced-reference", value="relu"):
        judge([folder / "mine.cu"], replace(QUICK, variants=(tmp_path,)))


def test_boundary_sizes_are_next_to_tiles() -> None:
    variant = CATALOG.variant("relu", "vec4")
    examples = list(CATALOG.operator("relu").examples())
    drawn = boundary_problems(variant, examples, 3, 8)
    tiles = {32, 128, 256, 512, 1024}
    assert len(drawn) == 8 and drawn == boundary_problems(variant, examples, 3, 8)
    assert all(any((p.axes["n"] + d) % t == 0 for t in tiles for d in (-1, 0, 1)) for p in drawn)  # type: ignore[operator]
    assert drawn != boundary_problems(variant, examples, 4, 8)
