"""Map each kind of runtime report to its rule, and write the message of the finding."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from opbench.backend import rules
from opbench.backend.excerpt import combines_elements, is_update, source_line
from opbench.backend.findings import RelatedLocation, place_text, triple_text
from opbench.backend.rules import Rule
from opbench.emulator.abi import (
    BETWEEN_BLOCKS,
    BOTH_VOLATILE,
    GUARDED,
    NARROW_FENCE,
    NARROW_SCOPE,
    TAKEN_EARLY,
    UNACQUIRED,
    Report,
    ReportKind,
)
from opbench.emulator.lines import SourcePosition
from opbench.kernels.launch import Dim3

FIRST_TRACED = ReportKind.GLOBAL_BOUNDS
"""Reports from this kind on have the return address of a call instead of the address of the instruction."""
ACCESS_NAMES = ("read", "write", "atomic update")
"""Names of `access` and `other_access`."""
DYNAMIC_NAME = "extern __shared__"
IN_SHARED = b"shared"
"""The text of a report whose address counts from the start of shared memory."""
IN_MODULE = b"module"
"""The text of a report whose address counts from the module's base."""


@dataclass(frozen=True)
class AccessTarget:
    """The target of an access: a buffer, variable or shared array, and the offset in bytes."""

    what: str = ""
    name: str = ""
    offset: int | None = None
    bytes: int = 0

    def phrase(self) -> str:
        """Return a phrase such as "byte 12 of buffer 'out'"."""
        if not self.name:
            return "an address far from every buffer"
        name = f" '{self.name}'" if self.name != DYNAMIC_NAME else ""
        return f"byte {self.offset} of {self.what}{name}"


@dataclass(frozen=True)
class Event:
    """A report with the target of its access and the source positions of both sides."""

    report: Report
    target: AccessTarget
    place: SourcePosition
    other: SourcePosition
    """The position of the other access of a race; UNKNOWN_POSITION if there is none."""

    @property
    def text(self) -> str:
        """Return the message that the runtime wrote."""
        return str(self.report.text.decode(errors="replace"))

    @property
    def access(self) -> str:
        """Return the access as a phrase such as "read of 4 bytes at byte 12 of buffer 'out'"."""
        return f"{self.verb} of {self.size} at {self.target.phrase()}"

    @property
    def verb(self) -> str:
        """Return the kind of this access: "read", "write" or "atomic update"."""
        return ACCESS_NAMES[self.report.access]

    @property
    def other_verb(self) -> str:
        """Return the kind of the other access of a race."""
        return ACCESS_NAMES[self.report.other_access]

    @property
    def size(self) -> str:
        """Return the size of the access, such as "4 bytes"."""
        return f"{self.report.bytes} byte{'s' if self.report.bytes > 1 else ''}"

    @property
    def same_warp(self) -> bool:
        """Return whether both threads of a race belong to one warp."""
        return bool(self.report.warp == self.report.other_warp)

    @property
    def other_thread_text(self) -> str:
        """Return the thread of the other access, such as "thread (1,0,0)"."""
        return f"thread {triple_text(dim3(self.report.other_thread))}"

    @property
    def other_block_text(self) -> str:
        """Return the block of the other access, such as "block (1,0,0)"."""
        return f"block {triple_text(dim3(self.report.other_block))}"

    @property
    def other_line_text(self) -> str:
        """Return the line of the other access, such as "line 12"."""
        return position_text(self.other)

    def related_location(self, message: str) -> tuple[RelatedLocation, ...]:
        """Return the position of the other access as a related location; () if its line is unknown."""
        other_position = self.other
        if not other_position.line:
            return ()
        text = source_line(other_position.file, other_position.line)
        return (
            RelatedLocation(
                message,
                other_position.file,
                other_position.line,
                other_position.column,
                other_position.called_from,
                text,
            ),
        )


@dataclass(frozen=True)
class FindingTexts:
    """The texts of a finding about a report."""

    message: str
    details: tuple[str, ...] = ()
    related: tuple[RelatedLocation, ...] = ()
    remedy: str = ""
    """How to fix the kernel; "" means the remedy of the rule."""


def is_between_warps(report: Report) -> bool:
    """Return whether a report is of a race between two warps, which `__syncwarp()` does not cure."""
    races = (ReportKind.SHARED_RACE, ReportKind.THREAD_RACE)
    return report.kind in races and bool(report.warp != report.other_warp)


