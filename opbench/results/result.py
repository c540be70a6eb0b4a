"""One case's outcome: its verdict, its measurement and what it takes of the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict

from opbench.backend.findings import Finding
from opbench.errors import EnvironmentFault, Reason
from opbench.gpu.limits.resources import LaunchResources
from opbench.kernels.launch import Dim3, KernelLaunch
from opbench.kernels.scalar import Argument, Scalar, Struct
from opbench.records import JSON, to_json
from opbench.timing.measurement import Measurement

Status = Literal["right", "wrong", "failed", "invalid", "unsupported", "no fault found"]
""" "no fault found" is of a run without a reference: memory and races were looked at, results were not compared."""
GOOD = ("right", "unsupported", "no fault found")
"""What speaks against no kernel."""

_OWN = re.compile(r"(?<![:\w.])[+-]?\d[\d.]*(e[+-]?\d+)?")
"""Numbers that are a case's own; that of a line, behind a colon, is the fault's."""


@dataclass(frozen=True)
class Launched:
    """One step of a case as it was launched: a kernel, or a buffer or constant that was filled."""

    kernel: str = ""
    grid: Dim3 | None = None
    block: Dim3 | None = None
    shared_bytes: int | None = None
    args: tuple[str | int | float, ...] | None = None
    """None in runs older than this field."""
    zero: str = ""

    @classmethod
    def of(cls, step: KernelLaunch) -> Launched:
        """What of a launch its result keeps."""
        return (
            cls(zero=step.zero or step.constant)
            if not step.kernel
            else cls(step.kernel, step.grid, step.block, step.shared_bytes, tuple(map(_recorded, step.args)))
        )


def _recorded(argument: Argument) -> str | int | float:
    return str(argument) if isinstance(argument, (Scalar, Struct)) else argument


@dataclass(frozen=True)
class Verdict:
    """Everything that the checks of one case saw."""

    right: bool
    reason: str = ""
    worst_error: float | None = None
    """Largest |out - reference| over the magnitude of the terms; None where an output has no number at all."""
    allowed_error: float | None = None
    norm_error: float | None = None
    allowed_norm_error: float | None = None
    integers: str = ""
    """"exact", or why that run was left out."""
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    """What is allowed and may surprise, such as several threads that store the same value."""
    launches: tuple[Launched, ...] = ()
    architecture: str = ""
    """The one whose branches the emulator compiled, such as "sm_90", where the kernel's text asks for __CUDA_ARCH__."""

    def to_json(self) -> dict[str, JSON]:
        """For the results file."""
        found = {
            **to_json(self),
            "findings": [to_json(finding, sparse=True) for finding in self.findings],
            "notes": [to_json(note, sparse=True) for note in self.notes],
            "launches": [to_json(launch, sparse=True) for launch in self.launches],
        }
        for name in ("notes", "architecture"):
            if not found[name]:
                del found[name]
        return found


@dataclass(frozen=True)
class Result:
    """One case's outcome; constructed only in states that make sense (a wrong kernel has no speed)."""

    case: str
    operator: str
    variant: str
    config: dict[str, int]
    problem: str
    axes: dict[str, int | str]
    precision: str
    backend: str
    status: Status
    reason: str = ""
    """Why it is not right: one line for the table."""
    file: str = ""
    """The file that the reason lies in, where an error named one; empty in runs older than this field."""
    line: int = 0
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    resources: dict[str, LaunchResources] = field(default_factory=dict)
    """Per kernel; empty for a library."""
    resources_missing: str = ""
    """Why a cpu run has no `resources`: no NVRTC, or what it said against the source."""
    compiled_for: str = ""
    """The architecture that NVRTC compiled a cpu run's kernels for, such as "sm_90"; empty where it did not."""
    flops: int = 0
    compulsory_bytes: int = 0
    written_bytes: int | None = None
    """Of the compulsory bytes those of outputs; None in runs older than this field."""
    unit: str = ""
    """What its multiplications run on, such as "tf32/3"; empty in runs older than this field: the precision class."""
    builds_on: str = ""
    library: bool = False
    """Whether the variant calls a vendor's library."""
    memory_level: str = "dram"
    """The bandwidth that the compulsory bytes are judged by: "dram" (a copy's, also in runs older than the next two),
    "dram_read" or "dram_write" where they go one way, "l2" or "l1"."""
    flops_are_a_floor: bool = True
    """Whether no algorithm needs fewer operations than `flops`."""
    title: str = ""
    source_sha256: str = ""
    """Of the variant's file without its `mechanism` and `tile` keys, and of its headers."""
    text_sha256: str = ""
    """Of the same files as they were, to which line numbers refer; empty in runs older than this field, where it is
    `source_sha256`."""
    machine_code_sha256: str = ""
    """Of the instructions and resources that ran on the GPU, or on `cpu` would; empty for a library, without NVRTC and
    in runs older than this field. Line information and timestamps are not in it."""
    device: str = ""
    """The UUID of its GPU in a run on several, whose device lines say more; empty in a run on one."""

    def __post_init__(self) -> None:
        if self.measurement is not None and self.status not in ("right", "invalid"):
            raise ValueError(f"{self.case}: a case that is {self.status} cannot have a measurement")
        if self.status != "right" and not self.reason:
            raise ValueError(f"{self.case}: a case that is {self.status} needs a reason")

    @property
    def fault(self) -> str:
        """What cases that fell for one reason have in common: a finding's kind and place, else the reason's words."""
        if self.verdict and self.verdict.findings:
            first = self.verdict.findings[0]
            return " ".join(
                (first.kind, f"{first.file}:{first.line}", first.buffer if not first.line else "", first.pattern)
            )
        return _OWN.sub("#", self.reason.replace(self.problem, "(…)"))

    @property
    def samples_s(self) -> tuple[float, ...]:
        """All samples that count, in the order taken; empty for a case without a measurement."""
        return self.measurement.samples_s if self.measurement else ()

    @property
    def clocks_hz(self) -> list[float]:
        """The multiprocessors' clock at each sample; empty where it is not known."""
        return self.measurement.sample_clocks_hz if self.measurement else []

    @property
    def cycles(self) -> list[float]:
        """All samples in cycles of the multiprocessors' clock; empty where it is not known."""
        return self.measurement.cycles if self.measurement else []

    def to_json(self) -> dict[str, JSON]:
        """For the results file."""
        return {
            **to_json(replace(self, verdict=None, resources={})),
            "verdict": self.verdict.to_json() if self.verdict else None,
            "resources": {kernel: to_json(taken, sparse=True) for kernel, taken in self.resources.items()},
        }


class Place(TypedDict, total=False):
    """Fields of a result that say where its reason lies."""

    file: str
    line: int


def place_of(reason: Reason | str) -> Place:
    """Return where a reason lies; nothing where it has no location."""
    if isinstance(reason, str) or reason.location is None:
        return {}
    return {"file": str(reason.location.file), "line": reason.location.line}


def exit_code(results: Iterable[Result]) -> int:
    """0 when every case is right or unsupported, 3 when all are unsupported, as this machine then lacks something."""
    seen = {result.status for result in results}
    return EnvironmentFault.exit_code if seen == {"unsupported"} else 0 if seen <= set(GOOD) else 1
