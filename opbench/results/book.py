"""Winners files (`opbench book`): the fastest variant of each problem on each GPU, as JSON that can be merged.

An entry is one operator, problem, precision and GPU, with the fastest right case of opbench's variants and the
fastest case of a library. Times are the kernels' own, in seconds: the times between events minus the clock's
offset.

If two sources have the same entry: of one case the newer measurement counts, by the start of its run, and at
the same start the source named last. Of several cases the smallest median wins, from either source. Cases whose
95 % intervals overlap the winner's are its ties; they stay in the file with their times, because they may win
with more data. Other cases are dropped, so one file made from all runs knows more than files merged one by one.

Times of different modes (cold, hot, graph) do not share a file. The file excludes kernels whose bits vary from
run to run, kernels that only update an input, and cases that no longer exist.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opbench import paths
from opbench.errors import NotAllowed, UsageError, unknown_name
from opbench.kernels.case_names import CASE_NAME
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant, print_config
from opbench.records import from_json, read_record, to_json
from opbench.results.files import Run, read_run
from opbench.results.result import Result
from opbench.source.precision import PRECISION_CLASSES

FORMAT = 1
MAKE_COMMAND = "make one of a run: opbench book RUN --out book.json"


@dataclass(frozen=True)
class BookTime:
    """The measured time of one case, and the checksum of the source that was measured."""

    case: str
    median_s: float
    low_s: float
    high_s: float
    """95 % interval of the median."""
    source_sha256: str
    """Checksum of the variant's code; empty in runs without it."""
    opbench: str
    """The version of opbench that measured."""
    started: str
    """When the run began."""
    run: str
    driver: str = ""

    def is_of_other_code(self, variant: Variant) -> bool:
        """Return whether the variant's code was edited since the measurement; False if the checksum is unknown."""
        return self.source_sha256 not in ("", variant.source_sha256)

    def overlaps(self, other: BookTime) -> bool:
        """Return whether two 95 % intervals overlap, so that either case may be the faster one."""
        return self.low_s <= other.high_s and other.low_s <= self.high_s


@dataclass(frozen=True)
class BookEntry:
    """The winner of one problem in one precision on one GPU."""

    operator: str
    problem: str
    precision: str
    gpu: str
    compute_capability: str
    winner: BookTime
    ties: tuple[BookTime, ...] = ()
    """Cases whose intervals overlap the winner's, fastest first."""
    library: BookTime | None = None
    """The fastest case of the vendors' libraries in this precision; None if not measured."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return the values that identify the entry: operator, problem, precision and GPU."""
        return self.operator, self.problem, self.precision, self.gpu

    @property
    def speedup(self) -> float | None:
        """Return the library's time divided by the winner's; None without a library's time."""
        return self.library.median_s / self.winner.median_s if self.library else None


