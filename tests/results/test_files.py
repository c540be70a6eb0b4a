"""The results file: complete after a crash, refused when corrupt, never half written."""

from __future__ import annotations

import errno
import gzip
import json
import lzma
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.errors import EnvironmentFault
from opbench.records import PACKED_SUFFIXES, from_json, read_json
from opbench.results.files import FILE, FORMAT, RunWriter, read_lines, read_run, run_files
from opbench.results.result import Result
from support.builders.runs import measurement
from support.checks.errors import refuses, refuses_version, same_messages
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
    with refuses("corrupt-line", at=(FILE, 3)):
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
    with refuses("unreadable", FILE):
        read_run(tmp_path)
    (tmp_path / FILE).touch()
    with refuses("no-run-header", FILE):
        read_run(tmp_path)


def test_a_wrong_kernel_has_no_speed() -> None:
    with refuses("measured-but-wrong", value="wrong", error=ValueError):
        result(status="wrong", reason="off", measurement=measurement(1.0))
    with refuses("no-reason", value="failed", error=ValueError):
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
    with refuses("unwritable", FILE, value=errno.ENOSPC, allowed="--resume", error=EnvironmentFault):
        writer.result(result("b"))
    writer.close()
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_told_with_what_would_help(tmp_path: Path) -> None:
    def refuse(number: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", Mock(side_effect=OSError(number, os.strerror(number))))
            RunWriter(tmp_path / "out")

    numbers = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOTDIR)
    messages = {}
    for number in numbers:
        with refuses("unwritable", FILE, value=number, allowed="--out", error=EnvironmentFault) as raised:
            refuse(number)
        messages[errno.errorcode[number]] = str(raised.value)
    same_messages("unwritable_runs", messages, tmp_path)


PACKERS = {".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACKED_SUFFIXES)
def test_a_packed_run_reads_as_it_was_and_is_not_written_again(suffix: str, tmp_path: Path) -> None:
    path, packed = write(tmp_path, result("a"), result("b")), tmp_path / f"{FILE}{suffix}"
    before = read_run(tmp_path)
    packed.write_bytes(PACKERS[suffix](path.read_bytes()))
    path.unlink()
    assert read_run(tmp_path).results == before.results == read_run(packed).results
    assert run_files(tmp_path) == [packed]
    with refuses("run-finished", packed.name):
        RunWriter(tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("suffix", PACKED_SUFFIXES)
def test_a_damaged_packed_run_is_refused_with_its_name(suffix: str, tmp_path: Path) -> None:
    packed = tmp_path / f"{FILE}{suffix}"
    whole = PACKERS[suffix](write(tmp_path / "run", result()).read_bytes())
    for broken in (whole[:-9], b"not packed", whole[:20] + b"\0\0\0\0" + whole[24:]):
        packed.write_bytes(broken)
        with refuses("unreadable", packed.name):
            read_run(tmp_path)


@pytest.mark.parametrize("suffix", PACKED_SUFFIXES)
def test_a_packed_record_is_read_in_place_of_the_plain_one(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"record.json{suffix}").write_bytes(PACKERS[suffix](b'{"a": 1}'))
    assert read_json(tmp_path / "record.json", "") == read_json(tmp_path / f"record.json{suffix}", "") == {"a": 1}
    (tmp_path / f"record.json{suffix}").write_bytes(PACKERS[suffix](b'{"a": 1}')[:-2])
    with refuses("unreadable", "record.json"):
        read_json(tmp_path / "record.json", "")


COMMITTED = run_files(ROOT / "reports")


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: str(path.parent.relative_to(ROOT / "reports")))
def test_committed_runs_are_read_whole_and_written_as_they_were(path: Path) -> None:
    run = read_run(path)
    assert len(run.results) > 0
    for found in run.results:
        again = from_json(Result, json.loads(json.dumps(found.to_json(), allow_nan=False)))
        assert again == found


def test_no_number_of_a_committed_run_is_lost() -> None:
    path = run_files(ROOT / "reports" / "h200" / "quick")[0]
    lines = {line["case"]: line for _, line in read_lines(path) if line["type"] == "result"}
    for found in read_run(path).results:
        written, line = json.loads(json.dumps(found.to_json())), lines[found.case]
        assert written["resources"] == line["resources"]
        assert written["verdict"] == line["verdict"]
        for key, value in (line["measurement"] or {}).items():
            assert written["measurement"][key] == value, key
