"""Search for the fastest config: ask a strategy for configs, compile them, race them, and record every outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from opbench.results.tuning import Trial
from opbench.timing.racing import RaceSamples
from opbench.tuning.candidates import Candidates
from opbench.tuning.strategies import Strategy

RACE_SIZE = 8
"""The number of configs in one race, in addition to the leader."""
FINALIST_FACTOR = 1.03
"""Configs with a score up to this factor above the best one may be the best, so they are measured again."""


@dataclass(frozen=True)
class CompiledConfig:
    """The outcome of compiling one config."""

    number: int
    trial: Trial | None = None
    """The trial if the config ended while compiling, for example by an error; None if the config can race."""
    identical_config: int | None = None
    """Another config with the same machine code and launches; None without one."""
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    compile_s: float | None = None


class Bench(Protocol):
    """The interface by which a search compiles and races configs, on a GPU or in a simulation."""

    def now(self) -> float:
        """Return the bench's time in seconds."""

    def start_compiling(self, config_numbers: Sequence[int]) -> None:
        """Start compiling these configs, and return without waiting."""

    def compiled(self, wait_s: float) -> list[CompiledConfig]:
        """Return the configs that were compiled since the last call; if there are none, wait up to `wait_s` for one."""

    def race(
        self, config_numbers: Sequence[int], leader: int | None, until_s: float
    ) -> Mapping[int, RaceSamples | Trial]:
        """Check these configs, race the right ones against the leader until `until_s`, and return all samples.

        Configs that are wrong or fail have a Trial as their result.
        """


