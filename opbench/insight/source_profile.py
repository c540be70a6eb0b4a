"""Sum the reasons why the warps of a case wait by source line and instruction, and charge the waits to their causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath

from opbench.insight.levels import Bound
from opbench.insight.nsight.charging import Charge, charge_samples
from opbench.insight.nsight.metrics import KernelCounters
from opbench.insight.nsight.operands import read_operands
from opbench.insight.nsight.source_page import UNLISTED, SampledInstruction, SampledKernel
from opbench.insight.stalls import PRODUCTS, find_cause, find_stall, issues_or_could_issue, mechanisms_of
from opbench.kernels.mechanism import MECHANISMS
from opbench.records import JSON

SAMPLE_COUNT = "smsp__pcsamp_sample_count"
REASON_COUNT = "smsp__pcsamp_warps_issue_stalled_"
HOTTEST = 10

Place = tuple[str, int]
"""A file and a line; the line is 0 if none is known."""


@dataclass(frozen=True)
class ProfiledLine:
    """One source line with the sampled waits at it and for it."""

    file: str
    line: int
    text: str
    waiting: Mapping[str, int]
    """Samples by reason of warps that were about to execute an instruction of the line."""
    charged: Mapping[str, int]
    """Samples by reason of warps, at any line, that waited for an instruction of this line."""
    executed: int
    """How many instructions of the line warps executed."""

    @property
    def total(self) -> int:
        """Return the samples that are charged to the line."""
        return sum(self.charged.values())

    @property
    def place(self) -> str:
        """Return file and line, such as "mine.cu:14"; "unknown line" without one."""
        return f"{PurePath(self.file).name}:{self.line}" if self.line else "unknown line"


@dataclass(frozen=True)
class Mismatch:
    """A sum of samples, or of executed instructions, that differs from the profiler's own total."""

    kernel: str
    quantity: str
    """The name of the profiler's metric, or "charged"."""
    summed: int
    total: int


@dataclass(frozen=True)
class Remedy:
    """The mechanisms that shorten the waits of one reason."""

    reason: str
    samples: int
    causes: Mapping[str, int]
    """Samples by class of the instructions that warps wait for, such as "shared memory"; empty for other waits."""
    mechanisms: tuple[str, ...]
    """Keys of `MECHANISMS`, the most effective first."""
    variants: Mapping[str, tuple[str, ...]]
    """Variants of the case's operator by mechanism; only mechanisms that some variant uses."""


@dataclass(frozen=True)
class ProfiledKernel:
    """The samples of one kernel by instruction and by line, and what each is charged to."""

    name: str
    launches: int
    instructions: tuple[SampledInstruction, ...]
    charges: tuple[Charge, ...]
    lines: tuple[ProfiledLine, ...]
    """Lines with samples, the hottest first."""
    sources: Mapping[str, Mapping[int, str]]
    mismatches: tuple[Mismatch, ...] = ()
    compared: int = 0
    """How many sums were compared with the profiler's totals."""

    @property
    def total(self) -> int:
        """Return the number of all samples."""
        return sum(sum(instruction.samples.values()) for instruction in self.instructions)

    @property
    def reasons(self) -> dict[str, int]:
        """Return samples by reason, the largest first."""
        return _sum_by(
            ((reason, count) for instruction in self.instructions for reason, count in instruction.samples.items())
        )

    @property
    def waits(self) -> dict[str, int]:
        """Return the samples of waiting warps by reason; warps that issued or could have issued do not count."""
        return {reason: count for reason, count in self.reasons.items() if not issues_or_could_issue(reason)}

    @property
    def charged_by_instruction(self) -> dict[int, dict[str, int]]:
        """Return samples by reason that are charged to each instruction, by its index."""
        result: dict[int, Counter[str]] = {}
        for event in self.charges:
            result.setdefault(event.cause, Counter())[event.reason] += event.samples
        return {index: dict(counts.most_common()) for index, counts in result.items()}

    @property
    def causes_by_instruction(self) -> dict[int, list[Charge]]:
        """Return by index of an instruction at which warps wait what is charged to others, the largest first."""
        result: dict[int, list[Charge]] = {}
        for event in self.charges:
            if event.cause != event.waiting:
                result.setdefault(event.waiting, []).append(event)
        return {index: sorted(charges, key=lambda event: -event.samples) for index, charges in result.items()}

    def waited_at(self, line: ProfiledLine) -> list[tuple[Place, str, int]]:
        """Return the other lines at which warps wait for a line, with reason and samples, the largest first."""
        result: Counter[tuple[Place, str]] = Counter()
        for event in self.charges:
            cause, waiting = self.instructions[event.cause], self.instructions[event.waiting]
            cause_line, waiting_line = (cause.file, cause.line), (waiting.file, waiting.line)
            if cause_line == (line.file, line.line) and cause_line != waiting_line:
                result[waiting_line, event.reason] += event.samples
        return [(place, reason, samples) for (place, reason), samples in result.most_common()]

    def opcodes_behind(self, reason: str) -> dict[str, int]:
        """Return the samples of a reason by the opcode that they are charged to, without modifiers."""
        charged = (
            (self.instructions[event.cause].text, event.samples) for event in self.charges if event.reason == reason
        )
        return _sum_by((read_operands(text).base, samples) for text, samples in charged)


