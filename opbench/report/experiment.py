"""Knock-out experiments as text: a table of instruction classes, then the pairs, then remarks."""

from __future__ import annotations

from collections.abc import Iterator

from opbench import units
from opbench.results.experiment import ClassCost, Experiment, PairCost
from opbench.tables import align_columns

NAMES = {
    "global-loads": "global loads",
    "global-stores": "global stores",
    "shared": "shared-memory accesses",
    "bank-conflicts": "bank conflicts",
    "barriers": "barriers",
    "matrix": "matrix instructions",
    "atomics": "atomics",
    "address-arithmetic": "address arithmetic",
}
NO_CONFLICTS = "no-conflicts"
MISSING = {NO_CONFLICTS: "none", "outside-loops": "not applicable", "already-cheap": "not applicable"}
"""The text in place of a time for some reasons."""
REASONS = {
    "feeds-address": "other addresses depend on them",
    "feeds-branch": "branches depend on them",
    "stored-address": "their values reach memory that a kernel reads as addresses",
    "waits": "they wait for other threads",
    "another-thread-waits": "another thread waits for them",
    "mbarrier": "an mbarrier counts or needs them",
    "unknown-space": "their address may lie in any memory",
    "not-understood": "opbench does not know how to replace them",
    NO_CONFLICTS: "the emulator counts no bank conflicts of theirs",
    "joined": "the assembler joins or repeats accesses, and cannot at other addresses",
    "too-small": "shared memory has no room for 32 lanes side by side",
    "not-assembled": "ptxas rejects the kernel without them",
    "faults": "the kernel faults without them",
    "hangs": "the kernel does not end without them",
    "slower": "the first addresses and the registers of the steps cost more time than the steps save",
    "wrong-results": "the kernel without them is wrong",
    "outside-loops": "no loop repeats them",
    "not-linear": "they make an address that is no linear function of the loop counters",
    "already-cheap": "a step for each iteration costs as much",
    "used-elsewhere": "branches or values depend on them",
}
"""The meaning of each code of `opbench.results.experiment`."""
COLUMNS = ("without", "the kernel takes", "exposed", "95 % interval", "share", "instructions", "most on lines")
COUNTED = ("class of work", "instructions", "most on lines")
MAX_LINES = 3
NO_LINE = "0"
"""The line of instructions that the compiler adds."""


def experiment_lines(experiment: Experiment) -> Iterator[str]:
    """Yield the lines of the text of an experiment."""
    yield experiment.case
    measured = experiment.total_s is not None
    if measured:
        assert experiment.total_s and experiment.low_s and experiment.high_s
        interval = f"{units.time(experiment.low_s)} to {units.time(experiment.high_s)}"
        yield f"  {units.time(experiment.total_s)} ({interval}), cold L2, on {experiment.gpu}; {_code(experiment)}"
    else:
        yield f"  counted in PTX for {experiment.arch}; nothing was timed"
    if not experiment.classes:
        yield "  no instructions of any class"
        return
    rows = [_row(cost, experiment.total_s) for cost in experiment.classes]
    header = COLUMNS if measured else COUNTED
    for text in align_columns(header, [row if measured else [row[0], *row[5:]] for row in rows], (0, len(header) - 1)):
        yield f"  {text}".rstrip()
    if measured:
        yield from _sum_lines(experiment)
        for pair in experiment.pairs:
            yield f"  {_pair(pair)}"
    for cost in experiment.classes:
        for text in _remarks(cost):
            yield f"  {NAMES[cost.name]}: {text}"
    yield ""


def _code(experiment: Experiment) -> str:
    code_text = {True: "the machine code of opbench run", False: "other machine code than opbench run has", None: ""}
    return f"{experiment.arch} by {experiment.assembler}, {code_text[experiment.same_machine_code]}"


