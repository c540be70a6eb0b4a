"""opbench: check, time and compare CUDA implementations of one operator, with a GPU and without one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from opbench._version import __version__

__all__ = [
    "UNIT_ROUNDOFF",
    "Arrays",
    "Builder",
    "Gradient",
    "Network",
    "Operator",
    "Tensor",
    "Tolerance",
    "UsageError",
    "__version__",
    "check",
    "figures",
    "from_storage",
    "load",
    "magnitude_of_rounded",
    "matrix_product",
    "passed_on",
    "read_run",
    "rounded",
    "run",
    "to_storage",
    "train",
]

if TYPE_CHECKING:
    from opbench.api import check, run
    from opbench.catalog.arrays import matrix_product
    from opbench.catalog.gradient import Gradient, passed_on
    from opbench.catalog.operator import (
        Arrays,
        Operator,
        Tensor,
        Tolerance,
        from_storage,
        magnitude_of_rounded,
        rounded,
        to_storage,
    )
    from opbench.catalog.precision import UNIT_ROUNDOFF
    from opbench.errors import UsageError
    from opbench.graphs.build import Builder
    from opbench.nets.api import figures, load, read_run, train
    from opbench.nets.executor import Network

_HOMES = {
    "UNIT_ROUNDOFF": "opbench.catalog.precision",
    "Arrays": "opbench.catalog.operator",
    "Builder": "opbench.graphs.build",
    "Gradient": "opbench.catalog.gradient",
    "Network": "opbench.nets.executor",
    "Operator": "opbench.catalog.operator",
    "Tensor": "opbench.catalog.operator",
    "Tolerance": "opbench.catalog.operator",
    "UsageError": "opbench.errors",
    "check": "opbench.api",
    "figures": "opbench.nets.api",
    "from_storage": "opbench.catalog.operator",
    "load": "opbench.nets.api",
    "magnitude_of_rounded": "opbench.catalog.operator",
    "matrix_product": "opbench.catalog.arrays",
    "passed_on": "opbench.catalog.gradient",
    "read_run": "opbench.nets.api",
    "rounded": "opbench.catalog.operator",
    "run": "opbench.api",
    "to_storage": "opbench.catalog.operator",
    "train": "opbench.nets.api",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `opbench list` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'opbench' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
