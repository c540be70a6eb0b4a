"""Replay searches on spaces that others measured in full, and print how long each takes to come within 1 %.

python tests/tuning_spaces.py FOLDER [--strategy local] [--seeds 10] [--compilers 16] [--transfer]

FOLDER has cache files of Kernel Tuner (*.json or *.json.gz) in which every config of a space was measured. A search is
replayed on the recorded times and compile times, with noise and drift; the processor time of the strategy counts, too.
--transfer starts each search with the best configs of the next space in FOLDER that has the same tunables. No GPU is
needed. Public files: the repository AutoTuningAssociation/benchmark_hub on GitHub.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from opbench.kernels.variant import Config
from opbench.tables import markdown_table
from opbench.tuning.candidates import Candidates
from opbench.tuning.search import RACE_SIZE, Search
from opbench.tuning.strategies import STRATEGIES, Strategy
from tuning_replay import START_S, KnownBench, World

SHARE = 1 / 50
"""The share of the exhaustive time after which a search is judged."""
MOST = 1 / 5
"""The share of the exhaustive time after which a search is stopped."""
NEAR = 0.01
"""A leader that is at most this far above the best time of the space is near enough, relative to the best."""


def kernel_tuner_world(path: Path) -> World:
    """Return the space of a cache file of Kernel Tuner.

    A config's time is the median of its samples. Tunables with a single value are dropped.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    cache: Mapping[str, Any] = json.loads(text)
    tune = {name: values for name, values in cache["tune_params"].items() if len(set(values)) > 1}
    seconds: dict[tuple[tuple[str, int], ...], float] = {}
    compile_s: dict[tuple[tuple[str, int], ...], float] = {}
    refused: dict[tuple[tuple[str, int], ...], str] = {}
    configs: list[Config] = []
    for entry in cache["cache"].values():
        config = {name: int(entry[name]) for name in tune}
        key = tuple(config.items())
        configs.append(config)
        compile_s[key] = 1e-3 * (entry.get("compile_time") or 0.0)
        if isinstance(entry["time"], int | float):
            seconds[key] = 1e-3 * statistics.median(entry.get("times") or [entry["time"]])
        else:
            refused[key] = str(entry["time"])
    return World(
        path.name.split(".")[0],
        Candidates(iter(configs), {name: tuple(map(int, values)) for name, values in tune.items()}),
        lambda config: seconds[tuple(config.items())],
        lambda config: compile_s[tuple(config.items())],
        lambda config: refused.get(tuple(config.items()), ""),
    )


def best_s(world: World) -> float:
    """Return the least time of a space in seconds."""
    return min(world.seconds(config) for config in world.space if not world.refused(config))


def transferred(world: World, other: World | None) -> list[int]:
    """Return the configs of a space that are the best ones of another space."""
    if other is None:
        return []
    ranked = sorted((c for c in other.space if not other.refused(c)), key=other.seconds)
    return [number for config in ranked[:RACE_SIZE] if (number := world.space.number_of(config)) is not None]


def neighbour(world: World, worlds: Sequence[World]) -> World | None:
    """Return the next space with the same tunables; None if there is no other."""
    at = worlds.index(world)
    others = [*worlds[at + 1 :], *worlds[:at]]
    return next((other for other in others if other.space.names == world.space.names), None)


@dataclass
class Timed:
    """A strategy whose processor time passes on the clock of the bench."""

    strategy: Strategy
    bench: KnownBench

    def ask(self) -> int | None:
        began_s = time.thread_time()
        number = self.strategy.ask()
        self.bench.now_s += time.thread_time() - began_s
        return number

    def tell(self, number: int, score: float | None) -> None:
        self.strategy.tell(number, score)


@dataclass(frozen=True)
class Reached:
    """The result of one search."""

    share: float
    """Share of the exhaustive time until the leader is within 1 % of the best; infinity if it never is."""
    off: float
    """The leader's distance from the best, relative to the best, after `SHARE` of the exhaustive time."""