@dataclass(frozen=True)
class Book:
    """The content of a winners file: the fastest case of each problem, with the timing mode."""

    mode: str
    """The timing mode: one of `opbench.timing.clock.TIMING_MODES`."""
    entries: tuple[BookEntry, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Notes on what was excluded and why; not in the file."""

    def find(
        self, operator: str, problem: object, *, gpu: str = "", precisions: Collection[str] = ("f32",)
    ) -> BookEntry | None:
        """Return the fastest entry of a problem in the allowed precisions; None without an entry.

        `gpu` is the name of a GPU as in the file; without it the file must have only one GPU, or UsageError is
        raised.
        """
        if not gpu and len(self.gpus) > 1:
            raise UsageError(
                f"the winners file has several GPUs ({', '.join(self.gpus)}); choose one: "
                f'gpu="{next(iter(self.gpus))}"',
                kind="several-gpus",
                subject="gpu",
                allowed=tuple(self.gpus),
            )
        entries = (
            self._by_key.get((operator, str(problem), precision, gpu or next(iter(self.gpus), "")))
            for precision in precisions
        )
        return min((entry for entry in entries if entry), key=lambda entry: entry.winner.median_s, default=None)

    @property
    def gpus(self) -> dict[str, str]:
        """Return the GPU models in the file with their compute capabilities."""
        return {entry.gpu: entry.compute_capability for entry in self.entries}

    @functools.cached_property
    def _by_key(self) -> dict[tuple[str, str, str, str], BookEntry]:
        return {entry.key: entry for entry in self.entries}

    def edited(self, catalog: Catalog) -> list[str]:
        """Return the winners whose code was edited or deleted since the measurement."""
        edits = []
        for entry in self.entries:
            match = CASE_NAME.match(entry.winner.case)
            assert match
            variants = {v.name: v for v in catalog.variants(entry.operator)}
            variant = variants.get(match["variant"])
            if variant is None or entry.winner.is_of_other_code(variant):
                edits.append(entry.winner.case)
        return edits

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file as JSON data."""
        return {
            "book": FORMAT,
            "mode": self.mode,
            "entries": [to_json(entry, omit_defaults=True) for entry in self.entries],
        }

    def _text(self) -> str:
        """Return the content of the file as text with one entry per line."""
        fields = self.to_json()
        entries = ",\n".join(json.dumps(entry) for entry in fields.pop("entries"))
        return f'{json.dumps(fields)[:-1]}, "entries": [\n{entries}\n]}}\n'

    def save(self, path: Path) -> None:
        """Write the file atomically; raise UsageError if a file of another kind has that name."""
        if path.exists():
            try:
                read_book(path)
            except UsageError:
                raise UsageError(
                    f"{path}: this file exists and is not a winners file; name another file: --out book.json",
                    kind="not-a-winners-file",
                    subject=path,
                ) from None
        paths.write_file(path, self._text().encode(), "name another file: --out book.json")


def read_book(path: Path) -> Book:
    """Read a winners file; raise UsageError, with the location, for a corrupt file or a file of another kind."""
    return read_record(Book, path, FORMAT, MAKE_COMMAND, key="book", decode=_checked_book)


def _checked_book(value: Mapping[str, Any]) -> Book:
    """Return the winners in a file's content; raise ValueError for impossible values."""
    book = from_json(Book, value)
    for entry in book.entries:
        _require_possible_values(entry)
    if len(book._by_key) < len(book.entries):
        raise ValueError("two entries have the same operator, problem, precision and GPU")
    return book


def _require_possible_values(entry: BookEntry) -> None:
    """Raise ValueError for an entry with impossible values, such as a negative time."""
    key = f"{entry.operator}{entry.problem} on {entry.gpu}"
    if entry.precision not in PRECISION_CLASSES:
        raise NotAllowed(unknown_name("precision", entry.precision, PRECISION_CLASSES, place=key))
    for time in _times(entry):
        match = CASE_NAME.match(time.case)
        if not match or (match["operator"], match["problem"]) != (entry.operator, entry.problem):
            raise NotAllowed(
                f"{key}: '{time.case}' is not a case of this problem", kind="other-case", subject=key, value=time.case
            )
        if not 0 < time.low_s <= time.median_s <= time.high_s < math.inf:
            raise ValueError(
                f"{key}: {time.case}: {time.low_s}, {time.median_s}, {time.high_s} are not a low end, a median and a "
                "high end in seconds"
            )


def _times(entry: BookEntry) -> Iterator[BookTime]:
    yield entry.winner
    yield from entry.ties
    if entry.library:
        yield entry.library


def make_book(
    sources: Sequence[Path], catalog: Catalog | None = None, read_case_run: Callable[[Path], Run] = read_run
) -> Book:
    """Merge runs and winners files into one winners file, by the rules in this module's docstring.

    `read_case_run` reads a run. Raises UsageError for another kind of file, for a run without times of a GPU, and for
    times of different modes.
    """
    catalog = catalog or Catalog()
    notes: list[str] = []
    modes: dict[str, Path] = {}
    candidates: dict[tuple[str, str, str, str], dict[str, tuple[BookTime, bool]]] = {}
    capabilities: dict[str, str] = {}
    for path in sources:
        timed, mode = (
            _candidates_of_book(path)
            if _is_book(path)
            else _candidates_of_run(path, read_case_run(path), catalog, notes)
        )
        mode_so_far = next(iter(modes), mode)
        if mode != mode_so_far:
            raise UsageError(
                f"{path}: the times in it are {mode}, those in {modes[mode_so_far]} are {mode_so_far}, and a "
                "winners file has one timing mode; write a second file: "
                f"{paths.next_command('book', path, out=f'{mode}.json')}",
                kind="mixed-modes",
                subject=path,
                value=mode,
                allowed=mode_so_far,
            )
        modes[mode] = path
        for key, compute_capability, time, library in timed:
            capabilities[key[3]] = compute_capability
            times_of_case = candidates.setdefault(key, {})
            if time.case not in times_of_case or times_of_case[time.case][0].started <= time.started:
                times_of_case[time.case] = time, library
    entries = [
        _entry(key, capabilities[key[3]], times_of_case.values()) for key, times_of_case in sorted(candidates.items())
    ]
    return Book(next(iter(modes), "cold"), tuple(entry for entry in entries if entry), tuple(dict.fromkeys(notes)))


Candidate = tuple[tuple[str, str, str, str], str, BookTime, bool]
"""The key of an entry, the GPU's compute capability, a time, and whether the time is that of a library."""


def _is_book(path: Path) -> bool:
    return path.is_file() and path.suffix == ".json"


def _candidates_of_book(path: Path) -> tuple[list[Candidate], str]:
    book = read_book(path)
    candidates: list[Candidate] = []
    for e in book.entries:
        candidates += [(e.key, e.compute_capability, time, False) for time in (e.winner, *e.ties)]
        candidates += [(e.key, e.compute_capability, e.library, True)] if e.library else []
    return candidates, book.mode


def _candidates_of_run(path: Path, run: Run, catalog: Catalog, notes: list[str]) -> tuple[list[Candidate], str]:
    header, environment = run.header, run.header.environment
    gpu = environment.gpu
    if not gpu or header.backend != "cuda":
        raise UsageError(
            f"{path}: this run of the {header.backend or 'unknown'} backend has no times of a GPU; name a run on a "
            "GPU, or measure one: opbench run SUITE --backend cuda",
            kind="backend-without-times",
            subject=path,
            value=header.backend,
        )
    notes += run.warnings
    candidates: list[Candidate] = []
    mode = header.timing.mode or "cold"
    excluded: dict[str, list[str]] = {}
    for result in run.results:
        if result.status != "right" or result.measurement is None or result.measurement.median_s <= 0:
            continue
        if reason := _exclusion_reason(result, catalog):
            excluded.setdefault(reason, []).append(result.case.removesuffix(result.problem))
            continue
        key = (result.operator, result.problem, result.precision, gpu)
        candidates.append((key, environment.compute_capability, _time(result, run, path), result.library))
    for reason, cases in excluded.items():
        names = list(dict.fromkeys(cases))
        more_text = f" and {len(names) - 3} more" if len(names) > 3 else ""
        notes.append(f"{path}: left out {', '.join(names[:3])}{more_text}: {reason}")
    return candidates, mode


def _exclusion_reason(result: Result, catalog: Catalog) -> str:
    """Return the reason why a right, measured case is excluded; empty if it is included."""
    variants = catalog.variants(result.operator) if result.operator in catalog.operator_names() else []
    variant = next((v for v in variants if v.name == result.variant), None)
    if variant is None or not any(print_config(c) == print_config(result.config) for c in variant.configs):
        return "opbench has no such variant or config now; add the folder of your own variants with --variants DIR"
    if variant.is_library:
        return ""
    if not variant.reproducible:
        return "their bits vary from run to run"
    return "they only update what an input holds" if variant.in_place else ""


def _time(result: Result, run: Run, path: Path) -> BookTime:
    measured = result.measurement
    assert measured
    median, low, high = measured.interval_without_offset_s
    return BookTime(
        result.case,
        median,
        min(low, median),
        max(high, median),
        result.source_sha256,
        run.header.opbench,
        run.header.started,
        paths.portable_path(str(path)),
        run.header.environment.driver or "",
    )


def _entry(key: tuple[str, str, str, str], capability: str, times: Iterable[tuple[BookTime, bool]]) -> BookEntry | None:
    """Return the entry for the times of one key; None if only libraries have times."""
    ordered = sorted(times, key=lambda pair: (pair[0].median_s, pair[0].case))
    own_times = [time for time, library in ordered if not library]
    if not own_times:
        return None
    ties = tuple(time for time in own_times[1:] if time.overlaps(own_times[0]))
    library_time = next((time for time, library in ordered if library), None)
    return replace(BookEntry(*key, capability, own_times[0]), library=library_time, ties=ties)
