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
        "Wall time for all of it, such as 60s, 5min or 1h [default: 60s].",
        "--budget",
        metavar="TIME",
        parse=read_seconds(LEAST_BUDGET_S),
    )
    space: Path | None = option(
        None,
        "tune and where of its own: ranges in place of the header's lists, rules beside its rules.",
        metavar="FILE.toml",
        folder=False,
    )
    strategy: str = option(
        "local",
        "Neighbours of the best so far, any config, or what Optuna's model expects to be fast.",
        choices=("local", "random", "bayesian"),
    )
    seed: int = option(0, "Of the strategy.", least=0)
    mode: str = option(
        "",
        "Each sample with a flushed L2 cache, or with the case's data left in it [default: cold; with --energy hot].",
        choices=("cold", "hot"),
    )
    energy: bool = option(False, "Rank by joules a launch, of launches without a break, not by time.")
    compile_limit_s: float = option(
        20.0,
        "A config that takes longer to compile is skipped and listed [default: 20s].",
        "--compile-limit",
        metavar="TIME",
        parse=read_seconds(1.0),
    )
    """Some configs that unroll by a tunable compile for minutes."""
    resume: bool = option(False, "Go on with the search in --out; configs that it tried are not repeated.")
    variants: tuple[Path, ...] = variant_folders()
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        set_types(self)
        object.__setattr__(self, "variants", tuple(folder.resolve() for folder in self.variants))
        if self.energy and self.mode == "cold":
            raise UsageError("--energy counts launches without a break, whose caches are hot; leave --mode cold out")
        object.__setattr__(self, "mode", self.mode or ("hot" if self.energy else "cold"))
