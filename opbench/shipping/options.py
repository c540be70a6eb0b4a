"""Options of `opbench ship`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opbench.errors import UsageError
from opbench.graph.problems import ALLOWED
from opbench.options import option, set_types, variant_folders


@dataclass(frozen=True, kw_only=True)
class ShipOptions:
    """Options of `opbench ship`."""

    names: tuple[str, ...] = ()
    """Operators, problems, whole case names, or one network."""
    out: Path = Path("shipped")
    book: Path | None = option(
        None,
        "Which problems of an operator, and by which variants: opbench book writes it.",
        metavar="FILE.json",
        folder=False,
    )
    plan: Path | None = option(
        None,
        "Of a network, every layer's variant: a run's plan.json [default: what should be fastest].",
        metavar="FILE",
        folder=False,
    )
    weights: str = option("", "Of a network: as opbench net run takes them.", metavar="FILE|digits")
    image: str = option("", "Of a network: its example input [default: random numbers].", metavar="FILE|digits|photo")
    gpu: str = option(
        "sm_90",
        "What it is compiled for: an architecture, or a GPU such as h200.",
        metavar="ARCH|NAME",
    )
    precision: str = option("f32", "The least precise arithmetic that is taken.", choices=tuple(ALLOWED))
    name: str = option("opbench", "Of a library: files' stem and functions' prefix.", metavar="NAME")
    test: bool = option(True, "Leave out the float64 reference, which takes long for large problems.", "--no-test")
    replace: bool = option(False, "Replace a folder that an earlier `ship` wrote.")
    variants: tuple[Path, ...] = variant_folders()
    command: str = ""

    def __post_init__(self) -> None:
        set_types(self)
        object.__setattr__(self, "variants", tuple(folder.resolve() for folder in self.variants))
        if not self.name.isidentifier() or not self.name.isascii():
            raise UsageError(f"--name {self.name}: is no name in C; letters, digits and _, such as kernels")
