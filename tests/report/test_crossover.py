"""By how much who wins, and where: sentences and charts of fabricated times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opbench.report import write_report
from opbench.report.charts.chart import variant_styles
from opbench.report.run.crossover import (
    SizeRange,
    crossover_chart,
    find_size_ranges,
    size_axis,
    size_range_bars,
    size_range_sentences,
    time_at_size,
)
from opbench.report.run.sections import sections
from opbench.report.run.winner_lead import ratio_over, ratio_text, winners_and_next
from opbench.results.files import Run
from opbench.results.rows import Row, Times, rows
from opbench.timing.stats import median_ratio
from support.builders.runs import relu_run, result, run

SIZES = (256, 512, 1024, 2048)


def row(variant: str, time_s: float, half_width: float = 0.01) -> Row:
    """A measured row."""
    times = Times(time_s, time_s * (1 - half_width), time_s * (1 + half_width))
    return Row("o", variant, "", "(n=1)", variant, "right", "", "f32", "cuda", False, times=times)


def matmuls(half_width: float = 0.01, **times: object) -> Run:
    """A square product at several sizes; each variant's time is a function of the size."""
    found = []
    for n in SIZES:
        for variant, time_s in times.items():
            work = {"flops": 2 * n**3, "nbytes": 12 * n * n, "half_width": half_width}
            seconds = time_s(n)  # type: ignore[operator]
            found.append(result(variant, seconds, operator="matmul", problem=f"(m={n},n={n},k={n})", **work))
    return run(found)


CROSSING = matmuls(small=lambda n: 1e-8 * n**1.5, large=lambda n: 1e-8 * 724**0.5 * n)


def test_a_lead_is_a_ratio_with_its_interval() -> None:
    ratio = ratio_over(row("a", 1.0), row("b", 1.1))
    assert ratio and ratio.value == pytest.approx(1.1) and 1.08 < ratio.low < 1.1 < ratio.high < 1.12
    assert ratio_text(row("a", 1.0), row("b", 1.1)).startswith("10.0 % (8.5 to 11.")
    assert ratio_text(row("a", 1.0), row("b", 1.5)) == "50 % (48 to 52 %)"
    assert ratio_text(row("a", 1.0), row("b", 3.0)).startswith("3.00× (2.96 to 3.04×)")
    unknown = replace(row("b", 2.0), times=Times(2.0, None, 2.1))
    assert ratio_text(row("a", 1.0), unknown) == ""


def test_a_lead_from_rows_is_that_from_samples() -> None:
    made = relu_run()
    (part,) = sections(rows(made))
    first, runner_up = winners_and_next(part.groups[0])
    assert [r.variant for r in first] == ["vec4"] and runner_up and runner_up.variant == "torch"
    samples = [1.0 + 0.001 * i for i in range(20)]
    whole = median_ratio([2 * s for s in samples], samples)
    assert (whole.low, whole.high) == pytest.approx((2 * 1.005 / 1.0145, 2 * 1.0145 / 1.005), rel=5e-3)


def test_who_ties_has_no_lead() -> None:
    found = run([result("a", 1e-3), result("b", 1.005e-3), result("c", 2e-3)])
    first, runner_up = winners_and_next(sections(rows(found))[0].groups[0])
    assert [r.variant for r in first] == ["a", "b"] and runner_up and runner_up.variant == "c"


