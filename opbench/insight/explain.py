"""Explain each line of a variant's source: its memory traffic, its problems and the variants without them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any

from opbench.backend.counts import ORIGIN_COUNTED, ORIGIN_PREDICTED, BranchTraffic, LineTraffic, Traffic
from opbench.backend.findings import Finding
from opbench.gpu.limits.ceilings import Peaks, bound_and_limit
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.diagnosis import Diagnosis, diagnose
from opbench.insight.instructions import executed_instructions
from opbench.insight.levels import Bound, bounds, case_bounds, levels, unit_bounds
from opbench.insight.subject import Subject
from opbench.records import JSON

COMPUTED = "computed"
NAME_LENGTH = 16
"""The longest name of an element in a label; longer ones are abbreviated."""


@dataclass(frozen=True)
class Figure:
    """One number about the whole case, with its unit and whether it was counted, predicted or computed."""

    name: str
    value: float
    unit: str
    source: str
    """"counted", "predicted" or "computed", with an explanation in parentheses if needed."""


@dataclass(frozen=True)
class AnnotatedLine:
    """A source line with its accesses, branches, problems and findings."""

    number: int
    text: str
    accesses: tuple[LineTraffic, ...] = ()
    problems: tuple[Diagnosis, ...] = ()
    findings: tuple[Finding, ...] = ()
    branches: tuple[BranchTraffic, ...] = ()
    calls: tuple[LineTraffic, ...] = ()
    """For a line of the kernel's own file: accesses of the header functions that it calls, merged by kind."""

    @property
    def has_counts(self) -> bool:
        """Return whether the line has counted accesses or branches."""
        return bool(self.accesses or self.branches or self.calls)

    @property
    def labelled_accesses(self) -> tuple[tuple[str, LineTraffic], ...]:
        """Return the line's accesses and those of its calls, each with a label."""
        direct = ((self.label(entry), entry) for entry in self.accesses)
        return (*direct, *((f"{PurePath(entry.file).name} {entry.access_text}", entry) for entry in self.calls))

    def label(self, entry: LineTraffic) -> str:
        """Return a label of an access, such as "shared load 4 B", with the element if the line has several such
        accesses.
        """
        same_accesses = [
            access
            for access in self.accesses
            if (access.kernel, access.access_text) == (entry.kernel, entry.access_text)
        ]
        columns = sorted(label.column for label in same_accesses)
        if len(columns) < 2:
            return entry.access_text
        # Columns count in the preprocessed text, so they only give the order of the accesses.
        position = columns.index(entry.column)
        names = operands(self.text, entry.kind)
        if len(names) != len(columns):
            return f"{entry.access_text} ({position + 1} of {len(columns)})"
        name = names[position]
        return f"{entry.access_text} {name if len(name) <= NAME_LENGTH else name[: name.index('[')] + '[…]'}"


@dataclass(frozen=True)
class AnnotatedFile:
    """A source file with the counts and problems of each line."""

    path: str
    lines: tuple[AnnotatedLine, ...]

    def around_counts(self, rows: int) -> AnnotatedFile:
        """Keep only lines with counts, problems or findings, and `rows` lines above and below each."""
        notable = [line.number for line in self.lines if line.has_counts or line.problems or line.findings]
        shown = {number + offset for number in notable for offset in range(-rows, rows + 1)}
        return replace(self, lines=tuple(line for line in self.lines if line.number in shown))


