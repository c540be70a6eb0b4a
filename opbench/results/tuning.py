"""The record of a search over a variant's configs: a file of trials that grows line by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opbench.backend.environment import Environment
from opbench.errors import UsageError
from opbench.records import from_json
from opbench.results.files import Run, read_lines, read_run, run_file
from opbench.results.header import Revision
from opbench.results.result import Result

FILE = "tune.jsonl"
FORMAT = 1

Ending = Literal["raced", "same", "refused", "overtime", "unfit", "wrong", "failed"]
ENDINGS: Mapping[Ending, str] = {
    "raced": "measured",
    "same": "same machine code and launches as another: not measured again",
    "refused": "does not compile",
    "overtime": "takes longer to compile than the limit",
    "unfit": "cannot be launched: known from its cubin, never launched",
    "wrong": "computes something else",
    "failed": "could not be launched, or died",
}


@dataclass(frozen=True)
class Trial:
    """The result of trying one config."""

    config: dict[str, int]
    ending: Ending
    at_s: float = 0.0
    """Seconds since the start of the search, over all of its processes."""
    reason: str = ""
    samples: tuple[float, ...] = ()
    """Samples in the unit of the search: seconds, or joules per launch."""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    score: float | None = None
    """The value by which configs are ranked: its median relative to the leader of its race, times the leader's score.
    """
    stop: str = ""
    """Why its measurement stopped: "slower" than the leader beyond doubt, "close" to it, or "first" in its race."""
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    compile_s: float | None = None
    """Seconds of compiling; close to 0 on a cache hit."""

    @property
    def is_ranked(self) -> bool:
        """Return whether the trial has a score."""
        return self.score is not None


@dataclass(frozen=True)
class SearchHeader:
    """The first line of a search's record: the variant, the options and the machine."""

    format: int
    variant: str
    problem: str
    tune: dict[str, tuple[int, ...]]
    where: tuple[str, ...]
    allowed: int
    """Number of configs that the rules and the problem allow."""
    strategy: str
    seed: int
    unit: Literal["s", "J"]
    mode: str
    source_sha256: str
    environment: Environment
    started: str = ""
    revision: Revision | None = None
    """Commit of the user's project."""
    command: str = ""
    opbench: str = ""


@dataclass(frozen=True)
class Finals:
    """The start of the finals: the best configs, and the folder of the run that measures them again."""

    folder: str
    """Folder of the finals, relative to the search's."""
    configs: tuple[dict[str, int], ...]
    spent_s: float
    """Seconds of all processes."""


@dataclass(frozen=True)
class ConfigEnergy:
    """The energy per launch of a config in the finals, in joules."""

    config: dict[str, int]
    median: float
    low: float
    high: float
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class Energies:
    """The energies of all configs in the finals, for a search that minimises energy."""

    folder: str
    joules: tuple[ConfigEnergy, ...]


@dataclass(frozen=True)
class SearchEnd:
    """The last line that a process writes to a search's record: the time spent, and why the search ended."""

    spent_s: float
    """Seconds of all processes."""
    budget_s: float
    reason: str
    """"budget", or "every config tried"."""
    finals: str = ""
    """Folder of the run that measured the best configs, relative to the search's; empty if there was none."""


@dataclass
class Tuning:
    """The record of a search over configs: its header, trials, finals and end."""

    folder: Path
    begun: SearchHeader
    trials: list[Trial] = field(default_factory=list)
    finals: Finals | None = None
    """The last finals that were started."""
    energies: Energies | None = None
    """The energies of the last finals, for a search that ranks by joules."""
    stopped: SearchEnd | None = None
    """The end of the last process that ended normally."""

    @property
    def spent_s(self) -> float:
        """Return the wall time of all processes of the search in seconds, as far as recorded."""
        last_trial_s = self.trials[-1].at_s if self.trials else 0.0
        spent_ends = [end.spent_s for end in (self.finals, self.stopped) if end]
        return max(last_trial_s, *spent_ends, 0.0)

    @property
    def ranked_trials(self) -> list[Trial]:
        """Return the trials with a score, best first."""
        return sorted((t for t in self.trials if t.is_ranked), key=lambda t: t.score or 0.0)

    @property
    def default(self) -> dict[str, int]:
        """Return the default config: the first allowed value of each tunable."""
        tune = self.begun.tune
        return min((t.config for t in self.trials), key=lambda c: [tune[n].index(c[n]) for n in tune], default={})

    def best_so_far(self) -> list[tuple[float, float]]:
        """Return each improvement of the best score, with its time."""
        return improvements((t.at_s, t.score) for t in self.trials if t.score is not None)

    def counts(self) -> dict[Ending, int]:
        """Return the number of trials by outcome; trials without a measurement are counted by reason."""
        result: dict[Ending, int] = {}
        for trial in self.trials:
            result[trial.ending] = result.get(trial.ending, 0) + 1
        return result


