"""Whole runs compared: their order, exit codes, words, pages and the command."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.errors import UsageError
from opbench.report.comparison import (
    MAX_LENGTH,
    answer_sentence,
    comparison_lines,
    has_times,
    interval_mark,
    method_sentence,
    to_markdown,
    to_page,
)
from opbench.results.comparison import Change, NotComparable, compare_runs
from opbench.results.files import read_run
from opbench.results.header import RecordedTiming
from opbench.timing import stats
from support.builders.runs import elsewhere, measured, noisy, pair, remeasured, result, run, written
from support.checks.errors import refuses
from support.common import ROOT, Cli


def test_the_worst_comes_first_and_nothing_is_dropped() -> None:
    base, new = pair()
    found = compare_runs(base, new)
    order = [(re.sub(r"relu/|\(.*", "", c.case), str(c.change)) for c in found.cases]
    assert order == [
        ("breaks", "BROKEN"), ("much_slower", "SLOWER"), ("slower", "SLOWER"), ("unsure", "UNDECIDED"),
        ("faster", "FASTER"), ("fixed", "FIXED"), ("same", "SAME"), ("untimed", "RIGHT"),
    ]  # fmt: skip
    assert {re.sub(r"relu/|\(.*", "", case): left_out.reason for case, left_out in found.left_out.items()} == {
        "still": "wrong (out[3]: got 1, want 2) in BASE, failed (does not compile) in NEW",
        "other": "unsupported (needs 10.0) in BASE, unsupported (needs 10.0) in NEW",
        "gone": "only in BASE",
        "new": "only in NEW, where it is wrong (out[1]: <b>)",
    }
    everything = {r.case for r in [*base.results, *new.results]}
    assert {c.case for c in found.cases} | found.left_out.keys() == everything
    assert json.loads(json.dumps(found.to_json()))["exit_code"] == 5


@pytest.mark.parametrize(
    ("kept", "code"),
    [("breaks", 5), ("slower", 1), ("unsure", 4), ("faster", 0), ("same", 0), ("fixed", 0), ("still", 6), ("gone", 6)],
)
def test_exit_codes(kept: str, code: int) -> None:
    base, new = pair()
    base.results, new.results = ([r for r in side.results if r.variant == kept] for side in (base, new))
    assert compare_runs(base, new).exit_code == code


def test_unlike_environments_are_refused_with_what_differs() -> None:
    base, new = pair()
    elsewhere(new, driver="590.1", sm_count=114, python="3.13")
    elsewhere(base, python="3.12", throttle=(), uuid="GPU-1")
    new.header = replace(new.header, timing=RecordedTiming("hot"))
    with pytest.raises(UsageError) as refused:
        compare_runs(base, new)
    for words in (
        "driver: 580.0 against 590.1",
        "sm_count: 132 against 114",
        "timing.mode: cold against hot",
        "--force",
    ):
        assert words in str(refused.value)
    assert "python" not in str(refused.value) and "uuid" not in str(refused.value), "one side does not know its own"
    found = compare_runs(base, new, force=True)
    assert [d.key for d in found.differences if not d.matters] == ["python"]


def test_runs_without_times_are_compared_by_their_verdicts() -> None:
    base, new = (run([result("v", backend="cpu")], backend="cpu", timing={"mode": m}) for m in ("cold", "hot"))
    elsewhere(new, compiler="clang++ 19")
    found = compare_runs(base, new)
    assert found.cases[0].change is Change.RIGHT and found.exit_code == 0
    assert not any(d.matters for d in found.differences) and not has_times(found)
    answer, method = (line for line, _ in comparison_lines(found)[-3:-1])
    assert answer == answer_sentence(found) and method == method_sentence(found)
    new.header = replace(new.header, backend="cuda")
    with pytest.raises(NotComparable) as refused:
        compare_runs(base, new)
    assert [(one.key, one.base, one.new) for one in refused.value.differences] == [("backend", "cpu", "cuda")]


def test_the_committed_runs_of_one_build_show_no_regression() -> None:
    quick, full = (read_run(ROOT / "reports" / "h200" / name) for name in ("quick", "full"))
    with pytest.raises(NotComparable) as refused:
        compare_runs(quick, full)
    assert ("timing.budget_s", 0.4, 0.25) in [(one.key, one.base, one.new) for one in refused.value.differences]
    found = compare_runs(quick, full, force=True)
    assert len(found.cases) == 24 and set(found.counts) <= {"SAME", "UNDECIDED"} and found.counts["SAME"] >= 20
    alone = compare_runs(quick, quick)
    assert set(alone.counts) <= {"SAME", "UNDECIDED"} and alone.differences == ()


# Words and pages --------------------------------------------------------------------------------------------------


def test_lines_leave_out_what_needs_no_eye() -> None:
    found = compare_runs(*pair())
    text = "\n".join(line for line, _ in comparison_lines(found))
    assert text.splitlines()[1].startswith("BROKEN     relu/breaks") and "relu/same" not in text
    assert text.endswith(
        "1 BROKEN, 2 SLOWER, 1 UNDECIDED, 1 FASTER, 1 FIXED, 1 SAME, 1 RIGHT of 8 cases; 4 not compared"
    )
    assert "relu/same" in "\n".join(line for line, _ in comparison_lines(found, show_all=True))
    assert "only in NEW" in text


def test_the_answer_names_the_worst_case_and_counts_its_kind() -> None:
    found = compare_runs(*pair())
    assert answer_sentence(found).startswith("1 case broke") and "`relu/breaks" in answer_sentence(found)
    slower = [case for case in found.cases if case.change is not Change.BROKEN]
    assert (
        "`" + slower[0].case + "`" in answer_sentence(replace(found, cases=tuple(slower)))
        and slower[0].change is Change.SLOWER
    )
    calm = replace(found, cases=tuple(case for case in slower if case.change is Change.FASTER))
    assert "`" not in answer_sentence(calm) and "1 became faster" in answer_sentence(calm)


def test_markdown_for_a_comment() -> None:
    found = compare_runs(*pair())
    text = to_markdown(found)
    assert text.startswith("**opbench compare**: 1 BROKEN, 2 SLOWER")
    assert "| **BROKEN** | `relu/breaks(n=1000000000)` |" in text and "got 0.0, want 1.37" in text
    assert text.index("BROKEN**") < text.index("SLOWER**") < text.index("<details>")
    assert "out\\[1\\]: \\<b>" in text, "a reason may hold anything"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {9}
    many = [measured(f"v{i}", noisy(i)) for i in range(900)]
    long = to_markdown(compare_runs(run(many), run(many)))
    assert len(long) < MAX_LENGTH + 1000 and "too many for a comment; see --out FILE.html" in long


def test_the_page_stands_alone_and_escapes() -> None:
    page = to_page(compare_runs(*pair()))
    assert page.count('class="interval"') == 5 and "&lt;b&gt;" in page and "<b>" not in page
    assert not re.search(r'(src|href)="(?!#)', page), "nothing is loaded"
    assert page.count("<script") == 1 and page.index("<script>") > page.index("How to read it"), "the filter's own"
    assert (
        page.index("relu/<wbr>breaks") if "relu/<wbr>breaks" in page else page.index("relu/breaks") < page.index("much")
    )
    nothing = to_page(compare_runs(run([]), run([])))
    assert "share no case" in nothing


@pytest.mark.parametrize("value", [0.001, 0.9, 1.0, 1.1, 50.0])
def test_a_mark_stays_on_its_picture(value: float) -> None:
    mark = str(interval_mark(stats.Ratio(value, value * 0.9, value * 1.1, 0.96), 0.01, 0.2))
    places = [float(x) for x in re.findall(r'\b(?:x|x1|x2|cx)="([\d.-]+)"', mark)]
    assert places and all(0 <= x <= 181 and math.isfinite(x) for x in places)


# The command ------------------------------------------------------------------------------------------------------


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    base, new = (written(tmp_path / name, side) for name, side in zip(("base", "new"), pair(), strict=True))
    done = cli("compare", "base", "new", "--out", "pages/compare.html")
    assert done.returncode == 5 and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[1].startswith("BROKEN") and "wrote pages/compare.html" in done.stderr
    assert "much_slower" in (tmp_path / "pages" / "compare.html").read_text().replace("<wbr>", "")
    assert json.loads(cli("compare", base, new, "--json").stdout)["counts"]["SLOWER"] == 2
    assert cli("compare", base, new, "--format", "markdown").stdout.startswith("**opbench compare**")
    lenient = cli("compare", "--threshold", "300", base, new, "--all").stdout
    assert lenient.splitlines()[-1].startswith("1 BROKEN, 1 FIXED, 5 SAME, 1 RIGHT of 8 cases")
    assert cli("compare", base, base).returncode in (0, 4)
    refused = cli("compare", base, ROOT / "reports" / "h200" / "quick")
    assert refused.returncode == 2 and "timing" not in refused.stdout and "driver: 580.0 against" in refused.stderr
    assert "new: this run is not finished" in done.stderr
    assert cli("compare", base, "nowhere").returncode == 2
    assert cli("compare", base, new, "--threshold", "0").returncode == 2


def test_real_runs_on_the_cpu(cli: Cli, relu_file: Path, tmp_path: Path) -> None:
    source = relu_file.read_text()
    longer = source.replace("// Why.", "// Why, told at length.")
    texts = {"a": source, "b": longer, "c": source.replace(": 0.0f", ": 1.0f")}
    for name, text in texts.items():
        relu_file.write_text(text)
        cli("run", "mine.cu", "--backend", "cpu", "--out", name, "--case", "relu/mine*", cwd=tmp_path)
    alike = cli("compare", "a", "b", "--json")
    found = json.loads(alike.stdout)
    assert alike.returncode == 0 and set(found["counts"]) == {"RIGHT"} and "not finished" not in alike.stderr
    if all(r.machine_code_sha256 for r in read_run(tmp_path / "a").results):
        assert {case["machine_code"] for case in found["cases"]} == {"identical"}
    broken = cli("compare", "a", "c")
    assert broken.returncode == 5 and broken.stdout.splitlines()[1].startswith("BROKEN")
    assert cli("compare", "c", "a").returncode == 0, "what was wrong and is right is no regression"


def test_clocks_stamped_beside_each_sample_are_taken_before_readings_at_the_ends() -> None:
    made = measured("a", noisy(1, count=4), clock_hz=(1e9, 2e9))
    assert made.clocks_hz == pytest.approx([1e9, 4e9 / 3, 5e9 / 3, 2e9])
    stamped = remeasured(made, clocks_hz=(1.9e9, None, 1.7e9, 1.8e9))
    assert stamped.clocks_hz == [1.9e9, 1.8e9, 1.7e9, 1.8e9], "one without a stamp gets the others' median"
    assert remeasured(stamped, clocks_hz=()).clocks_hz == made.clocks_hz


def test_cases_can_be_chosen_by_name(cli: Cli, tmp_path: Path) -> None:
    folders = [
        written(tmp_path / name, run([measured("vec4", noisy(i)), measured("scalar", noisy(i + 9))]))
        for i, name in enumerate(("base", "new"))
    ]
    found = compare_runs(read_run(folders[0]), read_run(folders[1]), cases=["relu/vec4"])
    assert [case.case for case in found.cases] == ["relu/vec4(n=1000000000)"] and not found.left_out
    done = cli("compare", *folders, "--case", "relu/sca*", "--json")
    assert [case["case"] for case in json.loads(done.stdout)["cases"]] == ["relu/scalar(n=1000000000)"]
    with refuses("no-match", "--case", value="sum/x"):
        compare_runs(read_run(folders[0]), read_run(folders[1]), cases=["relu/*", "sum/x"])


@pytest.mark.parametrize(("backend", "told"), [("cpu", []), ("cuda", ["memory_bytes"])])
def test_free_memory_of_a_cpu_is_no_difference(backend: str, told: list[str]) -> None:
    """What was free then is no setting of the machine; a GPU's memory is its size."""
    runs = [run([result("vec4", None, backend=backend)], backend=backend) for _ in range(2)]
    for found, memory_bytes in zip(runs, (24669048832, 24458182656), strict=True):
        elsewhere(found, memory_bytes=memory_bytes)
    assert [d.key for d in compare_runs(*runs).differences] == told
