"""A book holds the winner of each problem, by the rule that its docstring states, and refuses what is none."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from opbench.errors import UsageError
from opbench.results.book import Book, make_book, read_book
from opbench.results.files import FORMAT, RunWriter
from opbench.results.result import Result
from support.builders.runs import result
from support.checks.command_line import refused
from support.checks.errors import Refusal, refuses
from support.common import CATALOG, Cli


def of(name: str, time_s: float, **more: Any) -> Result:
    """A case of relu that is there today."""
    return result(name, time_s, config=dict(CATALOG.variant("relu", name).configs[0]), **more)


def kept(folder: Path, results: list[Result], *, day: int = 1, mode: str = "cold", gpu: str = "NVIDIA H200") -> Path:
    """A run on disk."""
    writer = RunWriter(folder)
    environment = {"gpu": gpu, "compute_capability": "9.0"} if gpu else {}
    header = {"format": FORMAT, "opbench": "0.1.0", "started": f"2026-01-{day:02}T00:00:00+00:00"}
    writer.write(
        "run",
        {**header, "backend": "cuda" if gpu else "cpu", "environment": environment, "timing": {"mode": mode}},
    )
    for one in results:
        writer.result(one)
    writer.close()
    return folder


def winner(book: Book) -> str:
    """The variant that won the only entry."""
    (entry,) = book.entries
    return entry.winner.case.partition("[")[0]


def test_the_smallest_median_wins_and_what_cannot_be_told_from_it_is_tied(tmp_path: Path) -> None:
    run = kept(tmp_path / "a", [of("scalar", 3e-3), of("vec4", 1.005e-3), of("grid_stride", 1e-3)])
    (entry,) = make_book([run]).entries
    assert entry.winner.case.startswith("relu/grid_stride[")
    assert [tie.case.partition("[")[0] for tie in entry.ties] == ["relu/vec4"], "1 % to either side overlaps"
    assert (entry.gpu, entry.compute_capability, entry.winner.opbench) == ("NVIDIA H200", "9.0", "0.1.0")


def test_what_was_wrong_or_varies_or_is_gone_does_not_win(tmp_path: Path) -> None:
    wrong = of("vec4", 0.0, status="wrong", reason="differs")
    varies = result(
        "grid_stride_vec4", 1e-9, operator="sum", config=dict(CATALOG.variant("sum", "grid_stride_vec4").configs[0])
    )
    assert not CATALOG.variant("sum", "grid_stride_vec4").reproducible
    run = kept(tmp_path / "a", [of("scalar", 3e-3), wrong, varies, result("gone_since", 1e-9)])
    book = make_book([run])
    assert winner(book) == "relu/scalar"
    assert ["vary" in book.notes[0], "no such variant" in book.notes[1]] == [True, True]


def test_a_newer_measurement_of_a_case_replaces_an_older_one_in_any_order(tmp_path: Path) -> None:
    old = kept(tmp_path / "old", [of("vec4", 1e-3), of("scalar", 2e-3)], day=1)
    new = kept(tmp_path / "new", [of("vec4", 4e-3)], day=2)
    for order in itertools.permutations([old, new]):
        assert winner(make_book(order)) == "relu/scalar", "vec4's 1 ms is an older measurement of the same case"


def test_books_merge_with_runs_and_with_books(tmp_path: Path) -> None:
    fast, slow = kept(tmp_path / "fast", [of("vec4", 1e-3)]), kept(tmp_path / "slow", [of("scalar", 2e-3)], day=2)
    other = kept(tmp_path / "other", [of("scalar", 5e-3)], gpu="NVIDIA H100 80GB HBM3")
    for name, run in (("fast.json", fast), ("slow.json", slow), ("other.json", other)):
        make_book([run]).save(tmp_path / name)
    books = [tmp_path / "fast.json", tmp_path / "slow.json", tmp_path / "other.json"]
    merged = {order: make_book(order).entries for order in itertools.permutations(books)}
    assert len(set(merged.values())) == 1, "the order decides nothing"
    book = make_book([fast, *books[1:]])
    assert len(book.entries) == 2, "one on each GPU"
    assert book.find("relu", "(n=1000000000)", gpu="NVIDIA H200").winner.case.startswith("relu/vec4[")  # type: ignore[union-attr]
    with refuses("several-gpus"):
        book.find("relu", "(n=1000000000)")


def test_find_takes_the_fastest_precision_that_is_allowed(tmp_path: Path) -> None:
    run = kept(tmp_path / "a", [of("scalar", 3e-3), of("vec4", 1e-3, precision="tf32")])
    book = make_book([run])
    allowed = {("f32",): "scalar", ("f32", "tf32"): "vec4"}
    for precisions, name in allowed.items():
        entry = book.find("relu", "(n=1000000000)", precisions=precisions)
        assert entry and f"/{name}[" in entry.winner.case
    assert book.find("relu", "(n=7)") is None


def test_a_library_stands_beside_the_winner_and_never_wins(tmp_path: Path) -> None:
    run = kept(tmp_path / "a", [of("vec4", 2e-3), of("torch", 1e-3, library=True)])
    (entry,) = make_book([run]).entries
    assert entry.winner.case.startswith("relu/vec4[") and entry.speedup == pytest.approx(0.5)
    assert make_book([kept(tmp_path / "b", [of("torch", 1e-3, library=True)])]).entries == ()


def test_modes_do_not_mix_and_a_cpu_has_no_times(tmp_path: Path) -> None:
    cold, hot = kept(tmp_path / "cold", [of("vec4", 1e-3)]), kept(tmp_path / "hot", [of("vec4", 1e-3)], mode="hot")
    with refuses("mixed-modes"):
        make_book([cold, hot])
    with refuses("backend-without-times", value="cpu"):
        make_book([kept(tmp_path / "cpu", [], gpu="")])


def test_what_is_saved_is_read_back_and_damage_is_said_in_words(tmp_path: Path) -> None:
    book = make_book([kept(tmp_path / "a", [of("scalar", 3e-3), of("vec4", 1e-3), of("grid_stride", 1e-3)])])
    path = tmp_path / "book.json"
    book.save(path)
    assert read_book(path) == book
    whole = path.read_text()
    draw = random.Random(1)
    for _ in range(300):
        cut, change = draw.randrange(len(whole)), draw.choice(["", "0", "}", '"', "-", "x"])
        path.write_text(whole[:cut] + change + whole[cut + draw.randrange(1, 9) :])
        try:
            read = read_book(path)
        except UsageError as error:
            assert str(path) in str(error)
        else:
            assert all(0 < e.winner.low_s <= e.winner.median_s <= e.winner.high_s for e in read.entries)


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("operator", "matmul", Refusal("other-case")),
        ("precision", "f23", Refusal("unknown-name", "precision", value="f23")),
        ("winner", {}, Refusal("missing-key", "entries[0].winner.case")),
        ("gpu", 3, Refusal("not-allowed", "entries[0].gpu", value=3)),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(tmp_path: Path, key: str, value: object, refusal: Refusal) -> None:
    path = tmp_path / "book.json"
    make_book([kept(tmp_path / "a", [of("scalar", 3e-3)])]).save(path)
    content = json.loads(path.read_text())
    content["entries"][0][key] = value
    path.write_text(json.dumps(content))
    with refuses(refusal):
        read_book(path)


def test_an_edited_winner_has_another_checksum(tmp_path: Path) -> None:
    checksums = {"scalar": "of other code", "vec4": CATALOG.variant("relu", "vec4").source_sha256, "grid_stride": ""}
    edited = {}
    for name, checksum in checksums.items():
        book = make_book([kept(tmp_path / name, [of(name, 1e-3, source_sha256=checksum)])])
        edited[name] = len(book.edited(CATALOG))
    assert edited == {"scalar": 1, "vec4": 0, "grid_stride": 0}, "an unknown checksum says nothing"


def test_the_command_writes_a_book_and_spares_files_of_another_kind(tmp_path: Path, cli: Cli) -> None:
    run = kept(tmp_path / "run", [of("vec4", 1e-3, source_sha256="of other code")])
    done = cli("book", run, "--out", "book.json")
    assert done.returncode == 0, done.stderr
    assert "vec4[" in done.stdout and "edited since" in done.stderr and "wrote book.json: 1 problem" in done.stderr
    assert json.loads(cli("book", "book.json", "--json").stdout) == json.loads((tmp_path / "book.json").read_text())
    (tmp_path / "plan.json").write_text("{}")
    refused(cli("book", run, "--out", "plan.json"), 2, "plan.json", "not a winners file")
    assert (tmp_path / "plan.json").read_text() == "{}"
    refused(cli("book", "plan.json"), 2, "has no key 'book'", "opbench book RUN --out book.json")
    refused(cli("book", "nowhere"), 2, "nowhere")