def _row(cost: ClassCost, total_s: float | None) -> list[str]:
    known_lines = [item for item in cost.lines.items() if item[0] != NO_LINE]
    lines = ", ".join(f"{line} ({count})" for line, count in known_lines[:MAX_LINES])
    counts = [str(cost.instructions), lines]
    if cost.exposed_s is None or total_s is None or cost.without_s is None:
        reason_text = MISSING.get(cost.reason, "not measurable") if cost.reason else "–"
        return [NAMES[cost.name], reason_text, "–", "–", "–", *counts]
    bound_sign = "≤ " if cost.upper_bound else "≥ " if cost.lower_bound else ""
    interval = f"{_signed(cost.low_s)} to {_signed(cost.high_s)}"
    share = units.percent(cost.exposed_s / total_s).replace("-", "−")
    return [
        NAMES[cost.name],
        units.time(cost.without_s),
        bound_sign + _signed(cost.exposed_s),
        interval,
        share,
        *counts,
    ]


def _signed(seconds: float | None) -> str:
    return "–" if seconds is None else units.signed_time(seconds).lstrip("+")


def _sum_lines(experiment: Experiment) -> Iterator[str]:
    """Yield the sum of the times that single classes cost; bank conflicts are part of shared memory."""
    class_times_s = [cost.exposed_s for cost in experiment.classes if cost.exposed_s is not None]
    conflict_times_s = [
        cost.exposed_s for cost in experiment.classes if cost.name == "bank-conflicts" and cost.exposed_s
    ]
    if class_times_s and experiment.total_s:
        total = sum(class_times_s) - sum(conflict_times_s)
        share = units.percent(total / experiment.total_s)
        yield f"  together {_signed(total)}, {share} of the kernel's time; the rest overlaps, or is other work"


def _pair(pair: PairCost) -> str:
    names = " and ".join(NAMES[name] for name in pair.names)
    interval = f"{_signed(pair.low_s)} to {_signed(pair.high_s)}"
    if pair.low_s > 0:
        meaning = f"{_signed(pair.overlap_s)} ({interval}) more than one by one: each hides behind the other"
    elif pair.high_s < 0:
        interval = f"{_signed(-pair.high_s)} to {_signed(-pair.low_s)}"
        meaning = f"{_signed(-pair.overlap_s)} ({interval}) less than one by one: they share a wait"
    else:
        meaning = f"as much as one by one (difference {interval})"
    return f"without {names}: {_signed(pair.exposed_s)} exposed, {meaning}"


def _remarks(cost: ClassCost) -> Iterator[str]:
    """Yield remarks on a class: work that its time includes or omits."""
    if cost.reason in ("not-assembled", "faults", "hangs", "slower", "wrong-results"):
        yield f"not measurable: {REASONS[cost.reason]} ({cost.detail})"
    if cost.reason == "joined":
        yield f"not measurable: {REASONS[cost.reason]}"
    if cost.high_s is not None and cost.high_s < 0:
        yield "nothing is exposed: what takes their place costs more time"
    total = cost.instructions + sum(line.instructions for line in cost.kept)
    for reason in dict.fromkeys(line.reason for line in cost.kept):
        kept_lines = [line for line in cost.kept if line.reason == reason]
        count = sum(line.instructions for line in kept_lines)
        lines = [line.line for line in kept_lines if line.line != NO_LINE]
        place = f" ({'lines' if lines[1:] else 'line'} {', '.join(lines[:MAX_LINES])})" if lines else ""
        amount = "all" if count == total else f"{count} of {total}"
        yield f"{amount} instructions stay: {REASONS[reason]}{place}"
    if cost.upper_bound:
        yield f"an upper bound: the assembler also removed {', '.join(cost.upper_bound)}"
    elif cost.rolled:
        yield "a lower bound: the assembler unrolled loops less than in the kernel"
    elif cost.spills:
        yield "a lower bound: registers are spilled that the kernel keeps"
    if cost.registers and cost.exposed_s is not None and abs(cost.registers[1] - cost.registers[0]) > 8:
        registers_before, registers_after = cost.registers
        yield f"{registers_after} registers a thread where the kernel has {registers_before}, so occupancy may differ"