@dataclass(frozen=True)
class Explanation:
    """Everything that `opbench explain` shows of one case."""

    case: str
    title: str
    source: str
    """"counted", or "predicted" if only some blocks were counted."""
    complete: bool
    figures: tuple[Figure, ...]
    problems: tuple[Diagnosis, ...]
    """The worst first."""
    findings: tuple[Finding, ...]
    files: tuple[AnnotatedFile, ...]
    bounds: tuple[Bound, ...] = ()
    """The lower bound of each limit of `gpu` from this variant's traffic, the tightest first. Bytes at "l1" are
    counted; those at lower levels are predicted by a model of the caches."""
    gpu: str = ""
    measured_s: float | None = None
    """The GPU time of the case in a run that the user named."""
    elsewhere: tuple[LineTraffic, ...] = ()
    """Accesses whose line is unknown or in a file without a given source."""
    predicted_kernels: tuple[str, ...] = ()
    """Kernels of which only some blocks were counted; their numbers are extrapolated to all blocks."""
    next_variants: tuple[str, ...] = ()
    """Variants that build on this one."""

    def count_source(self, kernel: str) -> str:
        """Return whether a kernel's numbers were "counted" or, from counted blocks, "predicted"."""
        return ORIGIN_PREDICTED if kernel in self.predicted_kernels else self.source

    def to_json(self) -> dict[str, JSON]:
        """Return the explanation as JSON values, without lines that have no counts; accesses include ratios."""
        return {
            **{key: getattr(self, key) for key in ("case", "title", "source", "complete")},
            "figures": [asdict(figure) for figure in self.figures],
            # "family" and "cures" are the names of earlier releases.
            "problems": [
                {**asdict(problem), "family": problem.mechanism, "cures": problem.remedies} for problem in self.problems
            ],
            "gpu": self.gpu,
            "measured_s": self.measured_s,
            "bounds": [asdict(bound) for bound in self.bounds],
            "findings": [finding.to_json() for finding in self.findings],
            "files": [
                {"path": file.path, "lines": [self._line_json(line) for line in file.lines if line.has_counts]}
                for file in self.files
            ],
            "elsewhere": [self._access_json(entry) for entry in self.elsewhere],
            "next_rungs": list(self.next_variants),
        }

    def _line_json(self, line: AnnotatedLine) -> dict[str, JSON]:
        """Return a line with its accesses, branches and calls as JSON values."""
        accesses = [self._access_json(entry) for entry in line.accesses]
        branches = [{**asdict(entry), "source": self.count_source(entry.kernel)} for entry in line.branches]
        calls = [self._access_json(entry) for entry in line.calls]
        return {"line": line.number, "text": line.text, "accesses": accesses, "branches": branches, "calls": calls}

    def _access_json(self, entry: LineTraffic) -> dict[str, JSON]:
        """Return an access with its ratios as JSON values."""
        return {
            **asdict(entry),
            "lanes_per_request": entry.lanes_per_request,
            "sectors_per_request": entry.sectors_per_request,
            "ideal_sectors_per_request": entry.ideal_sectors_per_request,
            "conflicts_per_request": entry.conflicts_per_request,
            "source": self.count_source(entry.kernel),
        }


def operands(text: str, kind: str) -> list[str]:
    """Return the array elements that a line loads or stores, in order; [] if an index contains another element."""
    result = []
    end = 0
    for name in re.finditer(r"[A-Za-z_]\w*(?=\[)", text):
        if name.start() < end:
            return []
        end = name.end()
        while text[end : end + 1] == "[":
            end = _end_of_brackets(text, end)
        assignment = re.match(r"\s*([-+*/%&|^]|<<|>>)?=(?!=)", text[end:])
        is_access = assignment is not None if kind == "store" else assignment is None or assignment[1]
        if is_access:
            result.append(text[name.start() : end])
    return result


def _end_of_brackets(text: str, start: int) -> int:
    """Return the index after the bracket that closes the one at `start`, or the end."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[index], 0)
        if not depth:
            return index + 1
    return len(text)


def explain(
    subject: Subject,
    traffic: Traffic,
    findings: Sequence[Finding],
    sources: Mapping[str, str],
    ceilings: Peaks | None = None,
    resources: Mapping[str, LaunchResources] | None = None,
) -> Explanation:
    """Explain launches from their traffic.

    `sources` are the texts of the files to annotate by path, the kernel's own file first. `ceilings` are the peaks for
    lower bounds, and `resources` contain the code sizes, as in `Result.resources`.
    """
    estimated = traffic.scaled_to_all_blocks()
    sampled_kernels = tuple(entry.kernel for entry in traffic.kernels if entry.sampled)
    problems = diagnose(subject, estimated, sources)
    kernel_path = next(iter(sources), "")
    files = tuple(_annotate(path, text, kernel_path, estimated, problems, findings) for path, text in sources.items())
    shown = {(file.path, line.number) for file in files for line in file.lines}
    return Explanation(
        case=subject.name,
        title=subject.title,
        source=traffic.source,
        complete=traffic.complete,
        figures=(*_total_figures(subject, estimated), *_predicted_figures(subject, ceilings)),
        bounds=_lower_bounds(subject, traffic, ceilings, resources or {}),
        gpu=ceilings.gpu.removeprefix("NVIDIA ") if ceilings else "",
        problems=tuple(problems),
        findings=tuple(findings),
        files=files,
        elsewhere=tuple(entry for entry in estimated.lines if (entry.file, entry.line) not in shown),
        predicted_kernels=sampled_kernels,
        next_variants=subject.next_variants(),
    )


def _annotate(
    path: str, text: str, kernel_path: str, traffic: Traffic, problems: Sequence[Diagnosis], findings: Sequence[Finding]
) -> AnnotatedFile:
    """Annotate one file; lines of the kernel's own file also list the accesses of the header functions that
    they call.
    """
    is_kernel_file = path == kernel_path
    accesses, branches = _by_line(path, traffic.lines), _by_line(path, traffic.branches)
    line_problems, line_findings = _by_line(path, problems, is_kernel_file), _by_line(path, findings, is_kernel_file)
    calls = _calls_by_line(traffic.lines) if is_kernel_file else {}
    notes_by_line = (accesses, line_problems, line_findings, branches, calls)
    numbered = enumerate(text.splitlines(), start=1)
    return AnnotatedFile(
        path,
        tuple(AnnotatedLine(n, line, *(tuple(notes.get(n, ())) for notes in notes_by_line)) for n, line in numbered),
    )


def _calls_by_line(lines: Iterable[LineTraffic]) -> dict[int, list[LineTraffic]]:
    """Return the accesses in headers by the line of the kernel's file that calls them, merged by kind."""
    result: dict[tuple[int, str, str, str], LineTraffic] = {}
    for entry in lines:
        if entry.called_from:
            key = (entry.called_from, entry.kernel, entry.file, entry.access_text)
            result[key] = result[key] + entry if key in result else entry
    by_line: dict[int, list[LineTraffic]] = {}
    for key in sorted(result):
        by_line.setdefault(key[0], []).append(result[key])
    return by_line


