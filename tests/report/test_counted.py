"""What the page of a cpu run says of compiled resources and counted traffic."""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from opbench.gpu.limits.ceilings import Peaks
from opbench.insight.levels import Levels, bounds
from opbench.report import print_table
from opbench.report.run import traffic_columns
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.results.rows import rows
from support.builders.runs import COMPILER_NAME, access, compiled, counted_run, cpu_run, result, run, traffic
from support.checks.pages import Tags, page, words
from support.common import ROOT


def summary(found: Run) -> str:
    return traffic_columns.traffic_sentence(rows(found))


def one(*lines: object, variant: str = "naive", **more: object) -> Run:
    found = run([result(variant, backend="cpu", resources={})], backend="cpu")
    found.traffic[found.results[0].case] = traffic(*lines, **more)  # type: ignore[arg-type]
    return found


def cells(html: str, variant: str) -> list[str]:
    """The text of a row's cells."""
    row = re.search(rf'<tr data-name="{variant}">(.*?)</tr>', html, flags=re.S)
    assert row
    return [words(cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row[1], flags=re.S)]


def test_one_sentence_says_who_wastes_and_who_does_not() -> None:
    assert summary(counted_run()) == (
        "Counted: uncoalesced accesses move more sectors than their bytes need: stores of `naive` (8.00×); bank "
        "conflicts in `shared` (97 % of wavefronts); atomics collide in `summing` (97 % of lanes); `padded` and "
        "`spilling` have no such access."
    )


def test_the_sentence_of_clean_or_unknown_traffic() -> None:
    assert summary(one(access("load"), access("store"))) == "Counted: `naive`'s loads and stores are coalesced."
    assert summary(one(access("load"), access("load", 1, 1, "shared"))).endswith("coalesced and nothing conflicts.")
    assert summary(one(access("load"), counted_blocks=2)).startswith("Predicted: ")
    assert summary(cpu_run()) == ""


def test_mere_alignment_and_broadcasts_are_no_fault() -> None:
    for fine in (access("load", 5, 4), access("load", 1, 4), access("store", 2, 1)):
        assert "are coalesced" in summary(one(fine)), fine


def test_many_faulty_variants_are_counted_not_listed() -> None:
    found = run([result(f"v{i}", backend="cpu") for i in range(9)], backend="cpu")
    for i, r in enumerate(found.results):
        found.traffic[r.case] = traffic(access("load", 10 + i))
    assert summary(found).endswith("loads of `v8` (4.50×), loads of `v7` (4.25×), loads of `v6` (4.00×) and 6 more.")


def test_bad_figures_have_a_sign_and_a_colour(tmp_path: Path) -> None:
    html = page(counted_run(), tmp_path)
    assert cells(html, "naive") == [
        "4.0of 4.0", "! 32.0of 4.0", "! 4.50×115 kB ÷ 25.6 kB", "–", "–", "0", "12no spills",
        "50 %limited by registers and warps",
    ]  # fmt: skip
    assert "! 97 %" in cells(html, "shared") and "0" in cells(html, "padded") and "! 97 %" in cells(html, "summing")
    assert cells(html, "spilling")[-2] == "! 25564 B spilled"
    assert html.count('<strong class="flag" title="') == 5
    assert 'title="stores touch 8.00× the ideal sectors"' in html
    assert f"registers and occupancy: {COMPILER_NAME}; traffic: counted on the cpu backend" in html
    assert not Tags(html).open


def test_the_costliest_accesses_are_named_with_their_variant() -> None:
    found = rows(counted_run())
    sectors, conflicts = traffic_columns.worst_sectors(found), traffic_columns.worst_conflicts(found)
    assert (sectors.value, sectors.below) == (8.0, "stores of naive") and sectors.bad
    assert conflicts.below == "shared" and conflicts.value == pytest.approx(0.97, abs=0.005)
    clean = rows(one(access("load")))
    assert traffic_columns.worst_sectors(clean) == traffic_columns.CountedFigure("none", value=0.0)