def dim3(value: Iterable[int]) -> Dim3:
    """Return three numbers of a report as a tuple (x, y, z)."""
    x, y, z = value
    return x, y, z


def position_text(source_position: SourcePosition) -> str:
    """Return a source position as text, such as "line 12"."""
    return place_text(source_position.file, source_position.line, source_position.called_from)


def _runtime_texts(event: Event) -> FindingTexts:
    """Return the texts that the runtime wrote: the first line is the message, each further line a detail."""
    message, *details = event.text.split("\n")
    return FindingTexts(message, tuple(details))


def _fault_texts(event: Event) -> FindingTexts:
    """Write the texts on an access that the system refused."""
    target = event.target
    where = target.phrase() if target.name else f"address {event.report.address:#x}, which belongs to no buffer"
    return FindingTexts(f"access to {where}")


def _stack_overflow_texts(event: Event) -> FindingTexts:
    """Write the texts on a thread that needs too much local memory."""
    return FindingTexts(
        "local arrays and calls of one thread need more than the 512 KiB of local memory that a GPU has"
    )


def _shared_overrun_texts(event: Event) -> FindingTexts:
    """Write the texts on a write beyond the dynamic shared array."""
    return FindingTexts(f"write at byte {event.report.address} of the dynamic shared array, beyond its end")


def _divergent_barrier_texts(event: Event) -> FindingTexts:
    """Write the texts on threads of a warp at different barriers."""
    report = event.report
    return FindingTexts(f"{event.text} at the barriers of lines {report.other_line} and {report.line}")


def _warp_mask_texts(event: Event) -> FindingTexts:
    """Write the texts on a warp operation whose mask does not match its lanes."""
    report, text = event.report, _runtime_texts(event)
    lines = f" at lines {report.line} and {report.other_line}" if report.other_line else ""
    return replace(text, message=text.message + lines)


def _outside_mask_texts(event: Event) -> FindingTexts:
    """Write the texts on a shuffle from a lane that does not execute it."""
    return replace(
        _runtime_texts(event),
        remedy="Read from lanes that execute the shuffle: launch blocks of a multiple of 32 threads, or use a smaller "
        "width or offset, and a mask that names the lanes.",
    )


def _arithmetic_texts(event: Event) -> FindingTexts:
    """Write the texts on an integer division by zero."""
    return FindingTexts(
        "integer division by zero",
        ("The result on a GPU is unspecified. The same holds for the smallest integer divided by -1.",),
        remedy="Test the divisor before the division.",
    )


def _bounds_texts(event: Event) -> FindingTexts:
    """Write the texts on an access outside of its buffer or array."""
    target = event.target
    if target.bytes or not target.name:
        return FindingTexts(event.access + (f", which has {target.bytes} bytes" if target.bytes else ""))
    return FindingTexts(
        f"{event.access}, which has 0 bytes",
        ("The launch requests no dynamic shared memory.",),
        remedy="Set `shared` in the launch of the header to the bytes that the kernel needs.",
    )


def _uninitialised_texts(memory: str) -> Callable[[Event], FindingTexts]:
    """Return a function that writes the texts on a read of uninitialised memory."""

    def write_texts(event: Event) -> FindingTexts:
        return FindingTexts(f"{event.verb} of uninitialised {memory} memory: {event.size} at {event.target.phrase()}")

    return write_texts


def _misaligned_texts(event: Event) -> FindingTexts:
    """Return the texts of an access whose address is not a multiple of its width."""
    return FindingTexts(f"{event.access}, which is not a multiple of {event.report.bytes}")


def _constant_store_texts(event: Event) -> FindingTexts:
    """Write the texts on a store to a `__constant__` variable."""
    return FindingTexts(f"{event.access}, which is __constant__: no kernel may write it")


def _overflow_texts(event: Event) -> FindingTexts:
    """Write the texts on an integer result that is too large for its type."""
    return FindingTexts(f"{event.text} exceeds the range of the type")


def _index_texts(event: Event) -> FindingTexts:
    """Write the texts on an index outside of an array."""
    return FindingTexts(f"index {ctypes.c_int64(event.report.address).value} of an array of type {event.text}")


