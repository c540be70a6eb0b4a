"""The bench on a GPU: processes compile configs ahead; one worker process checks and races them."""

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
from opbench.running.protocol import CaseStarted, Notification, PackedCase, Race, pack
from opbench.running.worker import Worker
from opbench.timing.racing import RaceOptions, RaceSamples
from opbench.tuning.candidates import Candidates
from opbench.tuning.compiling import Compilers
from opbench.tuning.search import CompiledConfig

SILENCE_S = 60.0
"""A worker without a message for this long is stopped: a kernel hangs, or is far too slow to be checked."""


class GpuBench:
    """Compiles and races a variant's configs on one problem."""

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

    def case(self, number: int) -> Case:
        """Return a config, given by its number, as a case."""
        return Case(self._variant, self._space[number], self._problem)

    def compile(self, numbers: Sequence[int]) -> None:
        """Start compiling these configs."""
        for number in numbers:
            self._compilers.begin(number, pack(self.case(number)), self._target)

    def compiled(self, wait_s: float) -> list[CompiledConfig]:
        """Return the configs that were compiled since the last call."""
        return [self._prepared(number, compiled) for number, compiled in self._compilers.done(wait_s)]

    def _prepared(self, number: int, compiled: CompiledCase) -> CompiledConfig:
        ending: Ending = "refused" if compiled.refused else "overtime" if compiled.overtime else "unfit"
        if reason := compiled.refused or compiled.overtime or compiled.unfit:
            trial = Trial(
                self._space[number],
                ending,
                reason=reason,
                registers=compiled.registers,
                shared_bytes=compiled.shared_bytes,
                occupancy=compiled.occupancy,
                compile_s=compiled.compile_s,
            )
            return CompiledConfig(number, trial)
        twin = self._twins.setdefault(compiled.identity, number) if compiled.identity else number
        seen = twin if twin != number else None
        return CompiledConfig(
            number, None, seen, compiled.registers, compiled.shared_bytes, compiled.occupancy, compiled.compile_s
        )

    def race(
        self, numbers: Sequence[int], leader: int | None, until_s: float, options: RaceOptions | None = None
    ) -> Mapping[int, RaceSamples | Trial]:
        """Race configs against the leader; a config that kills the worker fails, and the others race again."""
        outcomes: dict[int, RaceSamples | Trial] = {}
        running = {self.case(number).name: number for number in numbers}
        first = self.case(leader) if leader is not None else None
        while running:
            packed = [pack(self.case(number)) for number in running.values()]
            culprit, outcome = self._race_once(
                packed, pack(first) if first else None, until_s, options or self._options
            )
            if isinstance(outcome, RaceResult):
                number_of = {first.name: leader, **running} if first and leader is not None else running
                for name, raced in outcome.raced.items():
                    outcomes[number_of[name]] = raced
                reasons: Mapping[Ending, Mapping[str, str]] = {"wrong": outcome.wrong, "failed": outcome.failed}
                for ending, by_name in reasons.items():
                    for name, reason in by_name.items():
                        outcomes[number_of[name]] = Trial(self._space[number_of[name]], ending, reason=reason)
                return outcomes
            if culprit not in running:
                if first is None or culprit != first.name:
                    raise outcome
                first = leader = None  # it ran before, so the others can race without it
                continue
            number = running.pop(culprit)
            outcomes[number] = Trial(self._space[number], "failed", reason=str(outcome))
        return outcomes

    def _race_once(
        self, cases: list[PackedCase], leader: PackedCase | None, until_s: float, options: RaceOptions
    ) -> tuple[str, RaceResult | OpbenchError]:
        """Return ("", result) of one race, or the case that was running and the error that ended the race."""
        running = ""

        def listen(notification: Notification) -> None:
            nonlocal running
            if isinstance(notification, CaseStarted):
                running = notification.case

        self._races += 1
        options = replace(options, seed=self._races)
        request = Race(cases, leader, options, max(0.0, until_s - self.now()), self._mode, self._energy)
        try:
            return "", self._worker.ask(request, SILENCE_S, listen)
        except EnvironmentFault:
            raise
        except OpbenchError as error:
            if not running:
                raise
            return running, error
