"""Run all cases of one problem on one worker: check each case, then measure the right ones in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from opbench import units
from opbench.backend.counts import Traffic
from opbench.checking.checking import CheckResult
from opbench.checking.measuring import MeasureResult
from opbench.errors import CompileError, EnvironmentFault, OpbenchError, Reason
from opbench.gpu.compile.resources import Resources
from opbench.gpu.limits.ceilings import Peaks
from opbench.gpu.limits.lower_bound import lower_bound_s
from opbench.kernels.case import Case
from opbench.results.result import RELAUNCH, Failure, Result, Status
from opbench.running.compilers import BackgroundCompiler
from opbench.running.protocol import CaseStarted, CheckCase, MeasureCases, Notification, PackedCase, RelaunchCases, pack
from opbench.running.worker import Worker, WorkerHung, WorkerLost
from opbench.timing.measurement import Measurement
from opbench.timing.processes import merge_processes
from opbench.timing.sampling import TimingOptions

Outcome = tuple[Result, Traffic | None]


@dataclass(frozen=True)
class RunSettings:
    """The settings that apply to every problem of a run."""

    backend: str
    measure: bool
    time_limit_s: float
    timing: TimingOptions
    processes: int = 1
    relaunch: bool = False
    """Whether right cases are launched again on a backend without a clock."""
    prepared_cases: frozenset[str] = frozenset()
    """Names of the cases whose setup launches are not part of their time."""

    @property
    def launches_again(self) -> bool:
        """Return whether right cases are launched again after their check, to be timed or judged."""
        return (self.measure and self.backend == "cuda") or (self.relaunch and self.backend == "cpu")


@dataclass
class CaseFaults:
    """Cases that must not run, each with the reason; all workers share these records."""

    unsupported_reasons: dict[str, Reason] = field(default_factory=dict)
    compile_errors: dict[str, Reason] = field(default_factory=dict)
    """Compiler errors by case."""
    hung_cases: dict[str, str] = field(default_factory=dict)
    """For each variant, a case that did not end; the variant's other cases are not tried."""


@dataclass
class WorkerSlot:
    """One worker and the device that only this worker uses."""

    worker: Worker
    device: str = ""
    """The UUID of the GPU; empty if the run has a single device."""
    ceilings: Peaks | None = None


