"""The chart of speedups over the library: its order, its colours, and when there is none."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from opbench.report import write_report
from opbench.report.charts.libraries import (
    FASTER,
    MIN_TICK_DISTANCE,
    SLOWER,
    TIE,
    against_libraries_chart,
    readable_ticks,
    row_labels,
)
from opbench.report.run.sections import Section, sections
from opbench.results.files import Run
from opbench.results.rows import rows
from support.builders.runs import result, run


def compared(ratios: list[float]) -> Run:
    """A run with one problem for each speedup over the library."""
    found = []
    for number, ratio in enumerate(ratios):
        problem = {"problem": f"(n={number})"}
        found += [result("own", 1e-3, **problem), result("torch", 1e-3 * ratio, library=True, **problem)]
    return run(found)


def test_the_largest_speedup_is_first_and_colours_tell_who_is_faster() -> None:
    chart = against_libraries_chart(sections(rows(compared([0.5, 3.0, 1.0001, 2.0]))))
    assert chart is not None
    axes = chart.figure.axes[0]
    dots = {line.get_gid(): line.get_color() for line in axes.lines if line.get_gid()}
    assert dots == {"p0": FASTER, "p1": FASTER, "p2": TIE, "p3": SLOWER}
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "relu n=1",
        "relu n=3",
        "relu n=2",
        "relu n=0",
    ]
    assert "torch" in chart.points["p0"] and "3.00×" in chart.points["p0"]


def test_ticks_stay_apart_and_keep_one() -> None:
    for low, high in ((0.3, 22.0), (0.85, 1.2), (0.012, 90.0), (0.6, 4.0)):
        ticks = readable_ticks(low, high)
        assert 1 in ticks and ticks == sorted(ticks)
        gaps = [math.log(b / a) / math.log(high / low) for a, b in itertools.pairwise(ticks)]
        assert all(gap > MIN_TICK_DISTANCE for gap in gaps), (ticks, gaps)


def test_labels_name_the_axes_in_which_problems_of_an_operator_differ() -> None:
    problems = [("decode", "(heads=32,keys=8192,dtype=bf16)"), ("decode", "(heads=32,keys=4096,dtype=bf16)"),
                ("decode", "(heads=32,keys=4096,dtype=bf16,causal=yes)"), ("relu", "(n=7)")]  # fmt: skip
    shown = [Section(operator, problem, [], [], [], []) for operator, problem in problems]
    labels = row_labels(shown)
    assert labels == ["decode keys=8192", "decode keys=4096", "decode keys=4096 causal=yes", "relu n=7"]
    twins = [("decode", f"(batch={b},heads={b},keys={k},dtype=bf16)") for b in (1, 2) for k in (64, 128)]
    labels = row_labels([Section(operator, problem, [], [], [], []) for operator, problem in twins])
    assert len(set(labels)) == 4 and all(len(label) < len("decode batch=heads=1 keys=128") for label in labels)
    default = [("decode", "(keys=64)"), ("decode", "(keys=64,causal=yes)")]
    labels = row_labels([Section(operator, problem, [], [], [], []) for operator, problem in default])
    assert labels == ["decode keys=64", "decode causal=yes"]


def test_a_long_label_is_not_cut() -> None:
    problem = {"problem": "(batch=2,channels=320,pixels=4096,groups=32,layout=nhwc,dtype=bf16,activation=silu)"}
    chart = against_libraries_chart(sections(rows(run(
        [*compared([0.5, 3.0, 2.0]).results, result("own", 1e-3, operator="groupnorm", **problem),
         result("torch", 2e-3, operator="groupnorm", library=True, **problem)]
    ))))  # fmt: skip
    assert chart is not None
    label = next(text for text in (t.get_text() for t in chart.figure.axes[0].get_yticklabels()) if "group" in text)
    assert "\n" in label and label.replace("\n", " ") in [bar.name for bar in chart.bars]


def test_the_chart_comes_before_the_first_table(tmp_path: Path) -> None:
    files = [path.name for path in write_report(compared([0.5, 3.0, 1.1, 2.0]), tmp_path)]
    html = (tmp_path / "report.html").read_text()
    assert "libraries.png" in files and html.index("Speedup over the library") < html.index("<table")


def test_three_problems_need_no_chart() -> None:
    assert against_libraries_chart(sections(rows(compared([0.5, 3.0, 2.0])))) is None
