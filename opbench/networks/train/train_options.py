"""The options of a training, and the reports on its progress."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from opbench import paths
from opbench.checking import backends
from opbench.errors import UsageError
from opbench.graph.recipe import OptimiserOptions, Recipe
from opbench.networks.plan.options import LAYOUTS, ChoosingOptions
from opbench.options import option


@dataclass(frozen=True, kw_only=True)
class CourseOptions(ChoosingOptions):
    """Options on the length of a training, its checks and its files."""

    epochs: int = option(0, "Number of passes over the training data [default: 10].", metavar="N", minimum=1)
    bucket_bytes: int = option(
        8 << 20,
        "Minimum size of a gradient bucket, which GPUs exchange while the backward pass continues.",
        "--bucket",
        metavar="MB",
        minimum=1,
        factor=1 << 20,
    )
    check: bool = option(False, "Before training, check every node of the first step against the reference.")
    compare: tuple[str, ...] = option(
        (),
        "After training, compare the results of the first step with PyTorch's; on a GPU, also compare the "
        "time of a step with PyTorch in six modes, such as eager and torch.compile.",
        choices=("torch",),
    )
    evaluate_every: int = option(
        0, "Evaluate on the test set after every N steps [default: after each epoch].", metavar="STEPS", minimum=1
    )
    checkpoint_every_s: float = option(
        60.0,
        "Time between checkpoints, from which --resume continues.",
        "--checkpoint-every",
        metavar="SECONDS",
        minimum=0,
    )
    resume: bool = option(False, "Continue from the last checkpoint in --out.")

    def _command_without_gpu(self) -> str:
        return "opbench net train"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(CourseOptions, OptimiserOptions):
    """Options of `opbench net train`, without the network and the data.

    0 for both `epochs` and `steps` means ten epochs, "" for `loss` the usual loss for the data, None for `out` a new
    folder in reports/. Raises UsageError for options that exclude each other.
    """

    steps: int = option(0, "Number of steps, instead of --epochs.", metavar="N", minimum=1)
    gpus: int = option(
        1,
        "Number of GPUs to train on in parallel, each with --batch pictures per step; on the cpu "
        "backend, number of processes.",
        metavar="R",
        minimum=1,
    )
    loss: str = option(
        "",
        "Loss function: cross_entropy, binary_cross_entropy, l1 or mse [default: the usual one for the data].",
        metavar="NAME",
    )
    schedule: str = option("cosine", "Learning rate schedule: constant or cosine.", metavar="NAME")
    layout: str = option(
        "auto",
        "Memory layout of images. auto: nhwc on a GPU (for tensor cores), else nchw.",
        choices=LAYOUTS,
    )
    out: Path | None = option(
        None,
        "Folder for the results [default: reports/<time>-<network>-training-<backend>].",
        metavar="DIR",
        folder=True,
    )

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        super().__post_init__()
        if self.epochs and self.steps:
            raise UsageError(
                "--epochs and --steps both set the length of the training; remove one of these two options",
                kind="exclusive",
                subject=("--epochs", "--steps"),
            )
        if self.resume and self.out is None:
            raise UsageError(
                "--resume continues the training of a folder; name that folder: --out DIR",
                kind="needs-option",
                subject="--resume",
                allowed="--out",
            )

    def settings(self, network: str, loss: str) -> TrainingSettings:
        """Return the settings for a network, by name, and for data whose usual loss is `loss`."""
        backend = backends.resolve_name(self.backend)
        optimiser = {f.name: getattr(self, f.name) for f in fields(OptimiserOptions)}
        course = {f.name: getattr(self, f.name) for f in fields(CourseOptions)}
        recipe = Recipe(
            **optimiser,
            loss=self.loss or loss,
            schedule=self.schedule,
            steps=self.steps or 1,
            ranks=self.gpus,
            layout=self.layout if self.layout != "auto" else "nhwc" if backend == "cuda" else "nchw",
        )
        course["epochs"] = 0 if self.steps else self.epochs or 10
        return TrainingSettings(recipe, out=self.out or paths.new_run_folder(f"{network}-training-{backend}"), **course)


@dataclass(frozen=True)
class TrainingSettings(CourseOptions):
    """The options of a training, completed with values that depend on data, backend and network."""

    recipe: Recipe
    """The recipe; its number of steps applies if `epochs` is 0."""
    out: Path = Path("reports/network")

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        super().__post_init__()
        if self.libraries:
            raise UsageError(
                "training must give the same sums each time, and vendor libraries do not promise the order of their "
                "sums; remove --libraries",
                kind="not-allowed",
                subject="--libraries",
            )
        if self.compare and self.recipe.ranks > 1:
            raise UsageError(
                f"--compare measures a training step on one GPU, not on {self.recipe.ranks}; replace --gpus "
                f"{self.recipe.ranks} by --accumulate {self.recipe.micro_batches}, which computes the same step on one "
                "GPU",
                kind="compare-on-ranks",
                subject="--gpus",
                value=self.recipe.ranks,
                allowed=self.recipe.micro_batches,
            )


RECENT_STEPS = 50
"""Most steps over which `TrainingProgress` takes the mean loss."""


@dataclass(frozen=True)
class TrainingProgress:
    """A report on the progress of a training."""

    step: int
    steps: int
    epoch: float
    loss: float
    """Mean loss of the last `RECENT_STEPS` steps."""
    score: float | None
    """Last score on the test set: accuracy, IoU, or the mean loss; None before the first."""
    score_name: str
    images_per_s: float
    left_s: float
    unit: str = "images"
    """The name of what `images_per_s` counts: "images" or "sequences"."""

    @property
    def averaged_steps(self) -> int:
        """Return the number of steps over which `loss` is the mean."""
        return min(self.step, RECENT_STEPS)