def _thread_race_texts(event: Event) -> FindingTexts:
    """Write the texts on a race between two threads of a block."""
    barrier = "__syncwarp() or __syncthreads()" if event.same_warp else "__syncthreads()"
    related = event.related_location(f"{event.other_verb} by {event.other_thread_text}")
    is_step = combines_elements(source_line(event.place.file, event.place.line), event.place.column)
    has_lock = event.report.instructions & (UNACQUIRED | GUARDED | TAKEN_EARLY)
    if _is_update(event) and not is_step and not has_lock:
        return _lost_update_texts(event, f"{event.other_thread_text} updates it, too", related)
    details = [f"No {barrier} orders it with the {event.other_verb} by {event.other_thread_text}."]
    if event.same_warp and event.report.instructions & BOTH_VOLATILE:
        details.append(
            "Since compute capability 7.0 the lanes of a warp need not run in step, so volatile does not suffice."
        )
    elif reason := _synchronisation_fault(event, event.other_thread_text):
        details.append(reason)
    remedy = _lock_remedy(event, "__threadfence_block()") or f"Put {barrier} between the two accesses."
    return FindingTexts(
        f"{event.access} races with the {event.other_verb} at {event.other_line_text}", tuple(details), related, remedy
    )


def _block_race_texts(event: Event) -> FindingTexts:
    """Write the texts on a race between two blocks."""
    block = event.other_block_text
    related = event.related_location(f"{event.other_verb} by {block}")
    if _is_update(event) and not event.report.instructions & (UNACQUIRED | GUARDED | TAKEN_EARLY):
        return _lost_update_texts(event, f"{block} updates it, too", related)
    details = [f"Nothing orders it with the {event.other_verb} by {block}."]
    if reason := _synchronisation_fault(event, block):
        details.append(reason)
    message = f"{event.access} races with the {event.other_verb} at {event.other_line_text}"
    remedy = _lock_remedy(event, "__threadfence()")
    if event.report.text == IN_SHARED:
        remedy = (
            "Put cluster.sync() between the two accesses; a relaxed arrival at the cluster's barrier orders nothing."
        )
    return FindingTexts(message, tuple(details), related, remedy)


def _lock_remedy(event: Event, fence: str) -> str:
    """Return the remedy for a race after a thread has read a flag or taken a lock; "" for any other race."""
    if event.report.instructions & (UNACQUIRED | TAKEN_EARLY):
        return f"Put {fence} after the operation that takes the lock or reads the flag, or give that one acquire order."
    if event.report.instructions & NARROW_FENCE:
        return f"Put {fence} before the flag is set, in place of __threadfence_block()."
    if event.report.instructions & GUARDED and _is_update(event):
        return (
            f"Where a lock or flag orders the accesses, put {fence} after it is taken or read, and before it is given "
            "back or set; else use atomicAdd."
        )
    return ""


def _synchronisation_fault(event: Event, other: str) -> str:
    """Return why two accesses race although the kernel uses a flag, a lock or volatile; "" if it uses none."""
    if event.report.instructions & TAKEN_EARLY:
        return (
            f"{other[0].upper()}{other[1:]} has taken the lock without a fence after it, so the {event.other_verb} "
            "may happen before those of the thread that held the lock before."
        )
    if event.report.instructions & UNACQUIRED:
        return f"An atomic operation of this thread has seen what {other} published, but no fence follows it."
    if event.report.instructions & NARROW_FENCE:
        return "The fence before the flag that this thread has read orders memory within one block only."
    if event.report.instructions & NARROW_SCOPE:
        return "The scope of an atomic access is the block or the cluster, which does not hold both threads."
    if event.report.instructions & BOTH_VOLATILE:
        return "volatile does not make a store atomic: use atomicAdd(), or fences on both sides of a flag."
    if [ACCESS_NAMES[event.report.access], ACCESS_NAMES[event.report.other_access]] == ["write", "atomic update"]:
        return "Which of the two happens last is undefined, and the store does not keep the update: order them."
    return ""


def _plain_read_texts(event: Event) -> FindingTexts:
    """Write the texts on a plain read that races with an atomic update."""
    block = event.other_block_text
    related = event.related_location(f"{event.other_verb} by {block}")
    message = f"{event.access} is not ordered with the {event.other_verb} at {event.other_line_text}"
    return FindingTexts(message, (f"{block.capitalize()} may update it at the same time.",), related)