def _by_line(path: str, entries: Iterable[Any], include_callers: bool = False) -> dict[int, list[Any]]:
    """Group entries of one file by line; with `include_callers`, also entries in headers by the line that
    calls them.
    """
    result: dict[int, list[Any]] = {}
    for entry in entries:
        if line := entry.line if entry.file == path else include_callers and entry.called_from:
            result.setdefault(line, []).append(entry)
    return result


def _total_figures(subject: Subject, traffic: Traffic) -> list[Figure]:
    """Return sums over all lines; kinds of access that the case lacks are left out."""
    source = traffic.source
    shared = traffic.total("wavefronts", space="shared")
    atomics = traffic.total("lanes", kind="atomic")
    figures = [
        Figure("global requests", traffic.total("requests", space="global"), "", source),
        Figure("bytes asked for", traffic.total("bytes", space="global"), "B", source),
        Figure("bytes moved in sectors", traffic.total("moved_bytes", space="global"), "B", source),
    ]
    if subject.compulsory_bytes:
        name = "compulsory bytes" if subject.case else "bytes of all arrays"
        figures.append(Figure(name, subject.compulsory_bytes, "B", COMPUTED))
    if shared:
        figures.append(Figure("shared wavefronts", shared, "", source))
        figures.append(Figure("of these bank conflicts", traffic.total("conflicts", space="shared"), "", source))
    copied, operands = traffic.total("bytes", space="bulk"), traffic.total("wavefronts", space="operand")
    if copied:
        figures.append(Figure("copied in bulk", copied, "B", source))
    if operands:
        figures.append(Figure("wavefronts of wgmma's operands", operands, "", source))
    if atomics:
        figures.append(Figure("atomic updates", atomics, "", source))
        figures.append(Figure("of these colliding in a warp", traffic.total("collisions", kind="atomic"), "", source))
    for kernel in traffic.kernels:
        if kernel.barriers:
            # Barriers are counted in the counted blocks only, so the mean is no estimate of a sum.
            name = f"barriers per block of {kernel.kernel}"
            figures.append(Figure(name, kernel.barriers_per_block, "", ORIGIN_COUNTED))
    return figures


def _lower_bounds(
    subject: Subject, traffic: Traffic, ceilings: Peaks | None, resources: Mapping[str, LaunchResources]
) -> tuple[Bound, ...]:
    """Return the lower bounds of time from a case's traffic and instructions; none without peaks."""
    traffic_levels = levels(traffic, resources)
    if ceilings is None:
        return ()
    executed = executed_instructions(traffic, resources)
    if traffic_levels is None:
        return tuple(unit_bounds(executed, ceilings.gpu)) if executed else ()
    if subject.case is None:
        return tuple(bounds(traffic_levels, 0, "f32", ceilings, executed=executed))
    return tuple(case_bounds(subject.case, traffic_levels, ceilings, executed))


def _predicted_figures(subject: Subject, ceilings: Peaks | None) -> list[Figure]:
    """Return the lower bound of the problem for any variant: by launch, compulsory bytes or FLOPs; none
    without peaks.
    """
    if ceilings is None or subject.case is None:
        return []
    case = subject.case
    limits = ceilings.at_level(case.problem.bandwidth())
    best = bound_and_limit(limits, case.problem.flops(), case.problem.bytes(), case.unit)
    if best is None:
        return []
    lower_bound_s = max(best[0], ceilings.launch_floor_s or 0.0)
    return [
        Figure(
            "lower bound of the problem",
            lower_bound_s,
            "s",
            f"{ORIGIN_PREDICTED} ({ceilings.gpu}, {ceilings.source} peaks)",
        )
    ]
