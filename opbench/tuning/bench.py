"""Compile and time configs on a GPU: compiler processes work ahead, and one worker process checks and times configs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from opbench.checking.racing import RaceResult
from opbench.errors import EnvironmentFault, OpbenchError
from opbench.gpu.compile.fitting import CompiledCase, GpuTarget
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant
from opbench.results.tuning import Ending, Trial
from opbench.running.protocol import CaseStarted, Notification, PackedCase, RaceCases, pack
from opbench.running.worker import Worker
from opbench.timing.racing import RaceOptions, RaceSamples
from opbench.tuning.candidates import Candidates
from opbench.tuning.compiling import Compilers
from opbench.tuning.search import CompiledConfig

SILENCE_S = 60.0
"""A worker without a message for this long is stopped: a kernel hangs, or is far too slow to be checked."""


class GpuBench:
    """Compiles a variant's configs and times them in races on a GPU, for one problem."""

    def __init__(
        self,
        variant: Variant,
        problem: Operator,
        space: Candidates,
        worker: Worker,
        compilers: Compilers,
        target: GpuTarget,
        options: RaceOptions,
        mode: str = "cold",
        energy: bool = False,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._variant, self._problem, self._space = variant, problem, space
        self._worker, self._compilers, self._target = worker, compilers, target
        self._options, self._mode, self._energy = options, mode, energy
        self._twins: dict[str, int] = {}
        self._races = 0
        self.now = now

    def case(self, config_number: int) -> Case:
        """Return a config of the tuning space, given by its number, as a case."""
        return Case(self._variant, self._space[config_number], self._problem)

    def start_compiling(self, config_numbers: Sequence[int]) -> None:
        """Start compiling these configs."""
        for config_number in config_numbers:
            self._compilers.begin(config_number, pack(self.case(config_number)), self._target)

    def compiled(self, wait_s: float) -> list[CompiledConfig]:
        """Return the configs that were compiled since the last call."""
        return [self._prepared(config_number, compiled) for config_number, compiled in self._compilers.done(wait_s)]

    def _prepared(self, config_number: int, compiled: CompiledCase) -> CompiledConfig:
        ending: Ending = "refused" if compiled.compile_error else "overtime" if compiled.timeout_message else "unfit"
        if reason := compiled.compile_error or compiled.timeout_message or compiled.launch_obstacle:
            trial = Trial(
                self._space[config_number],
                ending,
                reason=reason,
                registers=compiled.registers,
                shared_bytes=compiled.shared_bytes,
                occupancy=compiled.occupancy,
                compile_s=compiled.compile_s,
            )
            return CompiledConfig(config_number, trial)
        twin = self._twins.setdefault(compiled.identity, config_number) if compiled.identity else config_number
        identical_config = twin if twin != config_number else None
        return CompiledConfig(
            config_number,
            None,
            identical_config,
            compiled.registers,
            compiled.shared_bytes,
            compiled.occupancy,
            compiled.compile_s,
        )

    def race(
        self, config_numbers: Sequence[int], leader: int | None, until_s: float, options: RaceOptions | None = None
    ) -> Mapping[int, RaceSamples | Trial]:
        """Race configs against the leader; a config that kills the worker fails, and the others race again."""
        outcomes: dict[int, RaceSamples | Trial] = {}
        number_by_name = {self.case(config_number).name: config_number for config_number in config_numbers}
        leader_case = self.case(leader) if leader is not None else None
        while number_by_name:
            packed = [pack(self.case(config_number)) for config_number in number_by_name.values()]
            failed_name, outcome = self._race_once(
                packed, pack(leader_case) if leader_case else None, until_s, options or self._options
            )
            if isinstance(outcome, RaceResult):
                number_of = (
                    {leader_case.name: leader, **number_by_name}
                    if leader_case and leader is not None
                    else number_by_name
                )
                for name, samples in outcome.samples_by_case.items():
                    outcomes[number_of[name]] = samples
                reasons: Mapping[Ending, Mapping[str, str]] = {
                    "wrong": outcome.wrong_cases,
                    "failed": outcome.failed_cases,
                }
                for ending, reason_by_name in reasons.items():
                    for name, reason in reason_by_name.items():
                        outcomes[number_of[name]] = Trial(self._space[number_of[name]], ending, reason=reason)
                return outcomes
            if failed_name not in number_by_name:
                if leader_case is None or failed_name != leader_case.name:
                    raise outcome
                leader_case = leader = None  # it ran before, so the others can race without it
                continue
            config_number = number_by_name.pop(failed_name)
            outcomes[config_number] = Trial(self._space[config_number], "failed", reason=str(outcome))
        return outcomes

    def _race_once(
        self, cases: list[PackedCase], leader: PackedCase | None, until_s: float, options: RaceOptions
    ) -> tuple[str, RaceResult | OpbenchError]:
        """Return ("", result) of one race, or the case that was running and the error that ended the race."""
        running_case = ""

        def on_notification(notification: Notification) -> None:
            nonlocal running_case
            if isinstance(notification, CaseStarted):
                running_case = notification.case

        self._races += 1
        options = replace(options, seed=self._races)
        request = RaceCases(cases, leader, options, max(0.0, until_s - self.now()), self._mode, self._energy)
        try:
            return "", self._worker.ask(request, SILENCE_S, on_notification)
        except EnvironmentFault:
            raise
        except OpbenchError as error:
            if not running_case:
                raise
            return running_case, error
