"""Check the memory accesses of a file that has no operator: races, bounds, uninitialised reads and barriers."""

from __future__ import annotations

import tempfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opbench.backend.base import Backend, Buffer, Trace, TraceOptions, TracingBackend
from opbench.backend.counts import Traffic
from opbench.backend.findings import Finding, headline
from opbench.checking.backends import open_backend
from opbench.checking.verdict import guard_finding
from opbench.errors import UsageError
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.kernels.header import has_header
from opbench.paths import next_command
from opbench.results.result import RecordedLaunch

if TYPE_CHECKING:
    from opbench.adopting.memory_plan import MemoryPlan, PlannedBuffer

RANDOM_INTEGER_LIMIT = 4
"""Random whole numbers are at least 1 and below this limit, because they may be indices or divisors."""


@dataclass(frozen=True)
class MemoryCheckResult:
    """The result of a memory check."""

    reason: str
    """The first fault in one line; empty without a fault."""
    findings: tuple[Finding, ...] = ()
    """The first of each kind at each line."""
    unsupported: str = ""
    """Why the file cannot run here, or not to the end; else empty."""
    accesses: int = 0
    """Number of checked accesses of single threads."""
    doubtful_findings: tuple[Finding, ...] = ()
    """Findings that depend on the random contents: out-of-bounds accesses at an index from a buffer, assertions."""
    notes: tuple[Finding, ...] = ()
    launches: tuple[RecordedLaunch, ...] = ()
    stored_elements: tuple[tuple[str, int], ...] = ()
    """Buffers of unknown size, each with the number of elements up to the last one that the launches change."""


def check_memory(backend: Backend, plan: MemoryPlan, seed: int) -> MemoryCheckResult:
    """Run a plan's launches in order and check every memory access.

    Inputs are seeded random numbers; memory that nothing fills is poisoned. Raises UsageError on a backend that cannot
    trace, CompileError, LaunchError and EnvironmentFault.
    """
    traced = _trace_plan(backend, plan, seed, TraceOptions(count=False))
    if isinstance(traced, str):
        return MemoryCheckResult("", unsupported=traced)
    trace, findings, notes, damage = traced.trace, traced.findings, traced.notes, traced.damage
    doubtful = [finding for finding in findings if _depends_on_contents(finding, plan)]
    first_by_line: dict[tuple[str, str, int], Finding] = {}
    for location in [finding for finding in findings if finding not in doubtful] or ([] if doubtful else damage):
        first_by_line.setdefault((location.kind, location.file, location.line), location)
    stop_reason = ""
    if doubtful and not first_by_line and not trace.completed:
        stop_reason = (
            "the launch stopped because of the values in its inputs, which are random numbers in this mode: "
            f"{headline(doubtful[0])}"
        )
    return MemoryCheckResult(
        headline(next(iter(first_by_line.values()))) if first_by_line else "",
        tuple(first_by_line.values()),
        stop_reason,
        accesses=trace.accesses,
        doubtful_findings=tuple(doubtful),
        notes=notes,
        launches=tuple(map(RecordedLaunch.of, plan.launches)),
        stored_elements=traced.stored_elements,
    )


def trace_memory(plan: MemoryPlan, seed: int, limits: DeviceLimits | None = None) -> tuple[Traffic, list[Finding]]:
    """Run a plan's launches once on the cpu backend and count every memory access.

    `limits` is the GPU whose caches are modelled. Raises UsageError when the file cannot run here, and what
    `check_memory` raises.
    """
    traced = _trace_plan(open_backend("cpu"), plan, seed, TraceOptions(limits=limits))
    if isinstance(traced, str):
        raise UsageError(
            f"{plan.path}: unsupported on the cpu backend: {traced}; run the program on a GPU with: "
            "compute-sanitizer ./PROGRAM",
            kind="unsupported",
            subject=plan.path,
        )
    moved = traced.trace.traffic.renamed(lambda file: _original_file(file, plan))
    return moved, [finding for finding in traced.findings if not _depends_on_contents(finding, plan)]


@dataclass(frozen=True)
class _TracedPlan:
    """The trace of a plan, with findings and notes that refer to the user's file."""

    trace: Trace
    findings: list[Finding]
    notes: tuple[Finding, ...]
    damage: list[Finding]
    """Writes before or after a buffer."""
    stored_elements: tuple[tuple[str, int], ...]


