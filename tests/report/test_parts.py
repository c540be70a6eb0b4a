"""The terminal table, the ladder and the small pieces of charts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.variant import Variant
from opbench.report import ladder_readme, write_report
from opbench.report.charts.chart import shorten, variant_styles
from opbench.report.charts.histogram import BARS, histogram, samples_beyond_axis
from opbench.report.charts.svg import spread_positions
from opbench.report.ladder import in_teaching_order, ladders_overview, measured_problems
from opbench.report.run.sections import sections
from opbench.report.run.sentences import library_comparison
from opbench.results.files import Run
from opbench.results.rows import rows
from support.builders.runs import CEILINGS, cpu_run, matmul_run, relu_run, remeasured, result, run
from support.checks.pages import printed


def test_the_terminal_table_holds_the_facts() -> None:
    text = printed(relu_run())
    assert "\x1b" not in text
    ranking = [line for line in text.splitlines() if "vec4" in line or "naive" in line]
    assert ranking[0].split() == [
        "1", "vec4", "2.20", "ms", "1.0", "%", "40", "3.64", "TB/s", "91", "%", "1.50×", "1.10×", "BLOCK=256",
    ]  # fmt: skip
    assert "2.64 ms !" in ranking[1], "a warning leaves a mark"
    assert "! noisy: 1 case; the median is uncertain" in text, "and its advice stands once at the end"
    assert "relu(n=1000000000)  6 of 9 right" in text
    assert (
        text.index("invalid  cheat: impossible")
        < text.index("typo.cu(12): error")
        < text.index("failed  typo")
        < text.index("naive")
    )
    assert text.index("naive") < text.index("unsupported  wgmma: needs compute capability 9.0a")
    assert text.splitlines()[-1] == "10 cases: 6 right, 1 wrong, 1 failed, 1 invalid, 1 unsupported"


def test_a_pipe_has_a_case_on_each_line() -> None:
    config = {f"PARAMETER_{i}": i for i in range(9)}
    line = next(x for x in printed(run([result("naive", 1.0, config=config)])).splitlines() if "naive" in x)
    assert line.endswith("PARAMETER_7=7 PARAMETER_8=8") and len(line) > 120


def test_a_narrow_terminal_has_the_config_below() -> None:
    config = {"BLOCK": 256, "BLOCKS_PER_SM": 8, "UNROLL": 4}
    found = run([result("grid_stride_vec4", 1.0, config=config), result("naive", 2.0)])
    lines = printed(found, terminal=True).splitlines()
    at = next(i for i, line in enumerate(lines) if "grid_stride_vec4" in line)
    assert lines[at + 1].split() == ["BLOCK=256", "BLOCKS_PER_SM=8", "UNROLL=4"]
    assert max(map(len, lines)) <= 80
    wide = printed(found, 120, terminal=True).splitlines()
    assert any("grid_stride_vec4" in line and "UNROLL=4" in line for line in wide)
    text = printed(matmul_run(), terminal=True)
    assert max(len(line) for line in text.splitlines() if "unsupported" not in line) <= 80


def with_kernels(found: Run) -> Run:
    """The run on a clock that knows its offset."""
    found.results = [
        remeasured(r, kernel_s=r.measurement.median_s - 1e-3) if r.measurement else r for r in found.results
    ]
    return found


def test_the_kernels_own_time_stands_beside_the_span_where_there_is_room() -> None:
    assert "GPU time" in printed(relu_run()) and "kernel" not in printed(relu_run())
    text = printed(with_kernels(relu_run()), width=90, terminal=True)
    assert re.search(r"GPU time +± 95 % +n +kernel", text)
    assert re.search(r"vec4 +2.20 ms +1.0 % +40 +1.20 ms", text)
    narrow = printed(with_kernels(relu_run()), width=60, terminal=True)
    assert "GPU time" in narrow and "kernel" not in narrow


def test_the_terminal_table_takes_every_run() -> None:
    assert "no results" in printed(run([]))
    assert "right" in printed(cpu_run()) and "median" not in printed(cpu_run())
    assert "lower bound on an H200" in printed(cpu_run())
    assert "[bold]x" in printed(run([result("naive", status="failed", reason="[bold]x")])), "no markup in reasons"
    assert "v" * 90 in printed(run([result("v" * 90, 1.0)]))


def variant(name: str, builds_on: str = "", suffix: str = ".cu") -> Variant:
    return Variant(
        Path(f"/somewhere/relu/{name}{suffix}"), "relu", name, f"the {name} way | with a bar", "why", builds_on
    )


LADDER = [
    variant("vec4", "grid_stride"),
    variant("naive"),
    variant("torch", suffix=".py"),
    variant("unrolled", "grid_stride"),
    variant("grid_stride", "naive"),
    variant("never_run", "vec4"),
]


def test_a_page_says_how_often_the_library_is_beaten(tmp_path: Path) -> None:
    found = matmul_run()
    [lib, *_] = [r for r in found.results if r.variant == "cublas"]
    found.results[found.results.index(lib)] = remeasured(lib, median_s=1e-9, low_s=1e-9, high_s=1e-9)
    page = write_report(found, tmp_path, "h200")[0].read_text()
    said = "Of 3 problems with a library’s time, the best own variant is faster on 0, the library on 3."
    assert said.replace("’", "&#39;") in page.partition("<nav")[0]
    assert library_comparison(sections(rows(relu_run()))) == "", "one problem says so itself"


def test_a_share_names_its_peak_where_a_table_has_several(tmp_path: Path) -> None:
    found = matmul_run((2048,))
    page = write_report(found, tmp_path / "one", "h200")[0].read_text()
    assert '<div class="sub">of ' not in page, "all shares are of one peak"
    shown = next(r for r in found.results if r.variant == "warp_tiled" and r.config == {"TILE": 16})
    split, found.ceilings = (
        replace(shown, unit="tf32/3"),
        Peaks.from_json({**CEILINGS, "matrix_flops_per_s": {"tf32": 400e12}}),
    )
    found.results[:] = [split if r.case == split.case else r for r in found.results]
    page = write_report(found, tmp_path / "several", "h200")[0].read_text()
    assert page.count('<div class="sub">of 3×tf32</div>') == 1 and '<div class="sub">of fp32</div>' in page


def test_variants_stand_above_what_they_build_on_and_libraries_last() -> None:
    assert [v.name for v in in_teaching_order(LADDER)] == [
        "naive",
        "grid_stride",
        "unrolled",
        "vec4",
        "never_run",
        "torch",
    ]
    assert {v.name for v in in_teaching_order([variant("a", "b"), variant("b", "a")])} == {"a", "b"}


def readme(
    operator: str, title: str, variants: Sequence[Variant], runs: Sequence[Run], layouts: Sequence[str] = ()
) -> str:
    """The README of an operator with the problems that are chosen of some runs."""
    measured = measured_problems(operator, runs, {variant.name for variant in variants})
    return ladder_readme(operator, title, variants, measured, layouts)


def test_the_ladder_is_markdown_from_committed_runs() -> None:
    text = readme("relu", "relu: out = max(x, 0).", LADDER, [relu_run()])
    assert text == readme("relu", "relu: out = max(x, 0).", LADDER[::-1], [relu_run()])
    assert "/somewhere" not in text and text.startswith("# relu\n\nrelu: out = max(x, 0).\n")
    assert "run `quick` of 2026-01-02T03:04:05+00:00" in text and "NVIDIA H200" in text
    lines = [line for line in text.splitlines() if line.startswith("| [`vec4`]")][1:]
    assert lines == ["| [`vec4`](vec4.cu) | 2.20 ms | 3.64 TB/s | 91 % (memory) | 1.50× | 1.10× | `[BLOCK=256]` |"]
    assert "Not measured here: `never_run`." in text
    assert "racy" not in text and "![" not in text, "an uncommitted run has no chart to show"


def test_the_ladder_names_the_peaks_of_the_products_that_its_table_shows() -> None:
    peaks = {**CEILINGS, "matrix_flops_per_s": {"bf16": 700e12, "f16": 690e12}}
    results = [result("naive", 5e-3, flops=10**12), result("vec4", 2e-3, flops=10**12, precision="bf16")]
    text = readme("relu", "", LADDER, [run(results, ceilings=peaks)])
    assert "Measured peaks: DRAM 4.00 TB/s, fp32 50.0 TFLOP/s, bf16 700 TFLOP/s." in text


def test_every_variant_shows_its_speedup() -> None:
    text = readme("relu", "", LADDER, [relu_run()])
    variants = [line for line in text.partition("## `")[0].splitlines() if line.startswith("| [")]
    assert [line.split("`")[1] for line in variants] == [v.name for v in in_teaching_order(LADDER)]
    assert variants[0].endswith("| 4.02 ms (first variant) |")
    assert "| **1.00×** over `grid_stride`" in variants[2]
    assert variants[3] == r"| [`vec4`](vec4.cu) | the vec4 way \| with a bar | **1.50×** over `grid_stride` |"
    assert variants[5].endswith("| 2.42 ms |"), "a library builds on no variant"


def test_the_ladder_draws_what_builds_on_what() -> None:
    drawn = readme("relu", "", LADDER, []).split("```")[1].split("\n")[1:-1]
    assert drawn == ["naive → grid_stride", "├─ vec4 → never_run", "└─ unrolled"]
    circle = readme("relu", "", [variant("a", "b"), variant("b", "a"), variant("c")], [])
    assert circle.split("```")[1].split("\n")[1:-1] == ["c", "a", "b"]


def test_variants_have_a_table_for_each_layout_that_they_serve() -> None:
    both = replace(variant("both"), supports={"layout": ("nchw", "nhwc")})
    last = replace(variant("last", "both"), supports={"layout": ("nhwc",)})
    text = readme("conv", "", [both, last, variant("plain", "both")], [], ("nchw", "nhwc"))
    first, second = text.split("### `layout=")[1:]
    assert first.startswith("nchw`") and "[`both`]" in first and "[`plain`]" in first and "[`last`]" not in first
    assert second.startswith("nhwc`") and "[`both`]" in second and "[`last`]" in second and "[`plain`]" not in second
    assert "### " not in readme("relu", "", LADDER, [])


def test_a_committed_run_shows_its_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opbench.report.ladder.shipped_folder", lambda name: tmp_path / name)
    found = relu_run()
    found.folder = tmp_path / "reports" / "h200" / "quick"
    found.folder.mkdir(parents=True)
    assert "![" not in readme("relu", "", LADDER, [found])
    (found.folder / "relu-1.png").touch()
    assert "](../../reports/h200/quick/relu-1.png)" in readme("relu", "", LADDER, [found])


def test_the_ladder_without_a_run_lists_the_variants() -> None:
    text = readme("relu", "", LADDER, [])
    assert "No committed run has measured it yet." in text and "[`vec4`](vec4.cu)" in text
    assert "No committed run" in readme("relu", "", LADDER, [cpu_run()]), "a cpu run has no times"


def test_of_two_runs_of_a_problem_the_ladder_shows_the_one_with_more_variants() -> None:
    h100 = {"gpu": "NVIDIA H100 80GB HBM3", "driver": "580.0", "sm_count": 132}
    naive, vec4 = result("naive", 4e-3), result("vec4", 2e-3)
    fewer, more = run([naive], environment=h100), run([result("naive", 5e-3), vec4])
    for runs in ([fewer, more], [more, fewer]):
        text = readme("relu", "", LADDER, runs)
        assert "Measured on NVIDIA H200" in text and "H100" not in text
    alike = run([result("naive", 5e-3)])
    assert "Measured on NVIDIA H100" in readme("relu", "", LADDER, [fewer, alike]), "of equal ones the first"
    (row,) = ladders_overview(["relu"], [fewer, more]).rows
    assert (row.name, row.target, row.cells[0]) == ("relu", "relu/README.md", "H200")


def test_the_ladder_shows_three_problems_and_every_variant() -> None:
    found = matmul_run((256, 512, 1024, 2048))
    text = readme("matmul", "", [], [found])
    assert text.count("## `") == 3 and "(m=256," not in text
    found.results.append(result("by_columns", 1.0, operator="matmul", problem="(m=8,order=col)", nbytes=8, flops=8))
    assert "## `(m=8,order=col)`" in readme("matmul", "", [], [found])


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_labels_keep_their_distance(wanted: list[float]) -> None:
    placed = spread_positions(sorted(wanted), 10, 0, 1000)
    assert all(b - a >= 10 - 1e-6 for a, b in itertools.pairwise(placed))
    assert all(-1e-6 <= y <= 1000 for y in placed)


def test_labels_with_room_stay_where_they_are() -> None:
    assert spread_positions([10, 50, 90], 10, 0, 100) == [10, 50, 90]


def bars(text: str) -> list[float]:
    """Heights of a histogram's bars."""
    return [float(height) for height in re.findall(r"v-([\d.]+)h", text)]


