"""A search over a variant's configs on disk: one append-only file of trials, read and asked."""

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
    """What became of one config."""

    config: dict[str, int]
    ending: Ending
    at_s: float = 0.0
    """Of the search's time, all of its processes together."""
    reason: str = ""
    samples: tuple[float, ...] = ()
    """In the unit of the search: seconds, or joules a launch."""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    score: float | None = None
    """What configs are ranked by: its median, measured against the leader of its race, in that one's score."""
    stop: str = ""
    """"slower" than the leader beyond doubt, "close" to it, or "first" in its race."""
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    compile_s: float | None = None
    """What compiling took; next to nothing where the cache had it."""

    @property
    def is_ranked(self) -> bool:
        """Whether it has a score."""
        return self.score is not None


@dataclass(frozen=True)
class Begun:
    """The first line: what is searched, how, and where."""

    format: int
    variant: str
    problem: str
    tune: dict[str, tuple[int, ...]]
    where: tuple[str, ...]
    allowed: int
    """Configs that the rules and the problem allow."""
    strategy: str
    seed: int
    unit: Literal["s", "J"]
    mode: str
    source_sha256: str
    environment: Environment
    started: str = ""
    revision: Revision | None = None
    """Of the user's project."""
    command: str = ""
    opbench: str = ""


@dataclass(frozen=True)
class Finals:
    """The best are measured from here on, in a run of their own."""

    folder: str
    """Below the search's."""
    configs: tuple[dict[str, int], ...]
    spent_s: float
    """Of all processes."""


@dataclass(frozen=True)
class Joules:
    """What a launch of one of the finals' configs costs, beside the others."""

    config: dict[str, int]
    median: float
    low: float
    high: float
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class Energies:
    """The finals of a search that ranks by joules."""

    folder: str
    joules: tuple[Joules, ...]


@dataclass(frozen=True)
class Stopped:
    """The end of one process's search."""

    spent_s: float
    """Of all processes."""
    budget_s: float
    reason: str
    """"budget", or "every config tried"."""
    finals: str = ""
    """The folder of the run that measured the best, below the search's; empty where there was none."""


@dataclass
class Tuning:
    """Everything that a search left."""

    folder: Path
    begun: Begun
    trials: list[Trial] = field(default_factory=list)
    finals: Finals | None = None
    """The last that were begun."""
    energies: Energies | None = None
    """Of the last finals, of a search that ranks by joules."""
    stopped: Stopped | None = None
    """Of the last process that came to its end."""

    @property
    def spent_s(self) -> float:
        """Time of all its processes, as far as they told."""
        last = self.trials[-1].at_s if self.trials else 0.0
        ends = [end.spent_s for end in (self.finals, self.stopped) if end]
        return max(last, *ends, 0.0)

    @property
    def ranked(self) -> list[Trial]:
        """Trials with a score, the best first."""
        return sorted((t for t in self.trials if t.is_ranked), key=lambda t: t.score or 0.0)

    @property
    def default(self) -> dict[str, int]:
        """The config that is tried first: that of each tunable's first value, as far as the rules allow."""
        tune = self.begun.tune
        return min((t.config for t in self.trials), key=lambda c: [tune[n].index(c[n]) for n in tune], default={})

    def best_so_far(self) -> list[tuple[float, float]]:
        """When the best score fell, and to what."""
        return steps_down((t.at_s, t.score) for t in self.trials if t.score is not None)

    def counts(self) -> dict[Ending, int]:
        """How many trials ended how; of those that were not measured the reasons stand in the trials."""
        found: dict[Ending, int] = {}
        for trial in self.trials:
            found[trial.ending] = found.get(trial.ending, 0) + 1
        return found


def steps_down(scores: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (time, score) in order those that are lower than all before."""
    found: list[tuple[float, float]] = []
    for at_s, score in scores:
        if not found or score < found[-1][1]:
            found.append((at_s, score))
    return found


@dataclass(frozen=True)
class Final:
    """One of the finals in the search's unit."""

    config: dict[str, int]
    median: float
    low: float
    high: float
    time_s: float


def ranked_finals(found: Tuning, run: Run | None) -> list[Final]:
    """The right ones of the finals, the best in the search's unit first; of joules only those that were measured."""
    timed = [(r.config, r.measurement) for r in fastest(run) if r.measurement]
    if found.begun.unit == "s":
        return [Final(config, m.median_s, m.low_s, m.high_s, m.median_s) for config, m in timed]
    told = found.energies.joules if found.energies else ()
    both = ((j, m) for j in told for config, m in timed if config == j.config)
    finals = [Final(j.config, j.median, j.low, j.high, m.median_s) for j, m in both]
    return sorted(finals, key=lambda final: final.median)


def fastest(run: Run | None) -> list[Result]:
    """The right cases of the finals, the fastest first."""
    timed = [(r.measurement.median_s, r) for r in run.results if r.status == "right" and r.measurement] if run else []
    return [r for _, r in sorted(timed, key=lambda pair: pair[0])]


def finals_run(found: Tuning) -> Run | None:
    """The run that measured the best, as far as it came; None where none was begun."""
    name = found.finals.folder if found.finals else found.stopped.finals if found.stopped else ""
    place = found.folder / name
    return read_run(place) if name and run_file(place).is_file() else None


def is_tuning(place: Path) -> bool:
    """Whether a folder, or a file, holds a search."""
    return place.name == FILE or (place / FILE).is_file()


def read_tuning(place: Path) -> Tuning:
    """A search from its folder or its file; a torn last line is left out, of a config the last trial counts."""
    path = place if place.is_file() else place / FILE
    found: Tuning | None = None
    trials: dict[tuple[tuple[str, int], ...], Trial] = {}
    for number, line in read_lines(path):
        kind = line.pop("type")
        try:
            if kind == "tuning":
                if line.get("format") != FORMAT:
                    raise ValueError(f"format {line.get('format')} is not known; this opbench reads {FORMAT}")
                found = found or Tuning(path.parent, from_json(Begun, line))
            elif kind == "trial":
                trial = from_json(Trial, line)
                trials[tuple(trial.config.items())] = trial
            elif kind == "finals" and found:
                found.finals = from_json(Finals, line)
            elif kind == "energies" and found:
                found.energies = from_json(Energies, line)
            elif kind == "stopped" and found:
                found.stopped = from_json(Stopped, line)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path}:{number}: corrupt line ({error}); delete that line, then --resume") from None
    if found is None:
        raise UsageError(f"{path}:1: holds no search (opbench tune FILE.cu --out DIR)")
    found.trials = list(trials.values())
    return found
