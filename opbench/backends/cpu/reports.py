"""The runtime's reports: the rule that each kind breaks, and how its message is put together."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from opbench.backends.cpu.library import Report
from opbench.catalog.launch import Dim3
from opbench.traffic import rules
from opbench.traffic.rules import Rule


class ReportKind(IntEnum):
    """`ReportKind` of runtime/worker.hpp: the same names in the same order, which a test compares."""

    FAULT = 1
    STACK_OVERFLOW = 2
    SHARED_OVERRUN = 3
    DIVERGENT_BARRIER = 4
    WARP_MASK = 5
    DEADLOCK = 6
    TRAP = 7
    ARITHMETIC = 8
    GLOBAL_BOUNDS = 9
    SHARED_BOUNDS = 10
    UNINITIALISED_SHARED = 11
    UNINITIALISED_GLOBAL = 12
    SHARED_RACE = 13
    GLOBAL_RACE = 14
    MISALIGNED = 15
    UNFINISHED_COPY = 16
    STUCK = 17
    UNFINISHED_BULK = 18
    UNFINISHED_PRODUCT = 19
    EARLY_OVERWRITE = 20
    MISSING_FENCE = 21
    MBARRIER = 22
    CLUSTER_EXIT = 23
    ILLEGAL_INSTRUCTION = 24
    BEYOND_SHARED = 25
    DIFFERENT_PRODUCTS = 26
    TOUCHED_SUMS = 27
    MISSING_WAIT = 28
    THREAD_RACE = 29
    OUTSIDE_MASK = 30
    INDEX = 31
    OVERFLOW = 32
    LOCAL = 33
    SAME_VALUE = 34
    PARTIAL_WARP = 35


FIRST_TRACED = ReportKind.GLOBAL_BOUNDS
"""Reports from this kind on hold the address that a call returns to, rather than the instruction's own."""
BOTH_VOLATILE, BETWEEN_BLOCKS = 4, 8
"""Bits of a report's `instructions`; see runtime/worker.hpp."""
VERBS = ("reads", "writes", "updates atomically")
IN_SHARED = b"shared"
"""The text of a report whose address counts from the start of shared memory."""
IN_MODULE = b"module"
"""The text of a report whose address counts from the module's base."""


@dataclass(frozen=True)
class Spot:
    """Where an access went: a buffer or shared array, and how far into it."""

    what: str = ""
    name: str = ""
    offset: int | None = None
    bytes: int = 0

    def phrase(self) -> str:
        """As in "byte 12 of buffer 'out'"."""
        return f"byte {self.offset} of {self.what} '{self.name}'" if self.name else "an address far from every buffer"


@dataclass(frozen=True)
class Event:
    """A report with its addresses resolved: what it accesses, and where both sides stand in the source."""

    report: Report
    spot: Spot
    place: str
    """Such as "line 12"."""
    other: str
    """The place of the other side of a race."""

    @property
    def text(self) -> str:
        """The runtime's own words."""
        return str(self.report.text.decode(errors="replace"))

    @property
    def access(self) -> str:
        """As in "reads 4 bytes at byte 12 of buffer 'out'"."""
        size = self.report.bytes
        verb = VERBS[self.report.access]
        return f"{verb} {size} byte{'s' if size > 1 else ''} at {self.spot.phrase()}"

    @property
    def other_thread(self) -> Dim3:
        """The thread on the other side."""
        return dim3(self.report.other_thread)

    @property
    def other_block(self) -> Dim3:
        """The block on the other side."""
        return dim3(self.report.other_block)


def dim3(value: Iterable[int]) -> Dim3:
    """Three numbers of a report as a tuple."""
    x, y, z = value
    return x, y, z


def _text(event: Event) -> str:
    return event.text


def _fault(event: Event) -> str:
    spot = event.spot
    return "memory access at " + (spot.phrase() if spot.name else f"{event.report.address:#x}, far away")


def _stack_overflow(event: Event) -> str:
    return "a thread's local arrays and calls need more than a GPU's 512 KiB of local memory"