def reached(world: World, strategy: str, seed: int, compilers: int, first: Sequence[int] = ()) -> Reached:
    """Replay one search until its leader is within 1 % of the best, at most for `MOST` of the exhaustive time."""
    exhaustive_s, least_s = world.exhaustive_s(compilers), best_s(world)
    bench = world.bench(compilers, seed)
    timed = Timed(STRATEGIES[strategy](world.space, seed), bench)
    search = Search(world.space, timed, bench, lambda trial: None, first_configs=list(first))
    search.max_started_ahead = max(search.max_started_ahead, compilers)
    bench.now_s += START_S
    share = SHARE
    search.run(share * exhaustive_s)
    while not any(off <= NEAR for _, off in leaders(world, search, least_s)) and share < MOST:
        share += SHARE / 4
        search.run(share * exhaustive_s)
    changes = leaders(world, search, least_s)
    at_s = next((at_s for at_s, off in changes if off <= NEAR), math.inf)
    within = [off for at, off in changes if at <= SHARE * exhaustive_s]
    return Reached(at_s / exhaustive_s, within[-1] if within else math.inf)


def leaders(world: World, search: Search, least_s: float) -> list[tuple[float, float]]:
    """Return when the leader changed, in seconds, and each leader's distance from the best, relative to the best."""
    changes, score = [], math.inf
    for trial in search.trials.values():
        if trial.ending == "raced" and trial.score is not None and trial.score < score:
            score = trial.score
            changes.append((trial.at_s, world.seconds(trial.config) / least_s - 1))
    return changes


COLUMNS = (
    "space",
    "configs",
    "of these within 1 %",
    "all take",
    "share of that time until within 1 %, median",
    "9th of 10",
    "seeds within 1 % after 1/50",
    "distance from the best after 1/50, median",
    "9th of 10",
)


def row(world: World, strategy: str, seeds: int, compilers: int, first: Sequence[int]) -> list[str]:
    """Return a row of the table: shares of the exhaustive time, seeds within 1 %, and distances from the best."""
    limit_s = (1 + NEAR) * best_s(world)
    near = sum(world.seconds(c) <= limit_s for c in world.space if not world.refused(c))
    runs = [reached(world, strategy, seed, compilers, first) for seed in range(seeds)]
    shares, offs = sorted(run.share for run in runs), sorted(run.off for run in runs)
    middle, ninth = (seeds - 1) // 2, math.ceil(0.9 * seeds) - 1
    return [
        world.name.replace("_", " "),
        f"{len(world.space):,}",
        f"{near}",
        f"{world.exhaustive_s(compilers):,.0f} s",
        _percent(shares[middle], f"over {MOST:.0%}"),
        _percent(shares[ninth], f"over {MOST:.0%}"),
        f"{sum(share <= SHARE for share in shares)} of {seeds}",
        _percent(offs[middle], "nothing measured"),
        _percent(offs[ninth], "nothing measured"),
    ]


def _percent(share: float, otherwise: str) -> str:
    return f"{100 * share:.1f} %" if share < math.inf else otherwise


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--strategy", default="local", type=click.Choice(list(STRATEGIES)))
@click.option("--seeds", default=10, type=click.IntRange(min=1))
@click.option("--compilers", default=16, type=click.IntRange(min=1))
@click.option("--transfer", is_flag=True, help="Start with the best configs of another space with the same tunables.")
def main(folder: Path, strategy: str, seeds: int, compilers: int, transfer: bool) -> None:
    """Print one row for each space."""
    worlds = [kernel_tuner_world(path) for path in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])]
    click.echo("\n".join(markdown_table(COLUMNS, ())))
    for world in worlds:
        first = transferred(world, neighbour(world, worlds)) if transfer else []
        if first or not transfer:
            click.echo(markdown_table(COLUMNS, [row(world, strategy, seeds, compilers, first)])[-1])


if __name__ == "__main__":
    main()
