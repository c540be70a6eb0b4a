"""opbench: check, time and compare CUDA implementations of one operator, with a GPU and without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "check", "load", "run"]

if TYPE_CHECKING:
    from opbench.api import check, load, run


def __getattr__(name: str) -> Any:
    """Import the interface when first used, so that `opbench list` stays quick."""
    if name in __all__:
        from opbench import api

        return getattr(api, name)
    raise AttributeError(f"module 'opbench' has no attribute '{name}'")
