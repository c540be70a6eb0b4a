"""The result of one case: its verdict, its measurement and the GPU resources that it uses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from opbench.backend.findings import Finding
from opbench.errors import EnvironmentFault, NotAllowed, Reason
from opbench.gpu.limits.resources import LaunchResources
from opbench.kernels.launch import Dim3, KernelLaunch
from opbench.kernels.scalar import Argument, Scalar, Struct
from opbench.records import JSON, to_json
from opbench.timing.measurement import Measurement

if TYPE_CHECKING:
    from opbench.kernels.case import Case

Status = Literal["right", "wrong", "failed", "invalid", "unsupported", "no fault found"]
""""no fault found" is the status of a run without a reference: memory and races were checked, results were not."""
Failure = Literal["", "build", "check", "time limit", "gpu build", "measure"]
"""The step in which a case failed."""
RELAUNCH = "relaunch"
"""The launches of a case that was right once: timed ones, and those of a check without a clock."""
FaultKey = tuple[str | int, ...]
"""A key that is equal for cases with the same fault."""
GOOD_STATUSES = ("right", "unsupported", "no fault found")
"""The statuses that do not count against a kernel."""
BAD_STATUSES: tuple[Status, ...] = ("wrong", "failed", "invalid")
"""The statuses that count against a kernel."""

_OWN = re.compile(r"(?<![:\w.])[+-]?\d[\d.]*(e[+-]?\d+)?")
"""Numbers that belong to one case, in the reason of an older run; the number of a line, after a colon, belongs to the
fault."""


@dataclass(frozen=True)
class RecordedLaunch:
    """One launch of a case as recorded: a kernel, or a buffer or constant that was filled."""

    kernel: str = ""
    grid: Dim3 | None = None
    block: Dim3 | None = None
    shared_bytes: int | None = None
    args: tuple[str | int | float, ...] | None = None
    """None in older runs."""
    zero: str = ""

    @classmethod
    def of(cls, launch: KernelLaunch) -> RecordedLaunch:
        """Return the parts of a launch that the results file stores."""
        return (
            cls(zero=launch.zero or launch.constant)
            if not launch.kernel
            else cls(launch.kernel, launch.grid, launch.block, launch.shared_bytes, tuple(map(_recorded, launch.args)))
        )


def _recorded(argument: Argument) -> str | int | float:
    return str(argument) if isinstance(argument, (Scalar, Struct)) else argument


@dataclass(frozen=True)
class Verdict:
    """The outcome of all checks of one case."""

    right: bool
    reason: str = ""
    worst_error: float | None = None
    """Largest |out - reference| divided by the magnitude of the terms.

    None if an output has only NaN or infinite values."""
    allowed_error: float | None = None
    norm_error: float | None = None
    allowed_norm_error: float | None = None
    integers: str = ""
    """"exact", or why the run on whole numbers was skipped."""
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    """Allowed but surprising behaviour, such as several threads that store the same value."""
    launches: tuple[RecordedLaunch, ...] = ()
    architecture: str = ""
    """The architecture whose `__CUDA_ARCH__` branches the emulator compiled, such as "sm_90".

    Empty if the source has none."""
    run: str = ""
    """The run that failed: "integers", a kind of special inputs, or RELAUNCH.

    Empty for normal inputs and for a right case."""

    def to_json(self) -> dict[str, JSON]:
        """Return the verdict as JSON data."""
        record = {
            **to_json(self),
            "findings": [to_json(finding, omit_defaults=True) for finding in self.findings],
            "notes": [to_json(note, omit_defaults=True) for note in self.notes],
            "launches": [to_json(launch, omit_defaults=True) for launch in self.launches],
        }
        for name in ("notes", "architecture", "run"):
            if not record[name]:
                del record[name]
        return record


@dataclass(frozen=True)
class Result:
    """The result of one case; the constructor rejects contradictions, such as a wrong kernel with a time."""

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
    """Why the case is not right: one line for the table."""
    kind: str = ""
    """The code of the reason, such as "launch-limit".

    It is empty in older runs, for a verdict with findings, and for a feature that the backend lacks."""
    subject: str = ""
    """The file, key, kernel or rule of the reason; empty in older runs."""
    failure: Failure = ""
    """The step in which a failed case failed; empty for other cases and in older runs."""
    file: str = ""
    """The file of the reason, if an error named one; empty in older runs."""
    line: int = 0
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    resources: dict[str, LaunchResources] = field(default_factory=dict)
    """Resources by kernel; empty for a library."""
    resources_missing: str = ""
    """Why a cpu run has no `resources`: NVRTC is missing, or rejected the source with this message."""
    rejected: bool = False
    """Whether NVRTC rejected the source in a cpu run."""
    compiled_for: str = ""
    """The architecture for which NVRTC compiled a cpu run's kernels, such as "sm_90"; empty without NVRTC."""
    flops: int = 0
    compulsory_bytes: int = 0
    written_bytes: int | None = None
    """The part of the compulsory bytes that outputs take; None in older runs."""
    unit: str = ""
    """The arithmetic unit of its multiplications, such as "tf32/3"; empty in older runs: the precision class."""
    builds_on: str = ""
    library: bool = False
    """Whether the variant calls a vendor's library."""
    memory_level: str = "dram"
    """The bandwidth for the compulsory bytes: "dram" (that of a copy, and the default in older runs), "dram_read" or
    "dram_write" if all bytes go one way, "l2" or "l1"."""
    flops_are_a_floor: bool = True
    """True if no algorithm needs fewer operations than `flops`."""
    title: str = ""
    source_sha256: str = ""
    """Checksum of the code that ran: the variant's header, file and included headers, without comments and titles."""
    text_sha256: str = ""
    """Checksum of the complete files, to which line numbers refer; empty in older runs, where it is `source_sha256`."""
    machine_code_sha256: str = ""
    """Hash of the instructions and resources that ran on the GPU or, on `cpu`, that NVRTC compiled.

    Empty for a library, without NVRTC and in older runs. Line information and timestamps are excluded."""
    device: str = ""
    """UUID of its GPU in a run on several, whose device lines have the details; empty in a run on one."""

    def __post_init__(self) -> None:
        if self.measurement is not None and self.status not in ("right", "invalid"):
            raise NotAllowed(
                f"{self.case}: a case that is {self.status} cannot have a measurement",
                kind="measured-but-wrong",
                subject=self.case,
                value=self.status,
            )
        if self.status != "right" and not self.reason:
            raise NotAllowed(
                f"{self.case}: a case that is {self.status} needs a reason",
                kind="no-reason",
                subject=self.case,
                value=self.status,
            )

    @classmethod
    def of_case(cls, case: Case, backend: str, status: Status, reason: str | Reason, **more: Any) -> Result:
        """Return a result with the description of its case; `more` are further fields."""
        variant, problem = case.variant, case.problem
        return cls(
            case=case.name,
            operator=variant.operator,
            variant=variant.name,
            config=case.config,
            problem=str(problem),
            axes=problem.axes,
            precision=case.precision,
            unit=case.unit,
            backend=backend,
            status=status,
            **reason_fields(reason),
            flops=problem.flops(),
            compulsory_bytes=problem.bytes(),
            written_bytes=sum(tensor.nbytes for tensor in problem.output_tensors()),
            builds_on=variant.builds_on,
            library=variant.is_library,
            memory_level=problem.bandwidth(),
            flops_are_a_floor=problem.flops_are_a_floor,
            title=variant.title,
            source_sha256=variant.source_sha256,
            text_sha256=variant.text_sha256,
            **more,
        )

    @property
    def fault(self) -> FaultKey:
        """Return the kind and location of the first finding, or of the reason."""
        if self.verdict and self.verdict.findings:
            first = self.verdict.findings[0]
            return first.kind, first.file, first.line, first.buffer if not first.line else "", first.pattern
        if self.kind:
            return self.failure, self.kind, self.subject, self.file, self.line
        return (_OWN.sub("#", self.reason.replace(self.problem, "(…)")),)

    @property
    def samples_s(self) -> tuple[float, ...]:
        """Return all samples in seconds, in the order of measurement; empty for a case without a measurement."""
        return self.measurement.samples_s if self.measurement else ()

    @property
    def clocks_hz(self) -> list[float]:
        """Return the clock rate of the multiprocessors at each sample; empty if unknown."""
        return self.measurement.sample_clocks_hz if self.measurement else []

    @property
    def cycles(self) -> list[float]:
        """Return all samples in cycles of the multiprocessors' clock; empty if the clock is unknown."""
        return self.measurement.cycles if self.measurement else []

    def to_json(self) -> dict[str, JSON]:
        """Return the result as JSON data."""
        return {
            **to_json(replace(self, verdict=None, resources={})),
            "verdict": self.verdict.to_json() if self.verdict else None,
            "resources": {kernel: to_json(resource, omit_defaults=True) for kernel, resource in self.resources.items()},
        }


class ReasonFields(TypedDict):
    """A reason as fields of a result."""

    reason: str
    kind: str
    subject: str
    file: str
    line: int


def reason_fields(reason: Reason | str) -> ReasonFields:
    """Return the text, meaning and location of a reason; empty fields for those that it lacks."""
    data = Reason(reason) if isinstance(reason, str) else reason
    place = data.location
    return {
        "reason": str(reason),
        "kind": data.kind,
        "subject": data.subject,
        "file": str(place.file) if place else "",
        "line": place.line if place else 0,
    }


def refuting_results(results: Sequence[Result], statuses: Collection[str] = ("wrong",)) -> list[Result]:
    """Return the results whose status is in `statuses` if they are more than half of all results; else []."""
    refuting = [result for result in results if result.status in statuses]
    return refuting if 2 * len(refuting) > len(results) else []


def exit_code(results: Iterable[Result]) -> int:
    """Return the exit code of a command for these results.

    It is 0 if every case is right or unsupported, 3 if all are unsupported because the machine lacks something,
    else 1.
    """
    statuses = {result.status for result in results}
    return EnvironmentFault.exit_code if statuses == {"unsupported"} else 0 if statuses <= set(GOOD_STATUSES) else 1
