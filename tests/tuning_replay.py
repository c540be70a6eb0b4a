"""How near each strategy comes to the best in a tenth of the time that trying everything takes, over many seeds.

python tests/tuning_replay.py [RECORD…] [--strategy local] [--seeds 20] [--share 0.1] [--compilers 16]

RECORD is the folder of a search that tried its whole space from an empty compiler cache, so that its tune.jsonl has
what each config took to compile; without one the simulated spaces are searched. Nothing here needs a GPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from opbench.kernels.space import Space
from opbench.kernels.variant import Config
from opbench.results.tuning import Trial, read_tuning
from opbench.tuning.candidates import Candidates
from opbench.tuning.search import CompiledConfig, Search
from opbench.tuning.strategies import STRATEGIES
from support.fakes.simulated_tuning import SimulatedBench, gemm_time, refusal

START_S, FINALS_SHARE = 1.5, 0.25
"""Until the GPU's context is there; of the budget what is left for the finals."""


@dataclass(frozen=True)
class World:
    """A space of which everything is known."""

    name: str
    space: Candidates
    seconds: Callable[[Config], float]
    compile_s: Callable[[Config], float]
    refused: Callable[[Config], str] = lambda config: ""

    def bench(self, compilers: int, seed: int = 0) -> KnownBench:
        """A GPU on which it can be searched."""
        return KnownBench(self, compilers, seed)

    def exhaustive_s(self, compilers: int) -> float:
        """What trying everything takes, compilers and the GPU side by side."""
        bench = self.bench(compilers)
        runnable = [config for config in self.space if not self.refused(config)]
        looked = sum(bench.look_s + 5 * (self.seconds(config) + bench.overhead_s) for config in runnable)
        return START_S + max(looked, sum(map(self.compile_s, self.space)) / compilers)


class KnownBench(SimulatedBench):
    """Compiles and races as a world's record says."""

    def __init__(self, world: World, compilers: int, seed: int) -> None:
        self.world, self.compilers = world, compilers
        super().__init__(world.space, world.seconds, seed=seed)

    def compiling_s(self, number: int) -> float:
        return self.world.compile_s(self.space[number])

    def _prepared(self, number: int) -> CompiledConfig:
        reason = self.world.refused(self.space[number])
        return CompiledConfig(number, Trial(self.space[number], "unfit", reason=reason) if reason else None)


def found_s(world: World, strategy: str, seed: int, budget_s: float, compilers: int) -> float:
    """The true time of the best finalist of one search."""
    bench = world.bench(compilers, seed)
    search = Search(world.space, STRATEGIES[strategy](world.space, seed), bench, lambda trial: None)
    search.max_started_ahead = max(search.max_started_ahead, compilers)
    bench.now_s += START_S
    search.run((1 - FINALS_SHARE) * budget_s)
    finalists = search.finalists(8)
    return min((world.seconds(world.space[n]) for n in finalists), default=math.inf)


def chance(config: Config, seed: str, low: float, high: float) -> float:
    """A number of this config alone."""
    return random.Random(f"{seed}{sorted(config.items())}").uniform(low, high)


def recorded(folder: Path) -> World:
    """The world of a search that tried everything."""
    found = read_tuning(folder)
    if len(found.trials) < found.begun.allowed:
        raise click.ClickException(
            f"{folder}: {len(found.trials)} of {found.begun.allowed} configs tried; all are needed"
        )
    trials = {tuple(trial.config.items()): trial for trial in found.trials}
    at = {key: trial.score or math.inf for key, trial in trials.items()}
    taken = {key: trial.compile_s or 0.0 for key, trial in trials.items()}
    failed = {key: trial.reason or trial.ending for key, trial in trials.items() if not trial.is_ranked}
    return World(
        folder.name,
        Candidates((trial.config for trial in found.trials), found.begun.tune),
        lambda config: at[tuple(config.items())],
        lambda config: taken[tuple(config.items())],
        lambda config: failed.get(tuple(config.items()), ""),
    )


SMALL_GEMM = Space(
    tune={
        "BM": (64, 16, 32, 128), "BN": (64, 16, 32, 128), "BK": (16, 8, 32), "TM": (4, 1, 2, 8), "TN": (4, 1, 2, 8),
        "VECTOR": (1, 2, 4), "UNROLL": (1, 2, 4, 8), "PAD": (0, 4),
    },
    where=("BM % TM == 0 and BN % TN == 0", "THREADS >= 32 and THREADS <= 1024", "BK % UNROLL == 0"),
    define={"THREADS": "BM // TM * (BN // TN)"},
)  # fmt: skip
STENCIL = Space(
    tune={
        "BX": (32, 16, 64, 128, 256), "BY": (1, 2, 4, 8, 16, 32), "WX": (1, 2, 3, 4, 6, 8), "WY": (1, 2, 3, 4, 6, 8),
        "STAGE": (0, 1), "PAD": (0, 1), "ROWS": (1, 3, 5, 15), "READ_ONLY": (0, 1),
    },
    where=("BX * BY >= 32 and BX * BY <= 1024",),
)  # fmt: skip
ROWS = Space(
    tune={
        "BLOCK": (256, 32, 64, 128, 192, 384, 512, 768, 1024), "LANES": (32, 1, 2, 4, 8, 16),
        "ROWS": (1, 2, 3, 4, 5, 6, 8), "VECTOR": (1, 2, 4), "UNROLL": (1, 2, 4, 8), "STAGE": (0, 1),
    },
)  # fmt: skip


