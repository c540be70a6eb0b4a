"""Precision classes: what a variant may claim, and how coarse its numbers are."""

from __future__ import annotations

UNIT_ROUNDOFF = {"f32": 2.0**-24, "tf32": 2.0**-11, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}
"""Half a unit in the last place of 1, per precision class."""