def improvements(scores: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (time, score) pairs whose score is lower than all before."""
    steps: list[tuple[float, float]] = []
    for at_s, score in scores:
        if not steps or score < steps[-1][1]:
            steps.append((at_s, score))
    return steps


@dataclass(frozen=True)
class Finalist:
    """A config in the finals, with its result in the unit of the search."""

    config: dict[str, int]
    median: float
    low: float
    high: float
    time_s: float


def ranked_finals(tuning: Tuning, run: Run | None) -> list[Finalist]:
    """Return the right configs of the finals, best first; in a search by energy, only those with an energy."""
    timed = [(r.config, r.measurement) for r in fastest_results(run) if r.measurement]
    if tuning.begun.unit == "s":
        return [Finalist(config, m.median_s, m.low_s, m.high_s, m.median_s) for config, m in timed]
    joules = tuning.energies.joules if tuning.energies else ()
    energies_and_times = ((j, m) for j in joules for config, m in timed if config == j.config)
    finals = [Finalist(j.config, j.median, j.low, j.high, m.median_s) for j, m in energies_and_times]
    return sorted(finals, key=lambda final: final.median)


def fastest_results(run: Run | None) -> list[Result]:
    """Return the right cases of the final measurement, fastest first."""
    timed = [(r.measurement.median_s, r) for r in run.results if r.status == "right" and r.measurement] if run else []
    return [r for _, r in sorted(timed, key=lambda pair: pair[0])]


def finals_run(tuning: Tuning) -> Run | None:
    """Return the run that measured the finals, maybe incomplete; None if it was not started."""
    name = tuning.finals.folder if tuning.finals else tuning.stopped.finals if tuning.stopped else ""
    folder = tuning.folder / name
    return read_run(folder) if name and run_file(folder).is_file() else None


def is_tuning(path: Path) -> bool:
    """Return whether a folder or a file contains the record of a search."""
    return path.name == FILE or (path / FILE).is_file()


PART_TYPES = {"finals": Finals, "energies": Energies, "stopped": SearchEnd}
"""Types of the parts of a search that have a line each, by the line's type, which is also the field's name."""


def read_tuning(file_or_folder: Path) -> Tuning:
    """Read the record of a search from its folder or file; of several trials of a config, the last counts."""
    path = file_or_folder if file_or_folder.is_file() else file_or_folder / FILE
    tuning: Tuning | None = None
    trials: dict[tuple[tuple[str, int], ...], Trial] = {}
    for line_number, line in read_lines(path):
        line_type = line.pop("type")
        try:
            if line_type == "tuning":
                if line.get("format") != FORMAT:
                    raise ValueError(f"format {line.get('format')} is not known; this opbench reads format {FORMAT}")
                tuning = tuning or Tuning(path.parent, from_json(SearchHeader, line))
            elif line_type == "trial":
                trial = from_json(Trial, line)
                trials[tuple(trial.config.items())] = trial
            elif line_type in PART_TYPES and tuning:
                setattr(tuning, line_type, from_json(PART_TYPES[line_type], line))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{path}:{line_number}: this line is corrupt ({error}); delete the line, then complete the search with "
                "--resume",
                kind="corrupt-line",
                subject=path,
                cause=error,
            ) from None
    if tuning is None:
        raise UsageError(
            f"{path}:1: this file has no search; start a search with: opbench tune FILE.cu --out DIR",
            kind="no-search",
            subject=path,
        )
    tuning.trials = list(trials.values())
    return tuning