@dataclass(frozen=True)
class SourceProfile:
    """Everything that `opbench profile --source` shows of one case."""

    case: str
    title: str
    kernels: tuple[ProfiledKernel, ...]
    """The one with most samples first."""
    remedies: tuple[Remedy, ...]
    """Of all kernels together, the largest reason first; without reasons of warps that could issue."""
    command: str = ""
    time_s: float | None = None
    """Time of all launches as the profiler measured it, with cold caches and without the launch itself."""
    gpu: str = ""
    bounds: tuple[Bound, ...] = ()
    """The lower bound of each memory level and unit from counted bytes and instructions, the tightest first."""

    @property
    def total(self) -> int:
        """Return the number of all samples."""
        return sum(kernel.total for kernel in self.kernels)

    @property
    def reasons(self) -> dict[str, int]:
        """Return samples by reason, the largest first."""
        return _sum_by(item for kernel in self.kernels for item in kernel.reasons.items())

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Return the sums that differ from the profiler's totals; empty if all agree."""
        return tuple(mismatch for kernel in self.kernels for mismatch in kernel.mismatches)

    @property
    def compared(self) -> int:
        """Return how many sums were compared with the profiler's totals."""
        return sum(kernel.compared for kernel in self.kernels)

    def hottest(self, count: int = HOTTEST) -> list[tuple[ProfiledKernel, ProfiledLine]]:
        """Return the lines to which most samples are charged."""
        lines = [(kernel, line) for kernel in self.kernels for line in kernel.lines]
        return sorted(lines, key=lambda pair: -pair[1].total)[:count]

    def to_json(self) -> dict[str, JSON]:
        """Return the profile as JSON values; an instruction without samples is left out."""
        return {
            "case": self.case,
            "command": self.command,
            "gpu": self.gpu,
            "time_s": self.time_s,
            "bounds": [asdict(bound) for bound in self.bounds],
            "samples": self.total,
            "reasons": self.reasons,
            "compared_totals": self.compared,
            "mismatches": [asdict(mismatch) for mismatch in self.mismatches],
            "lines": [_line_json(kernel, line) for kernel, line in self.hottest(1_000_000)],
            "kernels": [
                {
                    "name": kernel.name,
                    "launches": kernel.launches,
                    "samples": kernel.total,
                    "instructions": _instructions_json(kernel),
                }
                for kernel in self.kernels
            ],
            "remedies": [
                {**asdict(remedy), "variants": {key: list(names) for key, names in remedy.variants.items()}}
                for remedy in self.remedies
            ],
        }


def _line_json(kernel: ProfiledKernel, line: ProfiledLine) -> dict[str, JSON]:
    """Return a line with its samples as JSON values."""
    waited = [
        {"file": file, "line": number, "reason": reason, "samples": samples}
        for (file, number), reason, samples in kernel.waited_at(line)
    ]
    return {"kernel": kernel.name, **asdict(line), "samples": line.total, "waited_at": waited}