class ResultSink(Protocol):
    """A receiver of a problem's progress and results."""

    def announce(self, phase: str, case: str) -> None:
        """Report the current phase and case; raise an exception to end the run."""

    def started(self, case: str) -> None:
        """Report the case that launches now, while several cases are measured in turn."""

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Store the results of all outcomes or, if a result cannot be stored, none of them."""

    def exceeds_crash_limit(self, case: str) -> bool:
        """Return whether workers died so often at this case that it fails; if not, the caller raises WorkerLost."""


class ProblemRun:
    """Run problems with the same settings and pass their results to one sink."""

    def __init__(
        self,
        settings: RunSettings,
        case_faults: CaseFaults,
        sink: ResultSink,
        gpu_code: BackgroundCompiler,
        quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Keep the arguments; `quiet` is entered during each measurement, for example to pause other processes."""
        self._settings, self._known, self._sink, self._gpu_code = settings, case_faults, sink, gpu_code
        self._quiet = quiet
        self._packed: dict[str, PackedCase] = {}

    def pack(self, case: Case) -> PackedCase:
        """Return the case as plain data for requests; the data are cached."""
        if case.name not in self._packed:
            self._packed[case.name] = pack(case)
        return self._packed[case.name]

    def run(self, slot: WorkerSlot, cases: Sequence[Case]) -> None:
        """Check every case of one problem, then measure the right ones in turn.

        Raises WorkerLost if the worker died and the sink does not blame the case, and EnvironmentFault for a
        fault that no case caused.
        """
        right: list[tuple[Case, CheckResult]] = []
        for case in cases:
            if case.name in self._known.unsupported_reasons:
                self._end(slot, case, "unsupported", self._known.unsupported_reasons[case.name])
                continue
            if case.name in self._known.compile_errors:
                self._end(slot, case, "failed", self._known.compile_errors[case.name], failure="build")
                continue
            if earlier := self._known.hung_cases.get(case.variant.id):
                reason = Reason(f"not tried, as {earlier} did not end", kind="not-tried", subject=case.variant.id)
                self._end(slot, case, "failed", reason, failure="time limit")
                continue
            self._sink.announce("check", case.name)
            try:
                checked = slot.worker.ask(CheckCase(self.pack(case)), self._settings.time_limit_s)
            except EnvironmentFault:
                raise
            except OpbenchError as error:
                self._raise_if_lost(error, case.name)
                has_hung = isinstance(error, WorkerHung)
                if has_hung:
                    self._known.hung_cases[case.variant.id] = case.name
                failure: Failure = "time limit" if has_hung else "build" if isinstance(error, CompileError) else "check"
                self._end(slot, case, "failed", error.reason, failure=failure)
                continue
            if not checked.verdict.right:
                self._end(slot, case, "wrong", checked.verdict.reason, checked)
            elif self._settings.launches_again:
                right.append((case, checked))
            else:
                self._sink.record([(self._unmeasured(slot, case, checked), checked.traffic)])
        if right:
            self._measure(slot, right)

    def _unmeasured(self, slot: WorkerSlot, case: Case, checked: CheckResult) -> Result:
        """Return the result of a right case without a time; NVRTC may still reject the case."""
        compiled = self._gpu_code_of(case)
        if compiled.compile_error:
            reason = compiled.compile_error.with_prefix(f"right on the CPU, but NVRTC refuses it for {compiled.arch}: ")
            return self._result(slot, case, "failed", reason, checked, failure="gpu build")
        return self._result(slot, case, "right", "", checked)

    def _raise_if_lost(self, error: OpbenchError, case: str) -> None:
        is_lost = isinstance(error, WorkerLost) and not isinstance(error, WorkerHung)
        if is_lost and not self._sink.exceeds_crash_limit(case):
            raise error

    def _end(
        self,
        slot: WorkerSlot,
        case: Case,
        status: Status,
        reason: str | Reason,
        checked: CheckResult | None = None,
        failure: Failure = "",
    ) -> None:
        """Record the result of a case that is not measured."""
        result = self._result(slot, case, status, reason, checked, failure=failure)
        self._sink.record([(result, checked.traffic if checked else None)])

    def _measure(self, slot: WorkerSlot, right: Sequence[tuple[Case, CheckResult]]) -> None:
        """Launch the right cases in turn, timed if there is a clock.

        A case that kills the worker fails, and the others are launched again.
        """
        candidates = {case.name: (case, checked) for case, checked in right}
        while candidates:
            running_case = ""

            def on_notification(notification: Notification) -> None:
                nonlocal running_case
                if isinstance(notification, CaseStarted):
                    running_case = notification.case
                    self._sink.started(running_case)

            phase = "measure" if self._settings.measure else "check"
            self._sink.announce(phase, f"{len(candidates)} variants of {right[0][0].problem}")
            try:
                remaining = [case for case, _ in candidates.values()]
                measured = self._launch_again(slot.worker, remaining, on_notification)
            except EnvironmentFault:
                raise
            except OpbenchError as error:
                culprit = running_case or next(iter(candidates))
                self._raise_if_lost(error, culprit)
                case, checked = candidates.pop(culprit)
                prefix = "while measured: " if self._settings.measure else "while launched again: "
                reason = error.reason.with_prefix(prefix)
                failure: Failure = "time limit" if isinstance(error, WorkerHung) else "measure"
                failed = self._result(slot, case, "failed", reason, checked, failure=failure)
                self._sink.record([(failed, checked.traffic)])
                continue
            outcomes = []
            for name, (case, checked) in candidates.items():
                if wrong := measured.wrong_cases.get(name, ""):
                    verdict = replace(checked.verdict, right=False, reason=wrong, run=RELAUNCH)
                    reason = Reason(wrong, kind=RELAUNCH)
                    outcomes.append(self._result(slot, case, "wrong", reason, replace(checked, verdict=verdict)))
                elif refusal := measured.invalid_cases.get(name, ""):
                    reason = Reason(refusal, kind="untimed")
                    outcomes.append(self._result(slot, case, "invalid", reason, checked))
                elif not self._settings.measure:
                    outcomes.append(self._unmeasured(slot, case, checked))
                else:
                    outcomes.append(self._measured(slot, case, checked, measured.measurements[name]))
            traffic = [checked.traffic for _, checked in candidates.values()]
            self._sink.record(list(zip(outcomes, traffic, strict=True)))
            return

    def _launch_again(
        self, worker: Worker, cases: Sequence[Case], on_notification: Callable[[Notification], None]
    ) -> MeasureResult:
        """Measure right cases; without a clock, launch them again untimed and judge their outputs."""
        if self._settings.measure:
            return self._measure_in_processes(worker, cases, on_notification)
        request = RelaunchCases([self.pack(case) for case in cases])
        return worker.ask(request, self._settings.time_limit_s, on_notification)

    def _measure_in_processes(
        self, worker: Worker, cases: Sequence[Case], on_notification: Callable[[Notification], None]
    ) -> MeasureResult:
        """Measure cases in several processes and merge their samples.

        Each process has its own context, buffers and order of cases, so the confidence interval includes their
        effect.
        """
        measurements_of_processes: list[dict[str, Measurement]] = []
        wrong: dict[str, str] = {}
        invalid: dict[str, str] = {}
        for process_index in range(self._settings.processes):
            if process_index:
                worker.stop()
            timing = replace(self._settings.timing, seed=self._settings.timing.seed + process_index)
            request = MeasureCases(
                [self.pack(case) for case in cases],
                timing,
                process_index + 1 == self._settings.processes,
                self._settings.prepared_cases & {case.name for case in cases},
            )
            with self._quiet():
                measured = worker.ask(request, self._settings.time_limit_s, on_notification)
            measurements_of_processes.append(measured.measurements)
            wrong |= measured.wrong_cases
            invalid |= measured.invalid_cases
        names = [
            case.name for case in cases if all(case.name in measurements for measurements in measurements_of_processes)
        ]
        return MeasureResult(
            {
                name: merge_processes([measurements[name] for measurements in measurements_of_processes])
                for name in names
            },
            wrong,
            invalid,
        )

    def _measured(self, slot: WorkerSlot, case: Case, checked: CheckResult, measurement: Measurement) -> Result:
        bound_s, bound = lower_bound_s(case, slot.ceilings, measurement.mode)
        if measurement.median_s < bound_s:
            time_text, bound_text = units.time(measurement.median_s), units.time(bound_s)
            message = (
                f"impossible: {time_text} is below the lower bound of {bound_text} from the {bound} peak; "
                "the kernel did not do the work, or the stored peaks are out of date (opbench ceiling)"
            )
            reason = Reason(message, kind="impossible-time", subject=bound)
            return self._result(slot, case, "invalid", reason, checked, measurement)
        return self._result(slot, case, "right", "", checked, measurement)

    def _gpu_code_of(self, case: Case) -> Resources:
        """Return the resources of a case's kernels on the named GPU; wait until the kernels are compiled."""
        if not self._gpu_code.is_ready(case):
            self._sink.announce("compile", f"{case.name} {self._gpu_code.status}")
        return self._gpu_code.resources_of(case)

    def _result(
        self,
        slot: WorkerSlot,
        case: Case,
        status: Status,
        reason: str | Reason,
        checked: CheckResult | None = None,
        measurement: Measurement | None = None,
        failure: Failure = "",
    ) -> Result:
        compiled = self._gpu_code_of(case)
        return Result.of_case(
            case,
            self._settings.backend,
            status,
            reason,
            failure=failure,
            verdict=checked.verdict if checked else None,
            measurement=measurement,
            resources=(checked.resources if checked else {}) or compiled.kernels,
            resources_missing=compiled.missing,
            rejected=compiled.is_rejected,
            compiled_for="" if compiled.compile_error or compiled.missing else compiled.arch,
            machine_code_sha256=(checked.machine_code_sha256 if checked else "") or compiled.machine_code_sha256,
            device=slot.device,
        )
