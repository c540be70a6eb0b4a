"""A finding as it is printed: the user's file first, the accessed expression marked, 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.backend.excerpt import combines_elements, expression_at, is_update
from opbench.backend.findings import Finding, RelatedLocation, headline
from opbench.paths import short_path
from opbench.report.findings import finding_lines

READ = "        sum += tile[threadIdx.y][i] * other[i];"


def marked(text: str, column: int, name: str = "") -> str:
    """The expression that a column stands for."""
    span = expression_at(text, column, name)
    return text[span.start - 1 : span.end - 1] if span else ""


@pytest.mark.parametrize(
    ("text", "sign", "name", "expression"),
    [
        ("    out[i + 1] = f(x[i]);", "=", "", "out[i + 1]"),
        ("    left[y][x] = a[i];", "=", "", "left[y][x]"),
        ("    s.part[i] += v;", "+=", "", "s.part[i]"),
        ("    sum += left[y][i] * right[i][x];", "] *", "", "left[y][i]"),
        ("    *out += x[0];", "*out", "", "*out"),
        ("    *out += x[0];", "+=", "", "*out"),
        ("    bins[t % 4]++;", "++", "", "bins[t % 4]"),
        ("    out[i] = fmaxf(x[i], 0.0f);", "(", "x", "x[i]"),
        ("    out[i] = fmaxf(y, 0.0f);", "(", "x", "fmaxf"),
        ("    total = total + v;", "+", "total", "total"),
        ("    tile[i] = 1;", "tile", "", "tile[i]"),
    ],
)
def test_the_expression_of_a_column_is_marked(text: str, sign: str, name: str, expression: str) -> None:
    assert marked(text, text.index(sign) + 1, name) == expression


def test_a_column_outside_of_its_line_marks_nothing() -> None:
    assert [marked("  a[i] = 1;", column) for column in (0, 1, 99)] == ["", "", ""]


@pytest.mark.parametrize(
    ("text", "signs", "update"),
    [
        ("sum += x[i];", ("+=", "+="), True),
        ("out[0] += x[i];", ("]", "+="), True),
        ("bins[b]++;", ("]", "++"), True),
        ("out[0] = out[0] + v;", ("=", "] +"), True),
        ("last[t] += last[t + d];", ("+=", "];"), False),
        ("out[0] = v;", ("=", "="), False),
        ("a[i] = b[i];", ("=", "];"), False),
    ],
)
def test_an_update_reads_and_writes_one_element(text: str, signs: tuple[str, str], update: bool) -> None:
    assert is_update(text, *(text.index(sign) + 1 for sign in signs)) == update


def race() -> Finding:
    """A race in a kernel's own file."""
    return Finding(
        "shared_race",
        "read of 4 bytes of shared array 'tile' races with the write at line 12",
        "my.cu",
        15,
        block=(0, 0, 0),
        thread=(1, 0, 0),
        buffer="tile",
        count=3,
        column=READ.index("] *") + 1,
        source=READ,
        details=("No __syncthreads() orders it with the write by thread (33,0,0). " * 3,),
        related=(RelatedLocation("write by thread (33,0,0)", "my.cu", 12, 9, source="        tile[y][x] = v;"),),
    )


def test_a_finding_is_printed_from_the_users_line_to_the_help() -> None:
    first, *rest = finding_lines(race(), ("rerun: opbench check my.cu",))
    assert first == headline(race()) and first.startswith("my.cu:15: shared-race: read of 4 bytes")
    assert first.endswith(", block (0,0,0) thread (1,0,0)")
    assert rest[0] == "15 |     sum += tile[threadIdx.y][i] * other[i];"
    assert rest[0][rest[1].index("^") : rest[1].rindex("^") + 1] == "tile[threadIdx.y][i]"
    assert rest[2:4] == ["12 |     tile[y][x] = v;", "   |     ^^^^^^^^^^ write by thread (33,0,0)"]
    assert "   = seen 3 times; one is shown" in rest and "   = rerun: opbench check my.cu" in rest
    assert any(line.startswith("   = remedy: Put __syncthreads()") for line in rest)
    assert rest[-1] == "   = help: opbench help finding shared-race"
    assert max(len(line) for line in rest) <= 80


def test_a_line_of_a_header_comes_second() -> None:
    found = Finding(
        "early_overwrite",
        "this copy overwrites data",
        "/headers/tma.cuh",
        29,
        called_from=42,
        kernel_file="my.cu",
        source="    load(to);",
        caller_source="  copy(tile);",
    )
    lines = finding_lines(found)
    assert lines[0] == "my.cu:42: early-overwrite: this copy overwrites data, in tma.cuh:29"
    assert lines.index("42 |   copy(tile);") < lines.index("29 |     load(to);")


def test_json_has_the_parts_as_fields() -> None:
    fields = race().to_json()
    assert fields["rule"] == "shared-race" and str(fields["remedy"]).startswith("Put __syncthreads()")
    assert (fields["file"], fields["line"], fields["column"]) == ("my.cu", 15, READ.index("] *") + 1)
    (related,) = fields["related"]  # type: ignore[misc, attr-defined]
    assert (related["line"], related["message"]) == (12, "write by thread (33,0,0)")


def test_a_compilers_excerpt_stays_as_it_is() -> None:
    found = Finding("failed_case", "error: no such name", "my.cu", 3, details=("    3 |   bad;", "      |   ^~~"))
    assert "       3 |   bad;".strip() in "\n".join(finding_lines(found))


def test_a_long_path_leaves_room_for_the_message(tmp_path: Path) -> None:
    file = tmp_path / "a_folder_with_a_long_name" / "and_another_folder_of_a_project" / "kernel.cu"
    finding = Finding("shared_race", "read of 4 bytes races", str(file), 12)
    lines = finding_lines(finding)
    assert lines[0].startswith("…/") and "/kernel.cu:12: shared-race: read of 4 bytes races" in lines[0]
    assert len(lines[0]) <= 80
    assert any(line.endswith(f"file: {file}:12") for line in lines)
    assert headline(finding).startswith(f"{file}:12: ")


def test_a_path_is_the_shortest_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    paths = {here / "k.cu": "k.cu", here / "sub" / "k.cu": "sub/k.cu", tmp_path / "k.cu": "../k.cu"}
    assert {path: short_path(str(path), 40) for path in paths} == paths
    assert short_path("/k.cu", 40) == "/k.cu"
    assert short_path(str(here / "a" / "long" / "way" / "k.cu"), 12) == "…/way/k.cu"


@pytest.mark.parametrize(
    ("text", "combines"),
    [
        ("sums[i] += sums[i + step];", True),
        ("sums[i] = sums[i] + sums[i + step];", True),
        ("sums[i] = sums[i] + 1;", False),
        ("sums[i] += other[i + step];", False),
        ("sum += values[i];", False),
    ],
)
def test_a_step_of_a_reduction_combines_elements_of_one_array(text: str, combines: bool) -> None:
    assert combines_elements(text, 1) == combines
