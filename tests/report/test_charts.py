"""Charts: names that never lie on one another, problems told apart, no mark above its peak without a reason."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from opbench.gpu.limits.ceilings import Peaks
from opbench.report import write_report
from opbench.report.charts.bars import bars_chart
from opbench.report.charts.chart import Chart, ChartFrame, variant_styles
from opbench.report.charts.figures import rate_chart
from opbench.report.charts.problems import MAX_SHARE, over_problems, problem_labels
from opbench.report.charts.roofline import MAX_LABELS
from opbench.report.charts.svg import STYLE
from opbench.report.run.sections import sections
from opbench.results.files import Run
from opbench.results.rows import rows
from support.builders.runs import CEILINGS, matmul_run, result, run

MEASURED = Peaks.from_json(CEILINGS)
LAYERS = [
    f"(n={n},c={c},h={h},w={h},k={k},r={r},s={r},stride={stride},padding={r // 2})"
    for (n, c, h, k), (r, stride) in itertools.product(
        [(1, 3, 224, 96), (1, 1, 512, 1), (32, 96, 26, 256), (1, 384, 12, 384), (16, 64, 256, 64)],
        [(1, 1), (3, 1), (5, 1), (11, 4)],
    )
]
"""20 unrelated problems."""


def convolutions(share: float = 0.5, problems: list[str] = LAYERS, **more: object) -> Run:
    """Three variants on each problem, the library at `share` of peak on the first one."""
    found = []
    for i, problem in enumerate(problems):
        work = {"operator": "conv2d", "problem": problem, "flops": 10**12 + i, "nbytes": 10**7 + i} | more
        best = 0.02 / (share if i == 0 else 0.6)
        found += [
            result("implicit_gemm_split", 0.05 + 0.001 * i, **work),
            result("naive", 0.5, **work),
            result("torch", best, library=True, **work),
        ]
    return run(found)


def drawn(found: Run) -> Chart:
    """The overview chart of the run's only operator."""
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        chart = over_problems("conv2d", sections(rows(found)), "x", MEASURED)
    assert chart
    return chart


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that lie on one another, and texts beyond the figure's edge."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [t for t in figure.findobj(matplotlib.text.Text) if t.get_text().strip() and t.get_visible()]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts]
    beyond = [(a, "edge") for a, box in boxes if box.x0 < -1 or box.x1 > figure.bbox.x1 + 1]
    return beyond + [(a, b) for (a, box), (b, other) in itertools.combinations(boxes, 2) if box.overlaps(other)]


def test_twenty_problems_are_told_apart_and_no_names_overlap() -> None:
    chart = drawn(convolutions())
    labels = [t.get_text() for t in chart.figure.axes[0].get_yticklabels()]
    assert len(labels) == len(set(labels)) == 20
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        assert overlaps(chart.figure) == []


def test_a_long_name_above_the_roof_stays_within_the_picture() -> None:
    found = convolutions()
    for i, problem in enumerate(LAYERS):
        work = {"operator": "conv2d", "problem": problem, "flops": 10**12 + i, "nbytes": 10**7 + i}
        found.results.append(result("wgmma_persistent_bf16", 0.009, **work))
    chart = drawn(found)
    assert {t.get_text()[-1] for t in chart.figure.axes[0].texts} == {"^"}
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        assert overlaps(chart.figure) == []


def test_unrelated_problems_are_joined_by_no_line() -> None:
    chart = drawn(convolutions())
    assert all(len(line.get_xdata()) <= 2 for line in chart.figure.axes[0].lines)
    joined = [
        line for line in chart.figure.axes[0].lines if len(set(line.get_ydata())) > 1 and line.get_xdata()[0] != 1
    ]
    assert joined == []


def test_a_mark_beyond_the_roof_stays_on_the_chart_and_says_why() -> None:
    chart = drawn(convolutions(2.24, flops_are_a_floor=False))
    texts = [t.get_text() for t in chart.figure.axes[0].texts]
    assert [t for t in texts if "^" in t] == ["torch 224 % ^"]
    assert chart.figure.axes[0].get_xlim()[1] == MAX_SHARE
    assert "`torch` at 224 % of peak: FLOPs are counted by the textbook algorithm" in chart.note


def test_labels_name_every_axis_that_differs() -> None:
    assert problem_labels(["(m=8,n=8,k=8,layout=nchw)", "(m=16,n=16,k=16,layout=nchw)"]) == ["m=n=k=8", "m=n=k=16"]
    assert problem_labels(["(n=1)", "(n=1,mode=bilinear)"]) == ["default", "mode=bilinear"]
    assert problem_labels(["(n=1,c=2,k=1)", "(n=2,c=1,k=1)"]) == ["n=1 c=2", "n=2 c=1"]
    long = problem_labels(LAYERS)[-1]
    assert long == "n=16 c=64 h=w=256 k=64\nr=s=11 stride=4 padding=5"


# Bars -------------------------------------------------------------------------------------------------------------