def _is_update(event: Event) -> bool:
    """Return whether both accesses of a race belong to one update of a variable, such as `x += v`."""
    place, other = event.place, event.other
    same_line = (place.file, place.line) == (other.file, other.line)
    accesses = (ACCESS_NAMES[event.report.access], ACCESS_NAMES[event.report.other_access])
    if not same_line or "atomic update" in accesses:
        return False
    return is_update(source_line(place.file, place.line), place.column, other.column)


def _lost_update_texts(event: Event, other_thread: str, related: tuple[RelatedLocation, ...]) -> FindingTexts:
    """Write the texts on two threads that update a location without an atomic operation."""
    return FindingTexts(
        f"several threads update {event.size} at {event.target.phrase()} without an atomic operation",
        (f"{other_thread[0].upper()}{other_thread[1:]}, and one of the two updates may be lost.",),
        related,
        "Use atomicAdd (or another atomic operation), or let each thread sum into its own variable and combine these.",
    )


def _same_value_texts(event: Event) -> FindingTexts:
    """Write the texts on several threads that store the same value."""
    between_blocks = event.report.instructions & BETWEEN_BLOCKS
    other_thread = event.other_block_text if between_blocks else event.other_thread_text
    related = event.related_location(f"{event.other_verb} by {other_thread}")
    if event.other_verb == "read":
        message = (
            f"{event.access}, which leaves the value as it is, while {other_thread} reads it at {event.other_line_text}"
        )
        return FindingTexts(message, ("Nothing orders the two accesses.",), related)
    return FindingTexts(f"{event.access}: {other_thread} stores the same value at {event.other_line_text}", (), related)


def _missing_wait_texts(event: Event) -> FindingTexts:
    """Write the texts on an access before griddepcontrol.wait."""
    related = event.related_location(f"{event.other_verb} by an earlier launch")
    return FindingTexts(f"{event.access} before griddepcontrol.wait; an earlier launch accesses it, too", (), related)


def _unfinished_copy_texts(event: Event) -> FindingTexts:
    """Write the texts on a read of memory that a cp.async may still be filling."""
    message = f"{event.access}, which the cp.async at {event.other_line_text} may still be filling"
    detail = (
        f"{event.other_thread_text[0].upper()}{event.other_thread_text[1:]} started the copy and has not waited for it."
    )
    return FindingTexts(message, (detail,), event.related_location(f"copy started by {event.other_thread_text}"))


def _for_shared_memory(write_texts: Callable[[Event], FindingTexts]) -> Callable[[Event], FindingTexts]:
    """Return a function that uses `write_texts` for shared memory, and the runtime's own text for other memory."""

    def text(event: Event) -> FindingTexts:
        return write_texts(event) if event.report.text == IN_SHARED else _runtime_texts(event)

    return text


def _unfinished_bulk_texts(event: Event) -> FindingTexts:
    """Write the texts on a read of memory that a bulk copy may still be filling."""
    message = f"{event.access}, which the copy at {event.other_line_text} may still be filling"
    detail = "This thread has not waited for the copy's mbarrier."
    return FindingTexts(message, (detail,), event.related_location(f"copy started by {event.other_thread_text}"))


def _early_overwrite_texts(event: Event) -> FindingTexts:
    """Write the texts on a write to memory that another thread may still be reading."""
    message = f"{event.access}, which {event.other_thread_text} may still be reading at {event.other_line_text}"
    detail = "No barrier or wait orders this access after the end of that read."
    return FindingTexts(message, (detail,), event.related_location(f"read by {event.other_thread_text}"))


def _missing_fence_texts(event: Event) -> FindingTexts:
    """Write the texts on an asynchronous read without a proxy fence after ordinary stores."""
    message = f"{event.access}: no fence.proxy.async since the write at {event.other_line_text}"
    return FindingTexts(message, (), event.related_location(f"written by {event.other_thread_text}"))


@dataclass(frozen=True)
class ReportRule:
    """How to convert a kind of report to a finding: its rule, and the function that writes its texts."""

    rule: Rule
    write_texts: Callable[[Event], FindingTexts] = _runtime_texts
    hint: bool = False
    """Whether the finding is a hint: the behaviour is undefined but harmless if nothing uses the value."""