def stencil_time(config: Config) -> float:
    """Tiles with a halo, kept in shared memory or read again through the cache: work a thread helps until it spills."""
    x, y = config["BX"] * config["WX"], config["BY"] * config["WY"]
    halo = (x + 14) * (y + 14) / (x * y)
    work, threads = config["WX"] * config["WY"], config["BX"] * config["BY"]
    registers = 20 + 2.5 * work + 2 * config["ROWS"]
    spill = 1 + max(0.0, registers - 128) / 60
    shared = 4 * (x + 14) * (y + 14) * config["STAGE"]
    resident = min(2048 // threads, int(65536 // (min(registers, 255) * threads)), 230_000 // (shared + 1024), 32)
    reads = 0.35 * halo if config["STAGE"] else 1.2 * halo / (1 + 0.3 * config["READ_ONLY"])
    conflicts = 1.0 if config["PAD"] or not config["STAGE"] or config["WX"] % 2 else 1.12
    issue = 1 + 0.9 / min(work, 24) + (0.15 if config["ROWS"] == 1 else 0.0)
    hidden = 1 + 1.0 / (1 + max(resident, 0.2) * threads / 320)
    return 1e-4 * (reads * conflicts + issue) * spill * hidden * chance(config, "stencil", 1.0, 1.04)


def rows_time(config: Config) -> float:
    """A matrix times a vector: bytes in flight hide memory's latency, and few lanes read in pieces."""
    flight = config["VECTOR"] * config["UNROLL"] * config["ROWS"]
    registers = 24 + 4 * flight
    resident = min(2048 // config["BLOCK"], int(65536 // (min(registers, 255) * config["BLOCK"])), 32)
    spill = 1 + max(0, registers - 128) / 80
    coalesced = max(1.0, (8 / (config["LANES"] * config["VECTOR"])) ** 0.6)
    in_flight = max(resident, 0.2) * config["BLOCK"] * flight
    hidden = 1 + 2500 / (2500 + in_flight)
    tail = 1 + 0.02 * config["BLOCK"] / 256 * config["ROWS"] * (32 / config["LANES"]) / 32
    staged = 1.05 if config["STAGE"] else 1.0 + 0.02 * (config["ROWS"] == 1)
    return 6e-5 * coalesced * hidden * spill * tail * staged * chance(config, "rows", 1.0, 1.03)


TANGLED = Space(
    tune={
        "BM": (64, 32, 128), "BN": (64, 32, 128), "BK": (16, 8, 32), "TX": (16, 8, 32), "TY": (16, 8, 32),
        "VA": (1, 2, 4), "VB": (1, 2, 4), "STRIDED": (1, 0), "STAGE_A": (1, 0), "STAGE_B": (1, 0),
    },
    where=("VA <= VB or STRIDED == 0", "BM * BN <= 64 * TX * TY"),
)  # fmt: skip


def tangled_time(config: Config) -> float:
    """What each tunable does hangs on the two after it, by chance: many valleys, a few of them deep."""
    names = list(config)
    groups = ({n: config[n] for n in (names + names)[at : at + 3]} for at in range(len(names)))
    alone = (chance({name: value}, "alone", 0.0, 0.25) for name, value in config.items())
    return 3e-4 * math.exp(sum(alone) + sum(chance(group, f"tangled{at}", 0.0, 0.2) for at, group in enumerate(groups)))


def simulated() -> list[World]:
    """Spaces as public tuners have them, with cliffs, valleys and tunables that matter only together."""

    def compiling(config: Config) -> float:
        return chance(config, "compile", 0.12, 0.3) + 0.004 * config.get("UNROLL", 1) * config.get("TM", 4)

    def world(name: str, space: Space, time: Callable[[Config], float], refused: Callable[[Config], str]) -> World:
        return World(name, Candidates(iter(space), dict(space.tune)), time, compiling, refused)

    return [
        world("gemm", SMALL_GEMM, gemm_time, refusal),
        world("stencil", STENCIL, stencil_time, lambda config: ""),
        world("tangled", TANGLED, tangled_time, lambda config: ""),
        world("rows", ROWS, rows_time, lambda config: ""),
    ]


def shares(world: World, strategy: str, seeds: int, share: float, compilers: int) -> Mapping[str, float]:
    """Of the seeds those that come within 1 % and 3 %, and how far the middle and the worst are off."""
    runnable = [config for config in world.space if not world.refused(config)]
    best = min(map(world.seconds, runnable))
    budget_s = share * world.exhaustive_s(compilers)
    off = sorted(found_s(world, strategy, seed, budget_s, compilers) / best - 1 for seed in range(seeds))
    near = {f"within {near:.0%}": sum(o <= near for o in off) / seeds for near in (0.01, 0.03)}
    return {"budget": budget_s, **near, "middle": off[len(off) // 2], "worst": off[-1]}


@click.command()
@click.argument("records", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--strategy", "strategies", multiple=True, type=click.Choice(list(STRATEGIES)), default=["local", "random"]
)
@click.option("--seeds", default=20, type=click.IntRange(min=1))
@click.option("--share", default=0.1, type=click.FloatRange(0, 1, min_open=True), help="Of the exhaustive time.")
@click.option("--compilers", default=16, type=click.IntRange(min=1))
def main(records: tuple[Path, ...], strategies: tuple[str, ...], seeds: int, share: float, compilers: int) -> None:
    """Search known spaces and say how near the best each strategy comes."""
    for world in [recorded(folder) for folder in records] or simulated():
        for strategy in strategies:
            found = shares(world, strategy, seeds, share, compilers)
            told = ", ".join(f"{key} {value:.0%}" for key, value in found.items() if key != "budget")
            click.echo(f"{world.name:12} {len(world.space):6} configs, {found['budget']:5.1f} s, {strategy:8}: {told}")


if __name__ == "__main__":
    main()