def ranked(found: Run) -> Chart:
    """The bars of the run's only problem."""
    (part,) = sections(rows(found))
    best = sorted((row for g in part.groups for row, _ in g.rows), key=lambda row: row.time_s or 0.0)
    chart_frame = ChartFrame(MEASURED, None, {}, variant_styles([row.variant for row in best]))
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        return bars_chart(part, "x", best, chart_frame)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97, 2.24])
def test_bars_are_ranked_and_their_names_do_not_overlap(share: float) -> None:
    chart = ranked(convolutions(share, LAYERS[:1], flops_are_a_floor=False))
    names = [t.get_text() for t in chart.figure.axes[0].get_yticklabels()]
    assert sorted(names) == ["implicit_gemm_split", "naive", "torch"]
    widths = [bar.get_width() for bar in chart.figure.axes[0].patches]
    assert widths[:3] == sorted(widths[:3], reverse=True)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        assert overlaps(chart.figure) == []
    assert ("^" in chart.note) == (share > 1)


def test_each_bar_has_the_roof_of_its_own_unit() -> None:
    work = {"operator": "matmul", "flops": 10**13, "nbytes": 10**8}
    found = run(
        [result("mma", 0.05, precision="tf32", unit="tf32", **work), result("tiled", 0.3, **work)],
        ceilings=CEILINGS | {"matrix_flops_per_s": {"tf32": 400e12}},
    )
    chart = ranked(found)
    marks = sorted(line.get_xdata()[0] for line in chart.figure.axes[0].lines if line.get_linewidth() == 2.2)
    assert marks == [pytest.approx(50), pytest.approx(400)]
    assert "the peak of the unit that the variant uses" in chart.note


def test_a_section_of_one_intensity_is_no_roofline(tmp_path: Path) -> None:
    html = write_report(convolutions(0.5, LAYERS[:1]), tmp_path)[0].read_text(encoding="utf-8")
    assert "Rate of conv2d" in html and "Roofline" not in html


def test_no_text_of_a_chart_takes_a_colour_that_cannot_be_read(tmp_path: Path) -> None:
    """Colours of marks have less than 4.5:1 on white or on black; ink has 15:1 on both."""
    found = matmul_run()
    found.counters.clear()
    html = write_report(found, tmp_path)[0].read_text(encoding="utf-8")
    assert "Which variant of matmul wins" in html and "matmul over its problems" in html
    coloured = re.findall(r"<text[^>]*(?:fill: ?|fill=\")#\w+", html)
    assert coloured == []


@pytest.mark.parametrize("units", [["tf32/3", "tf32/2"], ["tf32/3", "tf32/2", "tf32"], ["tf32/3", "bf16/9"]])
def test_roofs_that_are_close_are_named_above_each_other(units: list[str]) -> None:
    work = {"operator": "matmul", "flops": 10**13, "nbytes": 10**8}
    found = run(
        [result(f"mma_{i}", 0.3 / (1 + 4 * i), unit=unit, **work) for i, unit in enumerate(["f32", *units])],
        ceilings=CEILINGS | {"matrix_flops_per_s": {"tf32": 400e12, "bf16": 1215e12}},
    )
    chart = ranked(found)
    names = {t.get_text() for t in chart.figure.axes[0].texts if not re.search("FLOP|%", t.get_text())}
    assert len(names) == len(units) + 1 and "fp32" in names
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        assert overlaps(chart.figure) == []


@pytest.mark.parametrize("count", [1, 8, 20, 24, 40])
@pytest.mark.parametrize("spacing", [1.0001, 1.02, 1.3])
def test_labels_of_twenty_points_do_not_overlap(count: int, spacing: float) -> None:
    work = {"operator": "matmul", "flops": 10**12, "nbytes": 4 * 10**10}
    found = run([result(f"a_variant_with_a_name_{i}", 0.022 * spacing**i, **work) for i in range(count)])
    counters = {row.case: {"dram_bytes": 5e10 * (1 + i % 5)} for i, row in enumerate(found.results)}
    (section,) = sections(rows(found))
    chart_frame = ChartFrame(MEASURED, None, counters, variant_styles([row.variant for row in found.results]))
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        chart = rate_chart(section, "x", chart_frame)
        assert chart is not None
        low, high = chart.figure.axes[0].get_xlim()
        unseen = [f"{tick:g}" for tick in chart.figure.axes[0].get_xticks() if not low <= tick <= high]
        assert [pair for pair in overlaps(chart.figure) if pair[0] not in unseen] == []
    named = [text for text in chart.figure.axes[0].texts if text.get_text().startswith("a_variant")]
    assert len(named) == min(count, MAX_LABELS) and MAX_LABELS >= 20
    assert ("are labelled" in chart.note) == (count > MAX_LABELS)


def test_a_faster_variant_is_farther_right_whatever_its_own_peak() -> None:
    """A library near the peak of slow units is behind a variant that reaches less of a higher peak."""
    results = [
        result(name, seconds, library=name == "cublas", problem=f"(n={n})")
        for n in (1, 2)
        for name, seconds in (("planes", 1e-3), ("cublas", 4e-3))
    ]
    shares = {"planes": 0.6, "cublas": 0.8}
    found = [
        replace(row, peak=replace(row.peak, peak_share=shares[row.variant]))
        for row in rows(run(results))
        if row.peak is not None
    ]
    chart = over_problems("relu", sections(found), "x", MEASURED)
    assert chart is not None
    speeds = {line.get_gid(): line.get_xdata()[0] for line in chart.figure.axes[0].lines if line.get_gid()}
    for gid, text in chart.points.items():
        assert speeds[gid] == pytest.approx(0.6 if "planes" in text else 0.15), text
