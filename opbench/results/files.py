"""A run on disk: one append-only file of JSON lines that survives a crash and can be resumed.

Format history of results.jsonl (the first line's "format"):
    1   first line {"type": "run"}; then {"type": "result"}, {"type": "ceilings"}, {"type": "counters"}, {"type": "end"}
        and, since the cpu backend counts, {"type": "traffic"}; in a run on several GPUs a {"type": "device"} for each;
        {"type": "experiment"} for knock-outs, which are no results
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opbench.backend.counts import Traffic
from opbench.errors import EnvironmentFault, Location, OtherVersion, UsageError, writing_remedy
from opbench.gpu.limits.ceilings import Peaks
from opbench.records import PACKED_SUFFIXES, from_json, plain_name, stored_file, unpacked
from opbench.results.header import RunDevice, RunHeader
from opbench.results.result import Result
from opbench.results.rows import frame
from opbench.results.run_data import RunData
from opbench.results.showing import run_title, to_html

if TYPE_CHECKING:
    import pandas

FORMAT = 1
FILE = "results.jsonl"
"""A finished run may be packed with `xz` or `gzip`; opbench reads it and never writes it."""


def make_folder(folder: Path) -> None:
    """Create a run's folder; raises EnvironmentFault if the system refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"{folder}: this folder cannot be created: {error.strerror or error}; choose another --out DIR",
            kind="unwritable",
            subject=folder,
            value=error.errno,
        ) from None


@dataclass(repr=False)
class Run(RunData):
    """The content of one results file, with methods for notebooks."""

    def frame(self, gpu: str = "h200") -> pandas.DataFrame:
        """Return one row per case, with the columns of `opbench.results.rows.Row`: times in s, sizes in bytes, rates
        per second.

        `gpu` names the model whose peaks predict times for a run without a GPU. Missing values are NaN or None, never
        0.
        """
        return frame(self, gpu)

    def __repr__(self) -> str:
        return f"<Run {run_title(self)}, in {self.folder}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        return to_html(self)


class RunWriter:
    """Appends lines to a run's file; each is on disk before the next case begins."""

    def __init__(self, folder: Path, name: str = FILE) -> None:
        self.path = folder / name
        if (compressed_file := stored_file(self.path)).suffix in PACKED_SUFFIXES:
            raise UsageError(
                f"{compressed_file}: this file is the result of a finished run; choose another --out DIR, or "
                f"unpack the file first: {'unxz' if compressed_file.suffix == '.xz' else 'gunzip'} {compressed_file}",
                kind="run-finished",
                subject=compressed_file,
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.was_empty = not os.fstat(self._file.fileno()).st_size
            """Whether the file had no run yet."""
            self._remove_incomplete_line()
        except BlockingIOError:
            self._file.close()
            raise UsageError(
                f"{self.path}: another opbench process is writing this run; wait until that process ends, or choose "
                "another --out DIR",
                kind="run-in-use",
                subject=self.path,
            ) from None
        except OSError as error:
            raise _cannot_write(self.path, error, begun=False) from None

    def _remove_incomplete_line(self) -> None:
        """Remove an incomplete last line that a killed process left."""
        if not self.path.is_file():
            return
        with self.path.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)

    def write(self, line_type: str, payload: Mapping[str, object]) -> bytes:
        """Append one line, force it to disk and return it; remove an incomplete line if writing fails."""
        line = json.dumps({"type": line_type, **payload}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        position = os.fstat(self._file.fileno()).st_size
        try:
            bytes_written = self._file.write(line)
            if bytes_written != len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), position)
            raise _cannot_write(self.path, error, begun=True) from None
        return line

    def result(self, result: Result) -> None:
        """Append the result of one case to the file."""
        self.write("result", result.to_json())

    def close(self) -> None:
        """Close the results file, so that another process may write it."""
        self._file.close()


def _cannot_write(path: Path, error: OSError, begun: bool) -> EnvironmentFault:
    remedy = (
        f"the results so far are stored; {writing_remedy(error)}copy the run to another folder, then repeat the "
        "command with --resume --out DIR"
        if begun
        else f"{writing_remedy(error)}choose another folder with --out DIR"
    )
    return EnvironmentFault(
        f"{path}: this file cannot be written: {error.strerror or error}; {remedy}",
        kind="unwritable",
        subject=path,
        value=error.errno,
        allowed="--resume" if begun else "--out",
    )


def run_file(folder: Path) -> Path:
    """Return the results file in a run's folder; the compressed file if only that exists."""
    return stored_file(folder / FILE)


def run_files(folder: Path) -> list[Path]:
    """Return all results files in a folder and its subfolders."""
    return sorted({run_file(path.parent) for path in folder.rglob(f"{FILE}*") if plain_name(path) == FILE})