def _shared_overrun(event: Event) -> str:
    return f"shared memory written at byte {event.report.address}, behind the dynamic array's end"


def _divergent_barrier(event: Event) -> str:
    return f"{event.text} at barriers of lines {event.report.other_line} and {event.report.line}"


def _warp_mask(event: Event) -> str:
    lines = f", of lines {event.report.line} and {event.report.other_line}" if event.report.other_line else ""
    return event.text + lines


def _arithmetic(event: Event) -> str:
    return "integer division by zero, or of the least integer by -1; a GPU yields an unspecified value"


def _bounds(event: Event) -> str:
    spot = event.spot
    none = "; the launch asks for no dynamic shared memory (`shared` in its header)"
    return event.access + (f", which has {spot.bytes}" if spot.bytes else none if spot.name else "")


def _uninitialised_global(event: Event) -> str:
    return f"{event.access}, which nobody has written"


def _uninitialised_shared(event: Event) -> str:
    return f"{event.access}, which nobody has written in this block"


def _misaligned(event: Event) -> str:
    return f"{event.access}, an address that is no multiple of {event.report.bytes}"


def _overflow(event: Event) -> str:
    return f"{event.text} is more than it holds"


def _index(event: Event) -> str:
    return f"index {ctypes.c_int64(event.report.address).value} of an array {event.text}"


def _thread_race(event: Event) -> str:
    report = event.report
    same_warp = report.warp == report.other_warp
    barrier = "__syncwarp() or __syncthreads()" if same_warp else "__syncthreads()"
    earlier = f"thread {event.other_thread} {VERBS[report.other_access]} at {event.other}"
    words = f"{event.access} at {event.place}, which {earlier} with no {barrier} between"
    if same_warp and report.instructions & BOTH_VOLATILE:
        words += (
            "; volatile sufficed where the lanes of a warp went in step, before compute capability 7.0: now write "
            "__syncwarp() between the two"
        )
    return words


def _block_race(event: Event) -> str:
    earlier = f"block {event.other_block} {VERBS[event.report.other_access]} at {event.other}"
    return f"{event.access} at {event.place}, which {earlier}; nothing orders the two blocks"


def _same_value(event: Event) -> str:
    between_blocks = event.report.instructions & BETWEEN_BLOCKS
    who = f"block {event.other_block}" if between_blocks else f"thread {event.other_thread}"
    if VERBS[event.report.other_access] == "reads":
        return (
            f"{event.access} at {event.place}, as they are, which {who} reads at {event.other}; nothing orders the two"
        )
    return f"{event.access} at {event.place}, the same as {who} wrote at {event.other}: allowed, whoever is last"


def _missing_wait(event: Event) -> str:
    ahead = f"an earlier launch {VERBS[event.report.other_access]} at {event.other}"
    return f"{event.access} at {event.place}, which {ahead}; no griddepcontrol.wait comes before"


def _unfinished_copy(event: Event) -> str:
    copy = f"the cp.async of thread {event.other_thread} at {event.other} may still be filling"
    return f"{event.access} at {event.place}, which {copy}; that thread has not waited for it"


def _of_a_cell(goes_on: Callable[[Event], str]) -> Callable[[Event], str]:
    """A finding about one location of shared memory; without one, the runtime has the whole text."""

    def message(event: Event) -> str:
        cell = event.report.text == IN_SHARED
        return f"{event.access} at {event.place}, {goes_on(event)}" if cell else event.text

    return message


def _unfinished_bulk(event: Event) -> str:
    copy = f"the copy that thread {event.other_thread} started at {event.other}"
    return f"which {copy} may still be filling: this thread has not waited for the copy's mbarrier"


def _early_overwrite(event: Event) -> str:
    return (
        f"which thread {event.other_thread} may still be reading at {event.other}: nothing says that it has been read"
    )


def _missing_fence(event: Event) -> str:
    wrote = f"which thread {event.other_thread} wrote at {event.other} and did not make known"
    return f"{wrote}: no fence.proxy.async is between"


