"""The options of `opbench judge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opbench.checking import backends
from opbench.options import option, set_types, variant_folders


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """The options of a judgement, as `opbench judge` offers them."""

    task: Path | None = option(
        None,
        "TOML file with operator, problems, precision, tolerance and limits; or a PyTorch task, such as FILE.py:Model.",
        metavar="FILE",
        folder=False,
    )
    problems: tuple[str, ...] = option(
        (), "Problem sizes to judge and time, such as '(n=1000)'; repeatable.", "--problem", metavar="PROBLEM"
    )
    out: Path | None = option(None, "Folder for the verdict [default: reports/<time>-judge].", folder=True)
    backend: str = option(
        "auto",
        "auto: judge in a cage on the CPU and, if there is a GPU, also on the GPU, which has no cage. cpu: use no GPU; "
        "the verdict then has no time.",
        choices=backends.BACKEND_CHOICES,
    )
    seed: int | None = option(
        None, "Repeat a judgement with its seed [default: a secret one, which the verdict shows].", minimum=0
    )
    drawn: int = option(3, "Number of random and of boundary sizes to draw.", "--drawn", minimum=0)
    gpu: str = option("h200", "The GPU for which NVRTC compiles the kernels.", metavar="NAME", completer="gpus")
    time_limit_s: float | None = option(
        None,
        "Stop a case that takes longer than this [default: the limit of the task, else 60].",
        "--time-limit",
        metavar="SECONDS",
        minimum=0.1,
    )
    variants: tuple[Path, ...] = variant_folders()
    trust: bool = option(
        False,
        "Also load Python files: .py variants, PyTorch tasks that a header names, and an operator.py that replaces a "
        "shipped one. Python has no cage; kernels stay in the cage.",
    )
    no_cage: bool = option(False, "Run the kernels on the CPU without a cage. Use it only for kernels that you trust.")

    def __post_init__(self) -> None:
        set_types(self)
