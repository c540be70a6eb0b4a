"""Options of `opbench ship`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opbench.errors import UsageError
from opbench.graph.problems import ALLOWED_PRECISIONS
from opbench.options import option, set_types, variant_folders


@dataclass(frozen=True, kw_only=True)
class ShipOptions:
    """Options of `opbench ship`."""

    names: tuple[str, ...] = ()
    """Operators, problems, whole case names, or one network."""
    out: Path = Path("shipped")
    book: Path | None = option(
        None,
        "A winners file (see opbench book), which selects the problems and variants of an operator.",
        metavar="FILE.json",
        folder=False,
    )
    plan: Path | None = option(
        None,
        "For a network: a plan.json of a run, which selects the variant of every layer [default: as in opbench net "
        "run].",
        metavar="FILE",
        folder=False,
    )
    weights: str = option("", "For a network: its weights, as for opbench net run.", metavar="FILE|digits")
    image: str = option("", "For a network: its example input [default: random numbers].", metavar="FILE|digits|photo")
    gpu: str = option("sm_90", "The target: an architecture such as sm_90, or a GPU such as h200.", metavar="ARCH|NAME")
    precision: str = option("f32", "The lowest precision that variants may use.", choices=tuple(ALLOWED_PRECISIONS))
    name: str = option("opbench", "For a library of kernels: prefix of the file names and functions.", metavar="NAME")
    test: bool = option(
        True, "Do not write the test against the float64 reference, which takes long for large problems.", "--no-test"
    )
    replace: bool = option(False, "Replace a folder that an earlier opbench ship wrote.")
    variants: tuple[Path, ...] = variant_folders()
    command: str = ""

    def __post_init__(self) -> None:
        set_types(self)
        if not self.name.isidentifier() or not self.name.isascii():
            raise UsageError(
                f"--name {self.name}: this is not a C identifier; use letters, digits and _, such as --name kernels",
                kind="not-an-identifier",
                subject="--name",
                value=self.name,
            )