@dataclass(frozen=True)
class Form:
    """How a kind of report becomes a finding."""

    rule: Rule
    message: Callable[[Event], str] = _text
    hint: bool = False
    """Whether it is undefined, and harmless where nothing uses the value."""


FORMS = {
    ReportKind.FAULT: Form(rules.OUT_OF_BOUNDS, _fault),
    ReportKind.STACK_OVERFLOW: Form(rules.STACK_OVERFLOW, _stack_overflow),
    ReportKind.SHARED_OVERRUN: Form(rules.OUT_OF_BOUNDS, _shared_overrun),
    ReportKind.DIVERGENT_BARRIER: Form(rules.DIVERGENT_BARRIER, _divergent_barrier),
    ReportKind.WARP_MASK: Form(rules.WARP_MASK, _warp_mask),
    ReportKind.DEADLOCK: Form(rules.DEADLOCK),
    ReportKind.TRAP: Form(rules.TRAP),
    ReportKind.ARITHMETIC: Form(rules.TRAP, _arithmetic),
    ReportKind.GLOBAL_BOUNDS: Form(rules.OUT_OF_BOUNDS, _bounds),
    ReportKind.SHARED_BOUNDS: Form(rules.OUT_OF_BOUNDS, _bounds),
    ReportKind.UNINITIALISED_SHARED: Form(rules.UNINITIALISED_SHARED, _uninitialised_shared),
    ReportKind.UNINITIALISED_GLOBAL: Form(rules.UNINITIALISED_GLOBAL, _uninitialised_global),
    ReportKind.SHARED_RACE: Form(rules.SHARED_RACE, _thread_race),
    ReportKind.GLOBAL_RACE: Form(rules.BLOCK_RACE, _block_race),
    ReportKind.MISALIGNED: Form(rules.MISALIGNED, _misaligned),
    ReportKind.UNFINISHED_COPY: Form(rules.UNFINISHED_COPY, _unfinished_copy),
    ReportKind.STUCK: Form(rules.DEADLOCK),
    ReportKind.UNFINISHED_BULK: Form(rules.UNFINISHED_COPY, _of_a_cell(_unfinished_bulk)),
    ReportKind.UNFINISHED_PRODUCT: Form(rules.UNFINISHED_PRODUCT),
    ReportKind.EARLY_OVERWRITE: Form(rules.EARLY_OVERWRITE, _of_a_cell(_early_overwrite)),
    ReportKind.MISSING_FENCE: Form(rules.MISSING_FENCE, _of_a_cell(_missing_fence)),
    ReportKind.MBARRIER: Form(rules.MBARRIER),
    ReportKind.CLUSTER_EXIT: Form(rules.CLUSTER_EXIT),
    ReportKind.ILLEGAL_INSTRUCTION: Form(rules.ILLEGAL_INSTRUCTION),
    ReportKind.BEYOND_SHARED: Form(rules.OUT_OF_BOUNDS),
    ReportKind.DIFFERENT_PRODUCTS: Form(rules.DIFFERENT_PRODUCTS),
    ReportKind.TOUCHED_SUMS: Form(rules.UNFINISHED_PRODUCT),
    ReportKind.MISSING_WAIT: Form(rules.MISSING_WAIT, _missing_wait),
    ReportKind.THREAD_RACE: Form(rules.GLOBAL_RACE, _thread_race),
    ReportKind.OUTSIDE_MASK: Form(rules.WARP_MASK, hint=True),
    ReportKind.INDEX: Form(rules.OUT_OF_BOUNDS, _index),
    ReportKind.OVERFLOW: Form(rules.INDEX_OVERFLOW, _overflow),
    ReportKind.LOCAL: Form(rules.OUT_OF_BOUNDS),
    ReportKind.SAME_VALUE: Form(rules.SAME_VALUE, _same_value, hint=True),
    ReportKind.PARTIAL_WARP: Form(rules.PARTIAL_WARP),
}
