"""The options of a search for the fastest config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opbench.errors import UsageError
from opbench.options import option, read_seconds, set_types, variant_folders

LEAST_BUDGET_S = 5.0


@dataclass(frozen=True)
class TuneOptions:
    """The options of `opbench tune`."""

    out: Path = Path("reports/tune")
    budget_s: float = option(
        60.0,
        "Wall time of the whole search, such as 60s, 5min or 1h [default: 60s].",
        "--budget",
        metavar="TIME",
        parse=read_seconds(LEAST_BUDGET_S),
    )
    space: Path | None = option(
        None,
        "Read the search space from this file: `tune` replaces the lists of the header, `where` adds rules.",
        metavar="FILE.toml",
        folder=False,
    )
    strategy: str = option(
        "local",
        "local: try what a model of the space expects to improve most. random: try any config. bayesian: follow the"
        " model of Optuna.",
        choices=("local", "random", "bayesian"),
    )
    seed: int = option(0, "Seed for the strategy.", minimum=0)
    mode: str = option(
        "",
        "cold: flush the L2 cache before each sample. hot: leave the data in the cache. [default:"
        " cold; with --energy hot]",
        choices=("cold", "hot"),
    )
    energy: bool = option(False, "Rank by energy per launch (in joules, over back-to-back launches) instead of time.")
    compile_limit_s: float = option(
        20.0,
        "Skip a config that takes longer than this to compile, and list it [default: 20s].",
        "--compile-limit",
        metavar="TIME",
        parse=read_seconds(1.0),
    )
    """Some configs that unroll by a tunable compile for minutes."""
    start_from: tuple[Path, ...] = option(
        (),
        "Try the best configs of the search in this folder first, such as one of another problem or GPU; repeatable.",
        "--start-from",
        metavar="DIR",
        folder=True,
    )
    resume: bool = option(False, "Continue the search in --out without repeating its configs.")
    variants: tuple[Path, ...] = variant_folders()
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        set_types(self)
        if self.energy and self.mode == "cold":
            raise UsageError(
                "--energy measures launches without a pause, so the caches are hot; remove --mode cold or --energy",
                kind="exclusive",
                subject=("--energy", "--mode"),
            )
        object.__setattr__(self, "mode", self.mode or ("hot" if self.energy else "cold"))