@dataclass
class Search:
    """A search in progress: the trial of each config, and the current leader."""

    space: Candidates
    strategy: Strategy
    bench: Bench
    on_trial: Callable[[Trial], None]
    """A function that is called with each trial before the next one begins."""
    spent_s: float = 0.0
    """Seconds that earlier processes spent on this search."""
    race_size: int = RACE_SIZE
    max_started_ahead: int = 2 * RACE_SIZE
    """The greatest number of configs that are compiling or wait for a race; later proposals can use more results."""
    first_configs: list[int] = field(default_factory=list)
    """Configs to try before those of the strategy, such as the best ones of another problem."""
    trials: dict[int, Trial] = field(default_factory=dict)
    """The trials by the number of the config."""
    leader: int | None = None
    """The config with the best score so far."""
    compiled_configs: list[CompiledConfig] = field(default_factory=list)
    """Configs that are compiled and wait for a race."""
    compiling_count: int = 0
    """Number of configs being compiled."""
    started_configs: set[int] = field(default_factory=set)
    """Configs that were compiled or are being compiled."""
    start_s: float = field(init=False)
    """The search's start on the bench's clock, moved back by `spent_s`."""

    def __post_init__(self) -> None:
        self.start_s = self.bench.now() - self.spent_s

    def load_trials(self, trials: Sequence[Trial]) -> None:
        """Load the trials of an earlier process; skip configs that are no longer candidates."""
        for trial in trials:
            config_number = self.space.number_of(trial.config)
            if config_number is not None:
                self._record_trial(config_number, trial)

    def run(self, budget_s: float) -> str:
        """Search until the budget is spent or every config is tried; return "budget" or "every config tried"."""
        until_s = self.start_s + budget_s
        while self.bench.now() < until_s:
            self._start_compiling()
            if not self.compiling_count and not self.compiled_configs:
                return "every config tried"
            must_wait = not self.compiled_configs and self.compiling_count > 0
            prepared_configs = self.bench.compiled(until_s - self.bench.now() if must_wait else 0.0)
            self.compiling_count -= len(prepared_configs)
            self.compiled_configs += [
                prepared for prepared in prepared_configs if not self._ended_at_compiling(prepared)
            ]
            if self.compiled_configs:
                self._race(self.compiled_configs[: self.race_size], until_s)
                del self.compiled_configs[: self.race_size]
        return "budget"

    def _start_compiling(self) -> None:
        """Start compiling the next configs, so that the GPU does not wait for the compiler."""
        numbers_to_compile: list[int] = []
        while self.compiling_count + len(self.compiled_configs) + len(numbers_to_compile) < self.max_started_ahead:
            config_number = self.first_configs.pop(0) if self.first_configs else self.strategy.ask()
            if config_number is None:
                break
            if config_number not in self.trials and config_number not in self.started_configs:
                self.started_configs.add(config_number)
                numbers_to_compile.append(config_number)
        self.bench.start_compiling(numbers_to_compile)
        self.compiling_count += len(numbers_to_compile)

    def finalists(self, max_count: int) -> list[int]:
        """Return up to `max_count` configs with scores near the best, and the default config if it could run.

        Near means at most `FINALIST_FACTOR` times the best score.
        """
        ranked = sorted(((t.score, n) for n, t in self.trials.items() if t.score is not None and t.ending == "raced"))
        config_numbers = [
            config_number for score, config_number in ranked[:max_count] if score <= FINALIST_FACTOR * ranked[0][0]
        ]
        default = self.trials.get(0)
        return (
            config_numbers if 0 in config_numbers or default is None or default.score is None else [*config_numbers, 0]
        )

    def _ended_at_compiling(self, prepared: CompiledConfig) -> bool:
        """Record a config that needs no race; return False if it needs one."""
        if prepared.trial is not None:
            self._end_trial(prepared.number, prepared.trial)
            return True
        identical_trial = self.trials.get(prepared.identical_config) if prepared.identical_config is not None else None
        if identical_trial is None or not identical_trial.is_ranked:
            return False
        trial = replace(
            identical_trial,
            config=self.space[prepared.number],
            ending="same",
            samples=(),
            stop="",
            compile_s=prepared.compile_s,
        )
        self._end_trial(prepared.number, trial)
        return True

    def _race(self, batch: Sequence[CompiledConfig], until_s: float) -> None:
        """Race compiled configs against the leader and record their trials."""
        config_by_number = {prepared.number: prepared for prepared in batch}
        outcomes = self.bench.race(list(config_by_number), self.leader, until_s)
        factor = self._score_factor(outcomes)
        for config_number, outcome in outcomes.items():
            if isinstance(outcome, Trial):
                self._end_trial(config_number, outcome)
                continue
            if config_number not in config_by_number:
                continue  # It is the leader.
            if not outcome.samples:
                continue  # The time ended before this config ran.
            prepared, interval = config_by_number[config_number], outcome.interval
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
            self._end_trial(config_number, trial)

    def _score_factor(self, scores: Mapping[int, RaceSamples | Trial]) -> float:
        """Return the factor from medians of this race to scores: the leader's score divided by its median."""
        if self.leader is None:
            return 1.0
        race_result, recorded_score = scores.get(self.leader), self.trials[self.leader].score
        return (
            recorded_score / race_result.median
            if recorded_score is not None and isinstance(race_result, RaceSamples) and race_result.samples
            else 1.0
        )

    def _end_trial(self, config_number: int, trial: Trial) -> None:
        """Store the trial of a config with the time at which it ended."""
        trial = replace(trial, at_s=round(self.bench.now() - self.start_s, 6))
        self.on_trial(trial)
        self._record_trial(config_number, trial)

    def _record_trial(self, config_number: int, trial: Trial) -> None:
        """Add a trial, report its score to the strategy, and update the leader."""
        self.trials[config_number] = trial
        self.strategy.tell(config_number, trial.score)
        # If the leader was wrong in a checked sample, another config leads.
        if config_number == self.leader and trial.ending != "raced":
            raced = [(t.score, n) for n, t in self.trials.items() if t.ending == "raced" and t.score is not None]
            self.leader = min(raced)[1] if raced else None
        best = self.trials[self.leader].score if self.leader is not None else None
        if trial.ending == "raced" and trial.score is not None and (best is None or trial.score < best):
            self.leader = config_number
