"""One problem with all its cases on one worker: each is checked, then the right ones are measured together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from opbench.backend.counts import Traffic
from opbench.checking.checking import Checked
from opbench.checking.measuring import Measured
from opbench.errors import EnvironmentFault, OpbenchError, Reason
from opbench.gpu.compile.resources import Resources
from opbench.gpu.limits.ceilings import Ceilings
from opbench.gpu.limits.floor import floor_s
from opbench.kernels.case import Case
from opbench.results.result import Result, Status, place_of
from opbench.running.gpu_code import GpuCode
from opbench.running.protocol import Check, Measure, PackedCase, Started, Told, pack
from opbench.running.worker import Worker, WorkerHung, WorkerLost
from opbench.timing.measurement import Measurement
from opbench.timing.processes import merge_processes
from opbench.timing.sampling import TimingOptions

Ended = tuple[Result, Traffic | None]


@dataclass(frozen=True)
class Terms:
    """What every problem of a run is run under."""

    backend: str
    measure: bool
    time_limit_s: float
    timing: TimingOptions
    processes: int = 1


@dataclass
class CaseFaults:
    """What is known of cases before they are run; several stations share it."""

    unsupported: dict[str, str] = field(default_factory=dict)
    broken: dict[str, Reason] = field(default_factory=dict)
    """Compiler errors by case."""
    hung: dict[str, str] = field(default_factory=dict)
    """By variant, the case of it that did not end: its others are not tried."""


@dataclass
class Station:
    """One worker with the device that it has to itself."""

    worker: Worker
    device: str = ""
    """Its GPU's UUID, where a run has several."""
    ceilings: Ceilings | None = None


class ProblemDesk(Protocol):
    """Who hears what a problem comes to."""

    def announce(self, phase: str, case: str) -> None:
        """Say what is done now; may raise to end it."""

    def started(self, case: str) -> None:
        """Hear which case is launched now, among those that are measured in turns."""

    def record(self, outcomes: Sequence[Ended]) -> None:
        """Keep outcomes: all of them or, where this fails, none."""

    def is_to_blame(self, case: str) -> bool:
        """Whether a worker that died at this case died of it; else the machine is suspected, and the death raised."""