def read_content(path: Path) -> bytes:
    """Return the uncompressed content of a results file; raise UsageError if it cannot be read."""
    try:
        return unpacked(path)
    except OSError as error:
        reason = error.strerror or error
        fault = f"{path}: this file cannot be read: {reason}"
        if path.name == FILE and not path.exists():
            folder = path.parent
            fault = f"{folder}: this folder contains no {FILE}" if folder.is_dir() else f"{folder}: no such folder"
        runs = run_files(path.parent) if path.name == FILE else []
        example = f", such as {runs[0].parent}" if runs else ""
        raise UsageError(
            f"{fault}; name the folder of a run{example}, which contains {FILE}, "
            "or make a run: opbench run SUITE --out DIR",
            kind="unreadable",
            subject=path,
        ) from None


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the value of each line of a results file; skip an incomplete last line.

    Raises UsageError, naming the line, for a complete line that is no JSON object.
    """
    text = read_content(path)
    complete_lines = text[: text.rfind(b"\n") + 1]
    for line_number, line in enumerate(complete_lines.split(b"\n")[:-1], start=1):
        try:
            value = json.loads(line)
            if not isinstance(value, dict) or "type" not in value:
                raise ValueError("no object with a type")
        except ValueError as error:
            message = (
                f"this file contains no results of a run; name the folder of a run, which contains {FILE}, or make a "
                "run: opbench run SUITE --out DIR"
                if line_number == 1
                else f"this line is corrupt ({error}); delete the line to use the others, then complete the run with "
                "--resume"
            )
            raise UsageError(message, Location(path, line_number), kind="corrupt-line") from None
        yield line_number, value


@dataclass(frozen=True)
class _EndLine:
    """The end line that a process writes to the file of a run."""

    finished: str = ""
    wall_s: float | msgspec.UnsetType | None = msgspec.UNSET
    """Wall time in seconds.

    None if an earlier part of the run was killed, so its time is unknown; absent in older runs.
    """
    phases_s: dict[str, float] = field(default_factory=dict)
    """The seconds of each phase of this process's part of the run; absent in older runs."""


def _spent_s(end: _EndLine, began: str) -> float | None:
    """Return the wall time of an end line in seconds; None if the line has none."""
    if end.wall_s is not msgspec.UNSET:
        return end.wall_s
    try:
        return (datetime.fromisoformat(end.finished) - datetime.fromisoformat(began)).total_seconds()
    except (TypeError, ValueError):
        return None


class RunReader:
    """Read a run line by line; a later line about a case replaces an earlier one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run = Run(path.parent, RunHeader(), [])
        self._has_header = False
        self._results: dict[str, Result] = {}
        self._spent: list[float | None] = []

    def read(self) -> None:
        """Read every line of the file; raise UsageError, naming the line, for a corrupt file."""
        for line_number, value in read_lines(self.path):
            self.add_line(value, line_number)
        if not read_content(self.path).endswith(b"\n"):
            warning = f"{self.path}: the last line is incomplete and was left out; --resume repeats that case"
            self._run.warnings.append(warning)

    def add_line(self, value: dict[str, Any], line_number: int = 0) -> None:
        """Add one line to the run; errors name the line `line_number`."""
        line_type = value.pop("type")
        if line_type == "run" and value.get("format") != FORMAT:
            remedy = "read it with the opbench that wrote it"
            raise OtherVersion(Location(self.path, line_number), "format", value.get("format"), FORMAT, remedy)
        try:
            self._add_value(line_type, value)
        except (TypeError, ValueError) as error:
            remedy = (
                "choose another --out DIR"
                if line_type == "run"
                else "delete the line, then complete the run with --resume"
            )
            raise UsageError(
                f"this line is corrupt ({error}); {remedy}", Location(self.path, line_number), kind="corrupt-line"
            ) from None

    def _add_value(self, line_type: str, value: dict[str, Any]) -> None:
        run = self._run
        if line_type == "run":
            run.header, self._has_header = from_json(RunHeader, value), True
        elif line_type == "result":
            result = from_json(Result, value)
            self._results[result.case] = result
        elif line_type == "ceilings":
            run.ceilings = Peaks.from_json(value)
            self._add_peaks_warning(run.ceilings)
        elif line_type == "device":
            device = RunDevice.from_json(value)
            run.devices[device.uuid] = device
            run.ceilings = run.ceilings or device.ceilings
            self._add_peaks_warning(device.ceilings, f"{device.name}: ")
        elif line_type == "counters":
            run.counters[str(value.get("case"))] = value
        elif line_type == "traffic":
            run.traffic[str(value.get("case"))] = Traffic.from_json(value)
        elif line_type == "end":
            run.finished = True
            end = from_json(_EndLine, value)
            self._spent.append(_spent_s(end, "" if self._spent else run.header.started))
            for phase, seconds in end.phases_s.items():
                run.phases_s[phase] = run.phases_s.get(phase, 0.0) + seconds

    def _add_peaks_warning(self, ceilings: Peaks | None, device: str = "") -> None:
        """Add a warning to the run if its peaks did not pass the check at the start of the run."""
        if ceilings and ceilings.canary and ceilings.canary.text:
            self._run.warnings.append(device + ceilings.canary.text)

    def run(self) -> Run:
        """Return the run from the lines so far; raise UsageError without a header."""
        if not self._has_header:
            raise UsageError(
                f"{self.path}:1: this file has no run header, so the file is empty or not a result of opbench; make a "
                "run: opbench run SUITE --out DIR",
                kind="no-run-header",
                subject=self.path,
            )
        known_s = [seconds for seconds in self._spent if seconds is not None]
        wall_s = sum(known_s) if known_s and len(known_s) == len(self._spent) else None
        return replace(self._run, results=list(self._results.values()), wall_s=wall_s)


def read_run(folder: Path) -> Run:
    """Read a run from its folder or its results file; raise UsageError if that fails."""
    reader = RunReader(folder if folder.is_file() else run_file(folder))
    reader.read()
    return reader.run()