@pytest.mark.parametrize(
    "samples", [[], [1.0], [1.0, 1.0], [3.0, 1.0, 2.0] * 100, [0.0, 0.0, 0.0], [1e-6] * 50 + [9.0]]
)
def test_a_histogram_never_fails(samples: list[float]) -> None:
    text = histogram(samples)
    assert (text == "") == (len(samples) < 2)
    assert len(bars(text)) <= BARS and "nan" not in text and "inf" not in text


def test_looks_are_distinct() -> None:
    assert len(set(variant_styles([str(i) for i in range(40)]).values())) == 40


def test_long_names_lose_their_middle() -> None:
    assert shorten("a" * 20 + "b" * 30, 20) == "a" * 10 + "…" + "b" * 9


def test_a_histogram_has_an_axis_with_its_unit() -> None:
    text = histogram([1.00e-3, 1.10e-3, 1.10e-3, 1.20e-3])
    assert re.findall(r">([^<>]+)</text>", text) == ["1.00", "1.20 ms"]
    assert bars(text)[1] == 2 * bars(text)[0] == 2 * bars(text)[2]
    assert len(bars(histogram([1 + i / 1e5 for i in range(100)]))) <= 3, "a tenth of a percent is all but one bar"
    assert len(bars(histogram([1 + i / 1e3 for i in range(100)]))) == BARS


def test_an_odd_sample_does_not_press_the_others_into_one_bar() -> None:
    samples = [1 + i / 1e3 for i in range(100)] + [5.0]
    assert len(bars(histogram(samples))) > BARS / 2 and samples_beyond_axis(samples) == 1
    assert samples_beyond_axis(samples[:-1]) == 0