def _trace_plan(backend: Backend, plan: MemoryPlan, seed: int, options: TraceOptions) -> _TracedPlan | str:
    """Trace a plan's launches on new buffers; return the reason instead if the backend cannot run them."""
    if not isinstance(backend, TracingBackend):
        raise UsageError(
            f"{plan.path}: a file without an operator can be checked only on the cpu backend; add --backend cpu",
            kind="needs-cpu",
            subject=plan.path,
        )
    with tempfile.TemporaryDirectory(prefix="opbench-memory-") as folder:
        source = None
        if plan.edits:
            source = Path(folder) / plan.path.name
            source.write_text(plan.text(), newline="")
        request = plan.request(source)
        if reason := backend.unsupported_reason(request):
            return reason
        buffers: dict[str, Buffer] = {}
        contents_before: dict[str, np.ndarray] = {}
        try:
            for planned in plan.buffers:
                buffers[planned.name] = backend.allocate(planned.name, (planned.elements,), planned.dtype)
                _fill_buffer(buffers[planned.name], planned, seed)
                if not planned.is_bounded:
                    contents_before[planned.name] = buffers[planned.name].read()
            trace = backend.trace(request, plan.launches, buffers, options)
            return _TracedPlan(
                trace,
                [
                    _with_unfilled_buffer(_locate_in_plan(finding, source, plan), plan)
                    for finding in trace.findings
                    if not finding.hint
                ],
                tuple(_locate_in_plan(note, source, plan) for note in trace.notes),
                [finding for b in buffers.values() if (finding := _guard_damage(b, plan))],
                tuple((name, _changed_end(before, buffers[name].read())) for name, before in contents_before.items()),
            )
        finally:
            backend.free(buffers)


def _changed_end(before: np.ndarray, after: np.ndarray) -> int:
    """Return the number of elements up to the last one whose bytes differ; 0 for equal contents."""
    changed = np.flatnonzero(before.reshape(-1).view(np.uint8) != after.reshape(-1).view(np.uint8))
    return int(changed[-1]) // before.dtype.itemsize + 1 if changed.size else 0


def _depends_on_contents(finding: Finding, plan: MemoryPlan) -> bool:
    """Return whether a finding may be an effect of the random buffer contents, and not of the kernel.

    Examples are an index read from a buffer, or an assertion on a value. Of races, only those at a store whose
    index comes from a buffer count: real contents may ensure distinct elements. An access beyond the end of a
    buffer whose size is unknown counts, too.
    """
    if finding.kind == "trap" and "assertion" in finding.message:
        return True
    if finding.kind.endswith("_race"):
        lines = {(finding.file, finding.line), *((location.file, location.line) for location in finding.related)}
        return any(Path(file).name == plan.path.name and line in plan.scatter_lines for file, line in lines)
    if finding.kind == "out_of_bounds" and any(
        buffer.name == finding.buffer and not buffer.is_bounded for buffer in plan.buffers
    ):
        return True
    is_own_file = Path(finding.file).name == plan.path.name
    return finding.kind == "out_of_bounds" and is_own_file and (finding.called_from or finding.line) in plan.data_lines


def _with_unfilled_buffer(finding: Finding, plan: MemoryPlan) -> Finding:
    """Return a finding on a read of a buffer that the host code never fills, with the way to fill it.

    Files that show only a kernel and its launch leave out the copies to the inputs.
    """
    unfilled = {buffer.name for buffer in plan.buffers if buffer.content == "uninitialised"}
    if finding.kind != "uninitialised_global" or finding.buffer not in unfilled:
        return finding
    header = "the header" if has_header(plan.path) else f"a header ({next_command('adopt', plan.path, write=True)})"
    detail = (
        f"Nothing fills '{finding.buffer}' before the launches. If it is an input, fill it in the host code, or write "
        f'content = "random" for it in {header}.'
    )
    return replace(finding, details=(*finding.details, detail))


def _locate_in_plan(finding: Finding, source: Path | None, plan: MemoryPlan) -> Finding:
    """Return the finding with the user's file instead of the edited copy that was compiled."""
    if source is None:
        return finding
    related = tuple(replace(location, file=_original_file(location.file, plan)) for location in finding.related)
    file, kernel_file = _original_file(finding.file, plan), _original_file(finding.kernel_file, plan)
    return replace(finding, file=file, kernel_file=kernel_file, related=related)


def _original_file(file: str, plan: MemoryPlan) -> str:
    """Return the user's file for an edited copy of it, and any other file unchanged."""
    return str(plan.path.resolve()) if Path(file).name == plan.path.name else file


def _guard_damage(buffer: Buffer, plan: MemoryPlan) -> Finding | None:
    """Return a finding for a changed guard byte of a buffer; None if no guard byte changed."""
    offset = buffer.changed_guard_offset()
    if offset is None:
        return None
    size = int(np.prod(buffer.shape)) * buffer.dtype.itemsize
    return replace(guard_finding(buffer.name, offset, size), file=str(plan.path.resolve()))


def _fill_buffer(buffer: Buffer, planned: PlannedBuffer, seed: int) -> None:
    """Fill a buffer as the plan requires: random numbers whose seed includes its name, zeros, or poison."""
    if planned.content == "uninitialised":
        buffer.poison()
        return
    if planned.content == "zero":
        buffer.write(np.zeros(buffer.shape, buffer.dtype))
        return
    rng = np.random.default_rng([seed, zlib.crc32(planned.name.encode())])
    content: np.ndarray
    if planned.dtype in ("f32", "f64", "f16"):
        content = rng.standard_normal(buffer.shape, np.float32)
    elif planned.dtype == "bf16":
        content = (rng.standard_normal(buffer.shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        content = rng.integers(1, RANDOM_INTEGER_LIMIT, buffer.shape)
    buffer.write(content.astype(buffer.dtype))
