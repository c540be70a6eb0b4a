"""A GPU made of numbers that compiles and races configs: its clock is told what each thing takes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from opbench.kernels.space import Space
from opbench.kernels.variant import Config
from opbench.results.tuning import Trial
from opbench.timing.racing import RaceOptions, RaceSamples, race
from opbench.tuning.candidates import Candidates
from opbench.tuning.search import CompiledConfig

GEMM = Space(
    tune={
        "BM": (64, 16, 32, 128, 256),
        "BN": (64, 16, 32, 128, 256),
        "BK": (16, 8, 32, 64),
        "TM": (4, 1, 2, 8, 16),
        "TN": (4, 1, 2, 8, 16),
        "VECTOR": (1, 2, 4),
        "UNROLL": (1, 2, 4, 8),
        "PAD": (0, 4),
    },
    where=(
        "BM % TM == 0 and BN % TN == 0",
        "THREADS >= 32 and THREADS <= 1024",
        "BK % UNROLL == 0",
        "BN % VECTOR == 0",
    ),
    define={"THREADS": "BM // TM * (BN // TN)"},
)
"""Tunables as public GEMM tuners have them; 30,000 configs keep the rules."""


def gemm_time(config: Config, seed: int = 1) -> float:
    """Seconds that rise and fall with tile shapes as a GEMM's do, with valleys, cliffs and ruggedness of its own."""
    bm, bn, tm, tn = config["BM"], config["BN"], config["TM"], config["TN"]
    threads, registers = bm // tm * (bn // tn), 24 + tm * tn + tm + tn
    traffic = 1 / bm + 1 / bn
    issue = (tm + tn) / (tm * tn) * (1.35 - 0.15 * math.log2(config["VECTOR"]))
    spill = 1 + max(0, registers - 200) / 40
    resident = min(2048 // threads, 65536 // (registers * threads), 230_000 // (8 * config["BK"] * (bm + bn) + 1))
    hidden = 1 + 1.2 / (1 + resident * threads / 256)
    rugged = random.Random(f"{seed}{sorted(config.items())}").uniform(1.0, 1.04)
    unroll = 1 + 0.05 * abs(math.log2(config["UNROLL"]) - 2)
    padded = 1.0 if config["PAD"] else 1.06
    return 1e-4 * (1 + 40 * traffic + 3 * issue) * spill * hidden * unroll * padded * rugged


def refusal(config: Config) -> str:
    """Why a config cannot be launched: its registers."""
    threads = config["BM"] // config["TM"] * (config["BN"] // config["TN"])
    registers = 24 + config["TM"] * config["TN"]
    return "no block fits, for registers" if registers > 255 or registers * threads > 65536 else ""


class SimulatedBench:
    """Time passes only as compiling, looking and sampling take it; eight compilers work beside the GPU."""

    compile_s, look_s, overhead_s, compilers = 0.6, 0.004, 4e-4, 8

    def __init__(
        self,
        space: Candidates,
        seconds: Callable[[Config], float] = gemm_time,
        noise: float = 0.004,
        seed: int = 0,
        wrong: Callable[[Config], bool] = lambda config: False,
    ) -> None:
        self.space, self.seconds, self.noise, self.wrong = space, seconds, noise, wrong
        self.chance = random.Random(seed)
        self.now_s = self.gpu_s = 0.0
        self.free_at = [0.0] * self.compilers
        self.queue: list[tuple[float, int]] = []
        self.launched: set[int] = set()

    def now(self) -> float:
        return self.now_s

    def start_compiling(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            at = min(range(self.compilers), key=self.free_at.__getitem__)
            self.free_at[at] = max(self.free_at[at], self.now_s) + self.compiling_s(number)
            self.queue.append((self.free_at[at], number))
        self.queue.sort()

    def compiling_s(self, number: int) -> float:
        return self.compile_s * self.chance.uniform(0.5, 1.5)

    def compiled(self, wait_s: float) -> list[CompiledConfig]:
        if wait_s > 0 and self.queue:
            self.now_s = max(self.now_s, min(self.queue[0][0], self.now_s + wait_s))
        done = [number for at, number in self.queue if at <= self.now_s]
        self.queue = [entry for entry in self.queue if entry[0] > self.now_s]
        return [self._prepared(number) for number in done]

    def _prepared(self, number: int) -> CompiledConfig:
        reason = refusal(self.space[number])
        return CompiledConfig(number, Trial(self.space[number], "unfit", reason=reason) if reason else None)

    def sample(self, number: int) -> float:
        self.launched.add(number)
        drift = 1 + 0.02 * math.sin(self.now_s / 7)
        value = self.seconds(self.space[number]) * drift * self.chance.lognormvariate(0, self.noise)
        self.now_s += value + self.overhead_s
        return value

    def race(self, numbers: Sequence[int], leader: int | None, until_s: float) -> Mapping[int, RaceSamples | Trial]:
        began = self.now_s
        result: dict[int, RaceSamples | Trial] = {}
        for number in numbers:
            self.now_s += self.look_s
            if self.wrong(self.space[number]):
                result[number] = Trial(self.space[number], "wrong", reason="wrong at out[0]")
        names = [str(n) for n in (*numbers, *([leader] if leader is not None else [])) if n not in result]
        raced = race(lambda name: self.sample(int(name)), names, RaceOptions(), lambda: self.now_s > until_s)
        self.gpu_s += self.now_s - began
        return {**result, **{int(name): value for name, value in raced.items()}}


def gemm_candidates() -> Candidates:
    """All configs of the simulated GEMM."""
    return Candidates(iter(GEMM), dict(GEMM.tune))
