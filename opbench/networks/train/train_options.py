"""What a user may choose of a training, and how far one is."""

from __future__ import annotations

from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.graph.recipe import Recipe
from opbench.networks.plan.options import ChoosingOptions


@dataclass(frozen=True)
class TrainOptions(ChoosingOptions):
    """What a user may choose of training, but for the network and the data."""

    recipe: Recipe
    """Its steps count for `epochs` 0."""
    epochs: int = 0
    resume: bool = False
    checkpoint_every_s: float = 60.0
    evaluate_every: int = 0
    """Steps between evaluations on the test set; 0: at the end of each epoch."""
    check: bool = False
    """Check every node of the first step first, as `opbench net run` does."""
    bucket_bytes: int = 8 << 20
    """The least of what ranks exchange at once: less costs more for its start than for its way."""

    def __post_init__(self) -> None:
        """Refuse what does not fit together, whoever asks for it."""
        super().__post_init__()
        if self.libraries:
            raise UsageError("libraries say nothing of the order of their sums: no training takes them")
        if self.compare and self.recipe.ranks > 1:
            raise UsageError(
                f"--compare compares a step on one device; --accumulate {self.recipe.micro} in the place of "
                f"--gpus {self.recipe.ranks} is the same step there"
            )

    def _elsewhere(self) -> str:
        return "opbench net train"


RECENT = 50
"""Steps whose mean loss `Standing` has, at most."""


@dataclass(frozen=True)
class Standing:
    """How far a training is."""

    step: int
    steps: int
    epoch: float
    loss: float
    """Mean of the last `RECENT` steps."""
    score: float | None
    """Last score on the test set: accuracy, IoU, or the mean loss."""
    score_name: str
    images_per_s: float
    left_s: float

    @property
    def averaged_steps(self) -> int:
        """Over how many steps `loss` is the mean."""
        return min(self.step, RECENT)