def _instructions_json(kernel: ProfiledKernel) -> list[dict[str, JSON]]:
    """Return the instructions with samples as JSON values."""
    charged, causes = kernel.charged_by_instruction, kernel.causes_by_instruction
    first = kernel.instructions[0].address if kernel.instructions else 0
    return [
        {
            "offset": instruction.address - first,
            "text": instruction.text,
            "file": instruction.file,
            "line": instruction.line,
            "executed": instruction.executed,
            "waiting": dict(instruction.samples),
            "charged": charged.get(index, {}),
            "waits_for": [
                {
                    "offset": kernel.instructions[cause.cause].address - first,
                    "reason": cause.reason,
                    "samples": cause.samples,
                    "rule": cause.rule,
                }
                for cause in causes.get(index, [])
            ],
        }
        for index, instruction in enumerate(kernel.instructions)
        if instruction.samples or index in charged
    ]


def source_profile(
    case: str,
    title: str,
    kernels: Sequence[SampledKernel],
    totals: Sequence[KernelCounters] = (),
    variants_with: Callable[[str], Sequence[str]] = lambda _: (),
    command: str = "",
) -> SourceProfile:
    """Charge all samples, sum them by line, and compare the sums with the profiler's `totals` of each launch.

    `variants_with` returns the variants of the case's operator that use a mechanism.
    """
    has_several = len(kernels) > 1
    profiled = []
    for kernel in kernels:
        kernel_totals = _totals_of(kernel, totals, has_several)
        profiled.append(_profile(_name_unlisted(kernel, kernel_totals), kernel_totals))
    profiled.sort(key=lambda kernel: -kernel.total)
    return SourceProfile(case, title, tuple(profiled), tuple(_remedies(profiled, variants_with)), command)


def _totals_of(kernel: SampledKernel, totals: Sequence[KernelCounters], has_several: bool) -> Sequence[KernelCounters]:
    """Return the totals of a kernel's launches; all totals if only one kernel was profiled."""
    if not has_several:
        return totals
    launches = [launch for launch in totals if launch.name == kernel.name]
    # Some releases of ncu print the kernel's signature on one of the two pages only.
    return launches or [launch for launch in totals if launch.name.partition("(")[0] == kernel.name.partition("(")[0]]


def _name_unlisted(kernel: SampledKernel, totals: Sequence[KernelCounters]) -> SampledKernel:
    """Return the kernel in which samples of an unlisted reason have the reason's name.

    The name is known if exactly one reason has a total but no column; otherwise the kernel is unchanged.
    """
    listed = {reason for instruction in kernel.instructions for reason in instruction.samples}
    names = {name for launch in totals for name in launch.values if name.startswith(REASON_COUNT)}
    counted = {_reason_of(name) for name in names if not name.endswith("_not_issued") and _launch_sum(totals, name)}
    missing = sorted(counted - listed)
    if UNLISTED not in listed or len(missing) != 1:
        return kernel
    renamed = [
        replace(
            instruction,
            samples={
                missing[0] if reason == UNLISTED else reason: count for reason, count in instruction.samples.items()
            },
        )
        for instruction in kernel.instructions
    ]
    return replace(kernel, instructions=tuple(renamed))


def _reason_of(metric: str) -> str:
    """Return the reason that a metric of the profiler counts."""
    name = metric.removeprefix(REASON_COUNT).partition(".")[0]
    stall = find_stall(name)
    return stall.name if stall else name


def _profile(kernel: SampledKernel, totals: Sequence[KernelCounters]) -> ProfiledKernel:
    """Return the samples of a kernel, charged, summed by line and compared with the profiler's totals."""
    charges = charge_samples(kernel.instructions)
    compared = _compared_sums(kernel, charges, totals)
    return ProfiledKernel(
        kernel.name,
        kernel.launches,
        kernel.instructions,
        tuple(charges),
        tuple(_lines(kernel, charges)),
        kernel.sources,
        tuple(Mismatch(kernel.name, *pair) for pair in compared if pair[1] != pair[2]),
        len(compared),
    )