def test_a_column_with_one_value_is_a_phrase_of_the_caption(tmp_path: Path) -> None:
    figure = traffic_columns.CountedFigure
    apart, same = (
        {"a": figure("1"), "b": figure("2"), "c": figure()},
        {"a": figure("1"), "b": figure("3"), "c": figure()},
    )
    assert traffic_columns.split_columns(["a", "b", "c"], [apart, same]) == (["b"], {"a": figure("1")})
    assert traffic_columns.split_columns(["a", "b", "c"], [apart]) == (["a", "b"], {}), "a single row keeps its values"
    html = page(counted_run(), tmp_path)
    assert "findings 0" in html.split("<caption>", 1)[1].split("</caption>", 1)[0]


def test_what_is_not_known_is_a_dash(tmp_path: Path) -> None:
    html = page(counted_run(), tmp_path)
    assert cells(html, "uncounted") == ["–"] * 8


def test_a_run_without_resources_or_traffic_has_no_such_columns(tmp_path: Path) -> None:
    has_registers = re.compile(r"<th scope=\"col\">(<button[^>]*>)?registers")
    assert has_registers.search(page(counted_run(), tmp_path / "counted"))
    html = page(cpu_run(), tmp_path / "plain")
    assert "moved\u00a0÷ asked" not in html and not has_registers.search(html)
    bare = run([result("a", backend="cpu", resources={}, resources_missing="no NVRTC here")], backend="cpu")
    assert "registers unknown: no NVRTC here" in page(bare, tmp_path / "bare")


def test_local_memory_that_is_no_spill_is_called_so() -> None:
    row = rows(run([result("a", backend="cpu", resources=compiled(40, 0, 32))], backend="cpu"))[0]
    assert traffic_columns.figures(row)["registers"] == traffic_columns.CountedFigure(
        "40", "32 B local", "an array is in local memory", 40
    )


SOURCE = ROOT / "variants" / "transpose" / "naive_write_strided.cu"


def shipped_run(sha256: str) -> Run:
    """A run of a shipped variant on another machine, whose stores are uncoalesced."""
    text = SOURCE.read_text().splitlines()
    line = next(number for number, words in enumerate(text, start=1) if "out[" in words)
    axes: dict[str, int | str] = {"rows": 320, "cols": 320}
    case = {"operator": "transpose", "problem": "(rows=320,cols=320)", "axes": axes, "config": {"ROWS": 4}}
    found = run([result(SOURCE.stem, backend="cpu", source_sha256=sha256, **case)], backend="cpu")
    path = f"/elsewhere/{SOURCE.name}"
    lines = [access(kind, n, file=path, line=line) for kind, n in (("load", 4), ("store", 32))]
    found.traffic[found.results[0].case] = traffic(*lines)
    return found


def test_the_worst_lines_are_shown_in_their_source(tmp_path: Path) -> None:
    html = page(shipped_run(hashlib.sha256(SOURCE.read_bytes()).hexdigest()), tmp_path)
    assert re.search(r'<details class="listing" data-name="naive_write_strided\[ROWS=4\]"><summary><code>', html)
    assert len(re.findall(r"line \d+: uncoalesced, up to", words(html))) == 2, "in the summary and above the source"
    advised = r"Coalescing at line \d+: transpose a tile in shared memory.*gain.*; see transpose/shared"
    assert re.search(advised, words(html)), "the words of opbench advise"
    assert "What to do next" in html and "32.0 of 4.0" in html and "transpose/shared" in html
    assert "/elsewhere" not in html
    assert html.count("<caption>") == html.count("<table") and not Tags(html).open


@pytest.mark.parametrize("folder", ["mine/transpose", "anywhere"])
def test_a_variant_of_the_users_own_is_found_where_the_run_had_it(tmp_path: Path, folder: str) -> None:
    own = tmp_path / folder / "my_store.cu"
    own.parent.mkdir(parents=True)
    named = "" if folder == "mine/transpose" else '// operator = "transpose"\n'
    own.write_text(SOURCE.read_text().replace("// /// opbench\n", f"// /// opbench\n{named}", 1))
    found = shipped_run(hashlib.sha256(own.read_bytes()).hexdigest())
    old = found.results[0]
    found.results[0] = replace(old, variant=own.stem, case=old.case.replace(old.variant, own.stem))
    (counts,) = found.traffic.values()
    moved = replace(counts, lines=tuple(replace(line, file=str(own)) for line in counts.lines))
    found.traffic = {found.results[0].case: moved}
    html = page(found, tmp_path / "page")
    assert 'data-name="my_store[ROWS=4]"' in html and str(tmp_path) not in html


