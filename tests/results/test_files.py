"""The results file: complete after a crash, refused when corrupt, never half written."""

from __future__ import annotations

import errno
import gzip
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.errors import EnvironmentFault, UsageError
from opbench.records import from_json
from opbench.results.files import FILE, FORMAT, PACKED, RunWriter, read_lines, read_run, run_files
from opbench.results.result import Result
from support.builders.runs import measurement
from support.checks.errors import refuses_version
from support.common import ROOT


def result(name: str = "a", **changes: object) -> Result:
    values = {
        "case": name,
        "operator": "relu",
        "variant": "scalar",
        "config": {},
        "problem": "(n=1)",
        "axes": {"n": 1},
        "precision": "f32",
        "backend": "cpu",
        "status": "right",
        **changes,
    }
    return Result(**values)  # type: ignore[arg-type]


def write(folder: Path, *results: Result) -> Path:
    writer = RunWriter(folder)
    writer.write("run", {"format": FORMAT})
    for r in results:
        writer.result(r)
    writer.close()
    return folder / FILE


def test_round_trip(tmp_path: Path) -> None:
    write(tmp_path, result("a"), result("b", status="wrong", reason="x < y & z"))
    assert [asdict(r) for r in read_run(tmp_path).results] == [
        asdict(result("a")),
        asdict(result("b", status="wrong", reason="x < y & z")),
    ]


@given(st.integers(0, 10_000))
def test_a_file_cut_anywhere_gives_the_whole_lines_before(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = write(folder, *(result(str(i)) for i in range(5)))
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    cut = first + cut % (len(content) - first)
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n") - 1
    assert len(read_run(folder).results) == whole
    RunWriter(folder).close()
    assert path.read_bytes() == content[: content[:cut].rfind(b"\n") + 1]


@pytest.mark.parametrize(
    "line", [b"not json", b"[1]", b'{"type": "result"}', b"\xff\xfe", b'{"type": "result", "case": 1']
)
def test_a_corrupt_line_is_named_with_its_number(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, result("a"))
    path.write_bytes(path.read_bytes() + line + b"\n" + json.dumps({"type": "end"}).encode() + b"\n")
    with pytest.raises(UsageError, match=rf"{FILE}:3: corrupt .*--resume"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("ends", "wall_s"),
    [
        ([{"wall_s": 2.5}, {"wall_s": 1.0}], 3.5),
        ([{"wall_s": 2.5}, {"wall_s": None}], None),
        ([{"finished": "2026-01-01T00:04:19+00:00"}], 259.0),
        ([{"finished": "2026-01-01T00:04:19+00:00"}, {"wall_s": 1.0}], 260.0),
        ([{"finished": "2026-01-01T00:04:19+00:00"}, {"finished": "2026-01-09T00:04:19+00:00"}], None),
        ([], None),
    ],
)
def test_the_wall_time_is_that_of_all_parts_or_none(tmp_path: Path, ends: list[dict[str, Any]], wall_s: Any) -> None:
    lines = [
        {"type": "run", "format": 1, "started": "2026-01-01T00:00:00+00:00"},
        *({"type": "end", **e} for e in ends),
    ]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_run(tmp_path).wall_s == wall_s


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"type": "run", "format": 99}\n')
    with refuses_version("format", 99, 1):
        read_run(tmp_path)


def test_an_empty_file_and_a_missing_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_run(tmp_path)
    (tmp_path / FILE).touch()
    with pytest.raises(UsageError, match="no run header"):
        read_run(tmp_path)


def test_a_wrong_kernel_has_no_speed() -> None:
    with pytest.raises(ValueError, match="cannot have a measurement"):
        result(status="wrong", reason="off", measurement=measurement(1.0))
    with pytest.raises(ValueError, match="needs a reason"):
        result(status="failed")


def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, result("a"))
    before = path.read_bytes()
    writer = RunWriter(tmp_path)

    class FullDisk:
        def __init__(self, file: object) -> None:
            self.file = file

        def write(self, data: bytes) -> int:
            return self.file.write(data[: len(data) // 2])  # type: ignore[attr-defined,no-any-return]

        def fileno(self) -> int:
            return self.file.fileno()  # type: ignore[attr-defined,no-any-return]

        def close(self) -> None:
            self.file.close()  # type: ignore[attr-defined]

    monkeypatch.setattr(writer, "_file", FullDisk(writer._file))
    with pytest.raises(EnvironmentFault, match=r"No space left on device; what was measured so far is kept.*--resume"):
        writer.result(result("b"))
    writer.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device; free some space or choose another folder with --out DIR$"),
        (errno.EACCES, "Permission denied; get the permission to write there or choose another folder with --out DIR$"),
        (errno.EROFS, "Read-only file system; get the permission to write there or choose"),
        (errno.ENOTDIR, "Not a directory; choose another folder with --out DIR$"),
    ],
)
def test_a_folder_that_cannot_be_written_is_told_with_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(EnvironmentFault, match=words):
        RunWriter(tmp_path / "out")


def test_a_packed_run_reads_as_it_was_and_is_not_written_again(tmp_path: Path) -> None:
    path = write(tmp_path, result("a"), result("b"))
    before = read_run(tmp_path)
    (tmp_path / PACKED).write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read_run(tmp_path).results == before.results == read_run(tmp_path / PACKED).results
    assert run_files(tmp_path) == [tmp_path / PACKED]
    with pytest.raises(UsageError, match=r"is a finished run; choose another --out DIR, or unpack it: gunzip"):
        RunWriter(tmp_path)
    assert not path.exists()


def test_a_damaged_packed_run_is_refused_with_its_name(tmp_path: Path) -> None:
    whole = gzip.compress(write(tmp_path / "run", result()).read_bytes())
    for broken in (whole[:-9], b"no gzip", whole[:20] + b"\0\0\0\0" + whole[24:]):
        (tmp_path / PACKED).write_bytes(broken)
        with pytest.raises(UsageError, match=r"results.jsonl.gz: cannot be read: "):
            read_run(tmp_path)


COMMITTED = run_files(ROOT / "reports")


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: str(path.parent.relative_to(ROOT / "reports")))
def test_committed_runs_are_read_whole_and_written_as_they_were(path: Path) -> None:
    run = read_run(path)
    assert len(run.results) > 0
    for found in run.results:
        again = from_json(Result, json.loads(json.dumps(found.to_json(), allow_nan=False)))
        assert again == found


def test_no_number_of_a_committed_run_is_lost() -> None:
    path = run_files(ROOT / "reports" / "h100" / "quick")[0]
    lines = {line["case"]: line for _, line in read_lines(path) if line["type"] == "result"}
    for found in read_run(path).results:
        written, line = json.loads(json.dumps(found.to_json())), lines[found.case]
        assert written["resources"] == line["resources"]
        assert written["verdict"] == line["verdict"]
        for key, value in (line["measurement"] or {}).items():
            assert written["measurement"][key] == value, key