def _lines(kernel: SampledKernel, charges: Iterable[Charge]) -> list[ProfiledLine]:
    """Return the source lines of a kernel that have samples, the hottest first."""
    waiting: dict[Place, Counter[str]] = {}
    charged: dict[Place, Counter[str]] = {}
    executed: Counter[Place] = Counter()
    for instruction in kernel.instructions:
        waiting.setdefault((instruction.file, instruction.line), Counter()).update(instruction.samples)
        executed[instruction.file, instruction.line] += instruction.executed
    for entry in charges:
        cause = kernel.instructions[entry.cause]
        charged.setdefault((cause.file, cause.line), Counter())[entry.reason] += entry.samples
    lines = [
        ProfiledLine(
            file,
            line,
            kernel.sources.get(file, {}).get(line, ""),
            dict(waiting.get((file, line), Counter()).most_common()),
            dict(charged.get((file, line), Counter()).most_common()),
            executed[file, line],
        )
        for file, line in dict.fromkeys([*waiting, *charged])
    ]
    return sorted(
        (line for line in lines if line.waiting or line.charged), key=lambda line: (-line.total, line.file, line.line)
    )


def _compared_sums(
    kernel: SampledKernel, charges: Iterable[Charge], totals: Sequence[KernelCounters]
) -> list[tuple[str, int, int]]:
    """Return each compared quantity with opbench's sum and the profiler's total."""
    by_reason = Counter[str]()
    for instruction in kernel.instructions:
        by_reason.update(instruction.samples)
    total = sum(by_reason.values())
    counted = sum(instruction.count for instruction in kernel.instructions)
    charged = sum(charge.samples for charge in charges)
    pairs = [("# Samples", total, counted), ("# Samples, charged", charged, counted)]
    names = {name for launch in totals for name in launch.values if name.startswith(REASON_COUNT)}
    for name in sorted(names):
        if not name.endswith("_not_issued"):
            pairs.append((name, by_reason[_reason_of(name)], _launch_sum(totals, name)))
    sampled = next((name for launch in totals for name in launch.values if name.startswith(SAMPLE_COUNT)), "")
    if sampled:
        pairs.append((sampled, total, _launch_sum(totals, sampled)))
    return pairs


def _launch_sum(totals: Sequence[KernelCounters], name: str) -> int:
    """Return the sum of a metric over launches; launches without the metric count as 0."""
    return round(sum(launch.get(name) or 0 for launch in totals))


def _remedies(kernels: Sequence[ProfiledKernel], variants_with: Callable[[str], Sequence[str]]) -> Iterable[Remedy]:
    """Yield, for each reason why warps wait, the mechanisms that shorten the wait; the largest reason first."""
    waits = _sum_by(item for kernel in kernels for item in kernel.waits.items())
    for reason, samples in waits.items():
        opcodes = _sum_by(item for kernel in kernels for item in kernel.opcodes_behind(reason).items())
        causes: Counter[str] = Counter()
        mechanisms: Counter[str] = Counter()
        for opcode, samples_of_opcode in opcodes.items():
            cause = find_cause(opcode)
            if cause and (reason.endswith("scoreboard") or cause.name == PRODUCTS):
                causes[cause.name] += samples_of_opcode
            for rank, mechanism in enumerate(mechanisms_of(reason, opcode)):
                mechanisms[mechanism] += samples_of_opcode * 4 // (rank + 1)
        ranked = tuple(name for name, _ in mechanisms.most_common() if name in MECHANISMS)
        variants_by_mechanism = {name: tuple(variants_with(name)) for name in ranked}
        yield Remedy(
            reason,
            samples,
            dict(causes.most_common()),
            ranked,
            {name: names for name, names in variants_by_mechanism.items() if names},
        )


def _sum_by(items: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add counts by key, the largest first."""
    counts: Counter[str] = Counter()
    for key, count in items:
        counts[key] += count
    return dict(counts.most_common())