@pytest.mark.parametrize("sha256", ["", "0" * 64])
def test_another_source_than_the_one_that_ran_is_not_shown(sha256: str, tmp_path: Path) -> None:
    html = page(shipped_run(sha256), tmp_path)
    assert "<details class" not in html and "(8.00×)" in words(html)


def printed(found: Run, width: int, terminal: bool = True) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, no_color=True, highlight=False)
    print_table(rows(found), console)
    return re.sub("\x1b[^m]*m", "", stream.getvalue())


def test_the_terminal_shows_traffic_where_it_fits() -> None:
    assert "sect/load" in printed(counted_run(), 80)
    long = counted_run()
    for i, r in enumerate(long.results):
        values = vars(r) | {"variant": r.variant + "_" * 20, "case": f"long{i}"}
        long.traffic[f"long{i}"] = long.traffic.get(r.case, traffic())
        long.results[i] = Result(**values)
    assert [width for width in (60, 80, 99, 100, 140) if "sect/load" in printed(long, width)] == [100, 140]
    assert "sect/load" in printed(long, 80, terminal=False), "a pipe wraps nothing"
    assert "sect/load" not in printed(cpu_run(), 140)


def test_the_terminal_marks_what_is_bad_and_what_is_missing() -> None:
    lines = {line.split()[0]: line.split() for line in printed(counted_run(), 80).splitlines() if line.strip()}
    assert lines["naive"][-3:] == ["4.0/4.0", "!32.0/4.0", "–"]
    assert lines["shared"][-4:] == ["4.0/4.0", "4.0/4.0", "!97", "%"]
    assert lines["padded"][-1] == "0" and lines["uncounted"][-3:] == ["–"] * 3


def test_no_case_has_a_lower_bound_below_its_problems() -> None:
    """Also where the caches' model predicts fewer DRAM bytes than the problem has, and under the launch."""
    found = counted_run()
    for row in rows(found):
        own, problems = row.predicted_traffic, row.predicted
        if own and own.least and own.least_alone:
            assert problems
            assert own.least.time_s >= problems.best_s and own.least_alone.time_s >= problems.without_launch_s
    few = Levels(l1_bytes=320, l2_bytes=320, dram_bytes=32, profiled_dram_bytes=32)
    peaks = Peaks(gpu="H200", dram_bytes_per_s=4e12, launch_floor_s=1e-6)
    tightest, second, *_ = bounds(few, 0, "f32", peaks, 8_000_000)
    assert (tightest.limit, tightest.time_s) == ("compulsory", 2e-6) and second.limit == "launch"


def test_what_equals_the_ideal_is_never_bad(tmp_path: Path) -> None:
    """One lane that loads 4 bytes moves a whole sector, eight times what it asks for: as little as there is."""
    found = run([result("lone", backend="cpu")], backend="cpu")
    lone = replace(access("load", 1), lanes=1, sectors=1, ideal_sectors=1, requests=1)
    found.traffic[found.results[0].case] = traffic(lone)
    figures = traffic_columns.figures(rows(found)[0])
    assert figures["moved"].value == 8 and not any(figure.bad for figure in figures.values())


def test_a_cpu_page_begins_with_the_users_kernel_and_draws_no_roofline(tmp_path: Path) -> None:
    found = counted_run()
    found.header = replace(found.header, own=(f"{found.results[-1].operator}/{found.results[-1].variant}",))
    html = page(found, tmp_path)
    names = re.findall(r'<tr data-name="(\w+)', html)
    assert names[0] == found.results[-1].variant and "<svg" not in html.split("<main>")[1].split("<table")[0]
    assert "has no results" not in html and "has no results" in page(run([], backend="cpu"), tmp_path / "empty")
    assert "findings" not in html.split("<thead>", 1)[1].split("</thead>", 1)[0] and not Tags(html).open