RULES_BY_KIND = {
    ReportKind.FAULT: ReportRule(rules.OUT_OF_BOUNDS, _fault_texts),
    ReportKind.STACK_OVERFLOW: ReportRule(rules.STACK_OVERFLOW, _stack_overflow_texts),
    ReportKind.SHARED_OVERRUN: ReportRule(rules.OUT_OF_BOUNDS, _shared_overrun_texts),
    ReportKind.DIVERGENT_BARRIER: ReportRule(rules.DIVERGENT_BARRIER, _divergent_barrier_texts),
    ReportKind.WARP_MASK: ReportRule(rules.WARP_MASK, _warp_mask_texts),
    ReportKind.DEADLOCK: ReportRule(rules.DEADLOCK),
    ReportKind.TRAP: ReportRule(rules.TRAP),
    ReportKind.ARITHMETIC: ReportRule(rules.TRAP, _arithmetic_texts),
    ReportKind.GLOBAL_BOUNDS: ReportRule(rules.OUT_OF_BOUNDS, _bounds_texts),
    ReportKind.SHARED_BOUNDS: ReportRule(rules.OUT_OF_BOUNDS, _bounds_texts),
    ReportKind.UNINITIALISED_SHARED: ReportRule(rules.UNINITIALISED_SHARED, _uninitialised_texts("shared")),
    ReportKind.UNINITIALISED_GLOBAL: ReportRule(rules.UNINITIALISED_GLOBAL, _uninitialised_texts("global")),
    ReportKind.SHARED_RACE: ReportRule(rules.SHARED_RACE, _thread_race_texts),
    ReportKind.GLOBAL_RACE: ReportRule(rules.BLOCK_RACE, _block_race_texts),
    ReportKind.MISALIGNED: ReportRule(rules.MISALIGNED, _misaligned_texts),
    ReportKind.UNFINISHED_COPY: ReportRule(rules.UNFINISHED_COPY, _unfinished_copy_texts),
    ReportKind.STUCK: ReportRule(rules.DEADLOCK),
    ReportKind.UNFINISHED_BULK: ReportRule(rules.UNFINISHED_COPY, _for_shared_memory(_unfinished_bulk_texts)),
    ReportKind.UNFINISHED_PRODUCT: ReportRule(rules.UNFINISHED_PRODUCT),
    ReportKind.EARLY_OVERWRITE: ReportRule(rules.EARLY_OVERWRITE, _for_shared_memory(_early_overwrite_texts)),
    ReportKind.MISSING_FENCE: ReportRule(rules.MISSING_FENCE, _for_shared_memory(_missing_fence_texts)),
    ReportKind.MBARRIER: ReportRule(rules.MBARRIER),
    ReportKind.CLUSTER_EXIT: ReportRule(rules.CLUSTER_EXIT),
    ReportKind.ILLEGAL_INSTRUCTION: ReportRule(rules.ILLEGAL_INSTRUCTION),
    ReportKind.BEYOND_SHARED: ReportRule(rules.OUT_OF_BOUNDS),
    ReportKind.DIFFERENT_PRODUCTS: ReportRule(rules.DIFFERENT_PRODUCTS),
    ReportKind.TOUCHED_SUMS: ReportRule(rules.UNFINISHED_PRODUCT),
    ReportKind.MISSING_WAIT: ReportRule(rules.MISSING_WAIT, _missing_wait_texts),
    ReportKind.THREAD_RACE: ReportRule(rules.GLOBAL_RACE, _thread_race_texts),
    ReportKind.OUTSIDE_MASK: ReportRule(rules.WARP_MASK, _outside_mask_texts, hint=True),
    ReportKind.INDEX: ReportRule(rules.OUT_OF_BOUNDS, _index_texts),
    ReportKind.OVERFLOW: ReportRule(rules.INDEX_OVERFLOW, _overflow_texts),
    ReportKind.LOCAL: ReportRule(rules.OUT_OF_BOUNDS),
    ReportKind.SAME_VALUE: ReportRule(rules.SAME_VALUE, _same_value_texts, hint=True),
    ReportKind.PARTIAL_WARP: ReportRule(rules.PARTIAL_WARP),
    ReportKind.CONSTANT_STORE: ReportRule(rules.CONSTANT_STORE, _constant_store_texts),
    ReportKind.PLAIN_READ: ReportRule(rules.UNORDERED_READ, _plain_read_texts, hint=True),
}
