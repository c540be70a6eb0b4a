"""The search: asks a strategy for configs, compiles ahead, races what can run, and records every outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from opbench.results.tuning import Trial
from opbench.timing.racing import RaceSamples
from opbench.tuning.candidates import Candidates
from opbench.tuning.strategies import Strategy

BATCH = 8
"""Configs in one race, in addition to the leader."""
CLOSE = 1.03
"""Configs up to this factor above the best score may be the best, so they are measured again, to the target."""


@dataclass(frozen=True)
class CompiledConfig:
    """The outcome of compiling one config."""

    number: int
    trial: Trial | None = None
    """The trial if the config ended while compiling (refused, overtime or unfit); None if it can race."""
    twin: int | None = None
    """Another config with the same machine code and launches; None without one."""
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    compile_s: float | None = None


class Bench(Protocol):
    """The interface that a search needs to compile configs and to race them: on a GPU, or simulated."""

    def now(self) -> float:
        """Return the bench's time in seconds."""

    def compile(self, config_numbers: Sequence[int]) -> None:
        """Start compiling these configs; return at once."""

    def compiled(self, wait_s: float) -> list[CompiledConfig]:
        """Return the configs that were compiled since the last call; wait up to `wait_s` for a first pending one."""

    def race(
        self, config_numbers: Sequence[int], leader: int | None, until_s: float
    ) -> Mapping[int, RaceSamples | Trial]:
        """Check these configs and race the right ones against the leader, whose samples are returned too.

        Configs that are wrong or fail have a Trial as their result.
        """


@dataclass
class Search:
    """A search in progress: the trial of each config, and the current leader."""

    space: Candidates
    strategy: Strategy
    bench: Bench
    keep: Callable[[Trial], None]
    """Called with each trial before the next begins."""
    spent_s: float = 0.0
    """Seconds that earlier processes spent on this search."""
    batch: int = BATCH
    ahead: int = 2 * BATCH
    """Most configs that are being compiled or wait for a race; a later proposal can use more results."""
    first: list[int] = field(default_factory=list)
    """Configs to try before the strategy is asked, such as the best ones of another problem."""
    trials: dict[int, Trial] = field(default_factory=dict)
    leader: int | None = None
    waiting: list[CompiledConfig] = field(default_factory=list)
    """Configs that are compiled and not yet raced."""
    pending: int = 0
    """Number of configs being compiled."""
    started: set[int] = field(default_factory=set)
    """Configs that were compiled or are being compiled."""
    began: float = field(init=False)
    """The search's start on the bench's clock, moved back by `spent_s`."""

    def __post_init__(self) -> None:
        self.began = self.bench.now() - self.spent_s

    def know(self, trials: Sequence[Trial]) -> None:
        """Load the trials of an earlier process; skip configs that are no longer candidates."""
        for trial in trials:
            config_number = self.space.number_of(trial.config)
            if config_number is not None:
                self._take(config_number, trial)

    def run(self, budget_s: float) -> str:
        """Search until the budget is spent or every config is tried; return "budget" or "every config tried"."""
        until_s = self.began + budget_s
        while self.bench.now() < until_s:
            self._start_compiling()
            if not self.pending and not self.waiting:
                return "every config tried"
            must_wait = not self.waiting and self.pending > 0
            prepared_configs = self.bench.compiled(until_s - self.bench.now() if must_wait else 0.0)
            self.pending -= len(prepared_configs)
            self.waiting += [prepared for prepared in prepared_configs if not self._ended_at_compiling(prepared)]
            if self.waiting:
                self._race(self.waiting[: self.batch], until_s)
                del self.waiting[: self.batch]
        return "budget"

    def _start_compiling(self) -> None:
        """Start compiling enough configs that the GPU never waits for one."""
        numbers_to_compile: list[int] = []
        while self.pending + len(self.waiting) + len(numbers_to_compile) < self.ahead:
            config_number = self.first.pop(0) if self.first else self.strategy.ask()
            if config_number is None:
                break
            if config_number not in self.trials and config_number not in self.started:
                self.started.add(config_number)
                numbers_to_compile.append(config_number)
        self.bench.compile(numbers_to_compile)
        self.pending += len(numbers_to_compile)

    def finalists(self, max_count: int) -> list[int]:
        """Return up to `max_count` configs with a score within `CLOSE` of the best, and the default if it could run."""
        ranked = sorted(((t.score, n) for n, t in self.trials.items() if t.score is not None and t.ending == "raced"))
        config_numbers = [config_number for score, config_number in ranked[:max_count] if score <= CLOSE * ranked[0][0]]
        default = self.trials.get(0)
        return (
            config_numbers if 0 in config_numbers or default is None or default.score is None else [*config_numbers, 0]
        )

    def _ended_at_compiling(self, prepared: CompiledConfig) -> bool:
        if prepared.trial is not None:
            self._end(prepared.number, prepared.trial)
            return True
        twin = self.trials.get(prepared.twin) if prepared.twin is not None else None
        if twin is None or not twin.is_ranked:
            return False
        twin_trial = replace(
            twin, config=self.space[prepared.number], ending="same", samples=(), stop="", compile_s=prepared.compile_s
        )
        self._end(prepared.number, twin_trial)
        return True

    def _race(self, batch: Sequence[CompiledConfig], until_s: float) -> None:
        by_number = {prepared.number: prepared for prepared in batch}
        outcomes = self.bench.race(list(by_number), self.leader, until_s)
        factor = self._factor(outcomes)
        for config_number, outcome in outcomes.items():
            if isinstance(outcome, Trial):
                self._end(config_number, outcome)
                continue
            if config_number not in by_number:
                continue  # the leader
            if not outcome.samples:
                continue  # the time ended before this config ran
            prepared, interval = by_number[config_number], outcome.interval
            trial = Trial(
                self.space[config_number],
                "raced",
                samples=tuple(outcome.samples),
                median=outcome.median,
                low=interval.low,
                high=interval.high,
                score=factor * outcome.median,
                stop=outcome.stop,
                registers=prepared.registers,
                shared_bytes=prepared.shared_bytes,
                occupancy=prepared.occupancy,
                compile_s=prepared.compile_s,
            )
            self._end(config_number, trial)

    def _factor(self, scores: Mapping[int, RaceSamples | Trial]) -> float:
        """Return the leader's score over its median in this race: the factor that makes this race's medians scores."""
        if self.leader is None:
            return 1.0
        race_result, recorded_score = scores.get(self.leader), self.trials[self.leader].score
        return (
            recorded_score / race_result.median
            if recorded_score is not None and isinstance(race_result, RaceSamples) and race_result.samples
            else 1.0
        )

    def _end(self, config_number: int, trial: Trial) -> None:
        trial = replace(trial, at_s=round(self.bench.now() - self.began, 6))
        self.keep(trial)
        self._take(config_number, trial)

    def _take(self, config_number: int, trial: Trial) -> None:
        self.trials[config_number] = trial
        self.strategy.tell(config_number, trial.score)
        # Its outputs were wrong in one of the checked samples.
        if config_number == self.leader and trial.ending != "raced":
            raced = [(t.score, n) for n, t in self.trials.items() if t.ending == "raced" and t.score is not None]
            self.leader = min(raced)[1] if raced else None
        best = self.trials[self.leader].score if self.leader is not None else None
        if trial.ending == "raced" and trial.score is not None and (best is None or trial.score < best):
            self.leader = config_number