class ProblemRun:
    """Runs problems under the same terms, for the same desk."""

    def __init__(self, terms: Terms, known: CaseFaults, desk: ProblemDesk, gpu_code: GpuCode) -> None:
        self._terms, self._known, self._desk, self._gpu_code = terms, known, desk, gpu_code
        self._packed: dict[str, PackedCase] = {}

    def pack(self, case: Case) -> PackedCase:
        """The case for a request, made once."""
        if case.name not in self._packed:
            self._packed[case.name] = pack(case)
        return self._packed[case.name]

    def run(self, station: Station, cases: Sequence[Case]) -> None:
        """Check every case of one problem, then measure the right ones together.

        Raises WorkerLost where the worker died and the desk does not hold the case to blame, EnvironmentFault for
        what is no case's doing.
        """
        right: list[tuple[Case, Checked]] = []
        for case in cases:
            if case.name in self._known.unsupported:
                self._end(station, case, "unsupported", self._known.unsupported[case.name])
                continue
            if case.name in self._known.broken:
                self._end(station, case, "failed", self._known.broken[case.name])
                continue
            if earlier := self._known.hung.get(case.variant.id):
                self._end(station, case, "failed", f"not tried, as {earlier} did not end")
                continue
            self._desk.announce("check", case.name)
            try:
                checked = station.worker.ask(Check(self.pack(case)), self._terms.time_limit_s)
            except EnvironmentFault:
                raise
            except OpbenchError as error:
                self._raise_if_lost(error, case.name)
                if isinstance(error, WorkerHung):
                    self._known.hung[case.variant.id] = case.name
                self._end(station, case, "failed", error.reason)
                continue
            if not checked.verdict.right:
                self._end(station, case, "wrong", checked.verdict.reason, checked)
            elif self._terms.measure and self._terms.backend == "cuda":
                right.append((case, checked))
            elif (compiled := self._gpu_code_of(case)).refused:
                reason = compiled.refused.after(f"right on the CPU, but NVRTC refuses it for {compiled.arch}: ")
                self._end(station, case, "failed", reason, checked)
            else:
                self._end(station, case, "right", "", checked)
        if right:
            self._measure(station, right)

    def _raise_if_lost(self, error: OpbenchError, case: str) -> None:
        lost = isinstance(error, WorkerLost) and not isinstance(error, WorkerHung)
        if lost and not self._desk.is_to_blame(case):
            raise error

    def _end(
        self, station: Station, case: Case, status: Status, reason: str | Reason, checked: Checked | None = None
    ) -> None:
        """A case that comes to its end without being measured."""
        self._desk.record(
            [(self._result(station, case, status, reason, checked), checked.traffic if checked else None)]
        )

    def _measure(self, station: Station, right: Sequence[tuple[Case, Checked]]) -> None:
        """Measure the contenders; one that kills the worker is recorded as failed and the rest go on."""
        contenders = {case.name: (case, checked) for case, checked in right}
        while contenders:
            running = ""

            def listen(told: Told) -> None:
                nonlocal running
                if isinstance(told, Started):
                    running = told.case
                    self._desk.started(running)

            self._desk.announce("measure", f"{len(contenders)} variants of {right[0][0].problem}")
            try:
                found = [case for case, _ in contenders.values()]
                measured = self._measure_in_processes(station.worker, found, listen)
            except EnvironmentFault:
                raise
            except OpbenchError as error:
                culprit = running or next(iter(contenders))
                self._raise_if_lost(error, culprit)
                case, checked = contenders.pop(culprit)
                failed = self._result(station, case, "failed", error.reason.after("while measured: "), checked)
                self._desk.record([(failed, None)])
                continue
            ends = []
            for name, (case, checked) in contenders.items():
                if wrong := measured.wrong.get(name, ""):
                    verdict = replace(checked.verdict, right=False, reason=wrong)
                    ends.append(self._result(station, case, "wrong", wrong, replace(checked, verdict=verdict)))
                elif refusal := measured.invalid.get(name, ""):
                    ends.append(self._result(station, case, "invalid", refusal, checked))
                else:
                    ends.append(self._measured(station, case, checked, measured.measurements[name]))
            self._desk.record([(end, None) for end in ends])
            return

    def _measure_in_processes(self, worker: Worker, cases: Sequence[Case], listen: Callable[[Told], None]) -> Measured:
        """Measure cases in as many processes as wanted, each with rounds of its own, and merge what they found.

        Each process has a context, buffers and an order of its own, so that what depends on these is in the interval.
        """
        parts: list[dict[str, Measurement]] = []
        wrong: dict[str, str] = {}
        invalid: dict[str, str] = {}
        for number in range(self._terms.processes):
            if number:
                worker.stop()
            timing = replace(self._terms.timing, seed=self._terms.timing.seed + number)
            request = Measure([self.pack(case) for case in cases], timing, number + 1 == self._terms.processes)
            found = worker.ask(request, self._terms.time_limit_s, listen)
            parts.append(found.measurements)
            wrong |= found.wrong
            invalid |= found.invalid
        names = [case.name for case in cases if all(case.name in part for part in parts)]
        return Measured({name: merge_processes([part[name] for part in parts]) for name in names}, wrong, invalid)

    def _measured(self, station: Station, case: Case, checked: Checked, measurement: Measurement) -> Result:
        floor, bound = floor_s(case, station.ceilings, measurement.mode)
        if measurement.median_s < floor:
            reason = (
                f"impossible: {measurement.median_s:.3g} s is below the floor of {floor:.3g} s that the "
                f"{bound} allows; the kernel did not do the work, or the ceilings are stale (opbench ceiling)"
            )
            return self._result(station, case, "invalid", reason, checked, measurement)
        return self._result(station, case, "right", "", checked, measurement)

    def _gpu_code_of(self, case: Case) -> Resources:
        """What its kernels are on a GPU that is not here; waits until they are compiled."""
        if not self._gpu_code.knows(case):
            self._desk.announce("compile", f"{case.name} {self._gpu_code.said}")
        return self._gpu_code.of(case)

    def _result(
        self,
        station: Station,
        case: Case,
        status: Status,
        reason: str | Reason,
        checked: Checked | None = None,
        measurement: Measurement | None = None,
    ) -> Result:
        compiled = self._gpu_code_of(case)
        return Result(
            case=case.name,
            operator=case.variant.operator,
            variant=case.variant.name,
            config=case.config,
            problem=str(case.problem),
            axes=case.problem.axes,
            precision=case.precision,
            unit=case.unit,
            backend=self._terms.backend,
            status=status,
            reason=str(reason),
            **place_of(reason),
            verdict=checked.verdict if checked else None,
            measurement=measurement,
            resources=(checked.resources if checked else {}) or compiled.kernels,
            resources_missing=compiled.missing,
            compiled_for="" if compiled.refused or compiled.missing else compiled.arch,
            flops=case.problem.flops(),
            compulsory_bytes=case.problem.bytes(),
            written_bytes=sum(tensor.nbytes for tensor in case.problem.output_tensors()),
            builds_on=case.variant.builds_on,
            library=case.variant.is_library,
            memory_level=case.problem.bandwidth(),
            flops_are_a_floor=case.problem.flops_are_a_floor,
            title=case.variant.title,
            source_sha256=case.variant.source_sha256,
            text_sha256=case.variant.text_sha256,
            machine_code_sha256=(checked.machine_code_sha256 if checked else "") or compiled.machine_code_sha256,
            device=station.device,
        )
