"""What a user may choose of a training, and how far one is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opbench.graphs.recipe import Recipe


@dataclass(frozen=True)
class TrainOptions:
    """What a user may choose of training, but for the network and the data."""

    recipe: Recipe
    """Its steps count for `epochs` 0."""
    epochs: int = 0
    backend: str = "auto"
    out: Path = Path("reports/training")
    resume: bool = False
    checkpoint_every_s: float = 60.0
    evaluate_every: int = 0
    """Steps between looks at what is held out; 0: at the end of each epoch."""
    check: bool = False
    """Check every node of the first step first, as `opbench net run` does."""
    time_limit_s: float = 60.0
    """What the check of a node may take."""
    graph: bool = True
    parallel: bool = False
    precision: str = "f32"
    """The least precise arithmetic allowed: f32, tf32, or bf16, which says how the step stores its values, too."""
    results: tuple[Path, ...] = ()
    """Runs from which each node's variant is chosen; else see `defaults.ranked`."""
    compare: tuple[str, ...] = ()
    """Peers to compare a step with at the end: "torch"."""
    roots: tuple[Path, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standing:
    """How far a training is."""

    step: int
    steps: int
    epoch: float
    loss: float
    """Mean of the last `RECENT` steps."""
    score: float | None
    """Of what is held out, when it was last looked at: accuracy, IoU, or the mean loss."""
    score_name: str
    images_per_s: float
    left_s: float