def test_the_size_is_the_one_axis_that_differs_else_the_bytes() -> None:
    def axis(*problems: tuple[str, int]) -> object:
        return size_axis(sections(rows(run([result("a", 1e-3, problem=p, nbytes=b) for p, b in problems]))))

    assert axis(("(n=1,c=3)", 1), ("(n=4,c=3)", 2), ("(n=2,c=3)", 3)) == ("n", [1.0, 4.0, 2.0])
    assert axis(("(m=8,k=8)", 1), ("(m=16,k=16)", 2), ("(m=32,k=32)", 3)) == ("m=k", [8.0, 16.0, 32.0])
    assert axis(("(m=8,k=8)", 10), ("(m=8,k=16)", 20), ("(m=32,k=4)", 30)) == ("compulsory bytes", [10.0, 20.0, 30.0])
    assert axis(("(m=8,k=8)", 100), ("(m=8,k=16)", 110), ("(m=32,k=4)", 300)) is None, "too near each other"
    assert axis(("(n=1)", 1), ("(n=2)", 2)) is None, "two sizes are no curve"
    assert axis(("(n=1)", 10), ("(n=2)", 20), ("(n=4,layout=nhwc)", 40)) is None, "a mode is no size"


def test_zones_are_where_one_wins_and_where_nobody_does() -> None:
    parts = sections(rows(CROSSING))
    lines: dict[str, list[tuple[float, Row]]] = {}
    for part, n in zip(parts, SIZES, strict=True):
        for r, _ in part.groups[0].rows:
            lines.setdefault(r.variant, []).append((n, r))
    first, undecided, last = find_size_ranges(lines)
    assert (first.variants, last.variants) == (("small",), ("large",)) and set(undecided.variants) == {"small", "large"}
    assert undecided.begin < 724 < undecided.end, "where the lines cross"
    # Both intervals are ±1 %, and the times part as the root of the size: they overlap up to 4 % of size either way.
    assert undecided.end / undecided.begin == pytest.approx(1.08, abs=0.02)
    assert (first.begin, last.end) == (256, 2048) and first.end == undecided.begin and undecided.end == last.begin
    sentences = size_range_sentences([first, undecided, last], "n")
    assert sentences[0].startswith("small wins from 256 to 69") and sentences[1].startswith("Undecided from 69")
    bars = size_range_bars([first, undecided, last], "n")
    assert [bar.value for bar in bars] == ["small", " = ".join(undecided.variants), "large"]
    assert [bar.note for bar in bars] == ["fastest", "tie", "fastest"]
    assert sum(bar.length for bar in bars) == pytest.approx(1.0), "the bars together are the axis"


def test_between_two_sizes_times_are_interpolated_on_logarithms() -> None:
    line = [(100.0, row("a", 1.0)), (400.0, row("a", 4.0))]
    found = time_at_size(line, 200.0)
    assert found and found == pytest.approx((2.0, 1.98, 2.02))
    assert time_at_size(line, 100.0) == pytest.approx((1.0, 0.99, 1.01)) and time_at_size(line, 400.0) == pytest.approx(
        (4.0, 3.96, 4.04)
    )
    assert time_at_size(line, 99.0) is None and time_at_size(line, 401.0) is None
    assert time_at_size([(100.0, row("a", 1.0))], 100.0) == pytest.approx((1.0, 0.99, 1.01))


def test_the_chart_is_drawn_and_described(tmp_path: Path) -> None:
    files = {path.name: path for path in write_report(CROSSING, tmp_path)}
    assert files["matmul-crossover.png"].read_bytes().startswith(b"\x89PNG")
    html = files["report.html"].read_text()
    assert "Which variant of matmul wins at which size" in html and "small wins from 256 to" in html
    assert " tie." in html and "url(#operator-matmul-sizes-" in html, "the undecided zone is hatched"
    assert "(m=512,n=512,k=512): large: " in html, "each mark says its problem and time"


def test_what_no_size_orders_has_no_chart() -> None:
    styles = variant_styles(["a", "b"])
    assert crossover_chart("relu", sections(rows(run([result("a", 1e-3), result("b", 2e-3)]))), "x", styles) is None
    alone = matmuls(a=lambda n: 1e-8 * n)
    assert crossover_chart("matmul", sections(rows(alone)), "x", styles) is None, (
        "one variant has nobody to win against"
    )
    assert SizeRange(1, 2, ("a",)).decided and not SizeRange(1, 2, ("a", "b")).decided
