"""What a user may choose of a network's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opbench.runs.suite import Suite


@dataclass(frozen=True)
class NetOptions:
    """What a user may choose; travels whole."""

    network: str
    """A name of `NETWORKS`, or the .json file of a saved network."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    backend: str = "auto"
    precision: str = "f32"
    layout: str = "auto"
    """nchw, nhwc, or auto: what costs least in all, conversions included; without results nchw."""
    roots: tuple[Path, ...] = ()
    """Further folders laid out as variants/."""
    plan: Path | None = None
    results: tuple[Path, ...] = ()
    tune: bool = False
    libraries: bool = False
    leave_out: tuple[str, ...] = ()
    """Globs of variants that --tune does not measure."""
    graph: bool = True
    parallel: bool = False
    memory_bytes: int | None = None
    """The most that activations and workspaces may take: slower variants that need less are chosen where they must."""
    without: tuple[str, ...] = ()
    """Passes to leave out."""
    compare: tuple[str, ...] = ()
    """Peers to time beside it: "torch"."""
    gpu: str = "h200"
    """Whose ceilings say what a run without a GPU could reach."""
    check: bool = True
    time_limit_s: float = Suite.time_limit_s
    """What the check of one node may take before it counts as one that hangs."""
    weights: str = ""
    """A .safetensors file, or "digits": LeNet's, trained on those; else drawn from a seed."""
    inputs: Mapping[str, np.ndarray] | None = None
    """Seeded normals unless given."""
    labels: tuple[int, ...] = ()
    """The class of each input picture, where it is known."""
    out: Path = Path("reports/network")
    seed: int = 20260
    command: tuple[str, ...] = ()
