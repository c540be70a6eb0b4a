"""What a GPU can do at most: measured by probes, or quoted from a datasheet, and what that allows a problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from opbench.errors import UsageError
from opbench.gpu.limits.products import PRODUCTS, product
from opbench.paths import shipped
from opbench.records import from_json, read_json, to_json

BoundBy = Literal["memory", "compute"]


@dataclass(frozen=True)
class CheckedLimit:
    """One limit that was measured again at the start of a run."""

    limit: str
    case: str
    seen: float
    off: float
    """The rate that was seen over the remembered one, less 1."""


@dataclass(frozen=True)
class CeilingCheck:
    """Whether remembered limits still hold."""

    checked: tuple[CheckedLimit, ...] = ()
    said: str = ""
    """A sentence where one of them does not, or where that was not found out."""


LEVELS = {
    "dram": "DRAM", "dram_read": "DRAM read", "dram_write": "DRAM write", "l2": "L2", "l1": "shared memory",
}  # fmt: skip
"""What each bandwidth is called."""


@dataclass(frozen=True)
class Ceilings:
    """Limits of one GPU; None where a limit is not known."""

    gpu: str = ""
    source: Literal["measured", "datasheet"] = "measured"
    origin: str = ""
    """The datasheet, or the run that measured it, by name."""
    dram_bytes_per_s: float | None = None
    """Of a copy, read and written."""
    dram_read_bytes_per_s: float | None = None
    dram_write_bytes_per_s: float | None = None
    l2_bytes_per_s: float | None = None
    l1_bytes_per_s: float | None = None
    """L1 caches and shared memory of all multiprocessors together."""
    fp32_flops_per_s: float | None = None
    matrix_flops_per_s: dict[str, float] = field(default_factory=dict)
    """Dense rate of the matrix units by precision class: tf32, bf16, f16."""
    fp32_sustained_flops_per_s: float | None = None
    """As `fp32_flops_per_s`, which is a burst's, but after seconds without a break: power and clocks have settled."""
    matrix_sustained_flops_per_s: dict[str, float] = field(default_factory=dict)
    launch_floor_s: float | None = None
    sm_clock_hz: float | None = None
    l2_bytes: int | None = None
    cases: dict[str, str] = field(default_factory=dict)
    """For each measured limit, the case that reached it."""
    canary: CeilingCheck | None = None
    """Of remembered limits, at the start of a run."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ceilings:
        """Return ceilings from their JSON, in which a limit that is not known may be null; raises ValueError."""
        return from_json(cls, {key: of for key, of in value.items() if of is not None})

    def to_json(self) -> dict[str, Any]:
        """Return every limit that is known."""
        return {key: of for key, of in to_json(self).items() if of not in (None, "", {})}

    def at_level(self, level: str) -> Ceilings:
        """The same limits with another bandwidth in the place of DRAM's copy.

        `level` is "dram", "dram_read", "dram_write", "l2" or "l1"; where the one-way limits are not known, as of a
        datasheet, the copy's stands for them.
        """
        rate = getattr(self, f"{level}_bytes_per_s")
        if level == "dram" or (rate is None and level.startswith("dram")):
            return self
        return replace(self, dram_bytes_per_s=rate)

    def flops_per_s(self, unit: str) -> float | None:
        """The arithmetic rate of a unit, such as "f32", "bf16" or "tf32/3" for three products in place of one."""
        name, _, products = unit.partition("/")
        rates = {"f32": self.fp32_flops_per_s, "f16": self.matrix_flops_per_s.get("bf16"), **self.matrix_flops_per_s}
        rate = rates.get(name)  # both types of 16 bits have one rate
        return rate / int(products or 1) if rate else None


SLOWEST_SHARE = {"f64": 64, "i32": 4}
"""How many times slower than float32 a GPU computes at most in a unit whose rate is not known: where even then bytes
take longer, they set the least time."""


def best_time(
    ceilings: Ceilings, flops: int, compulsory_bytes: int, precision: str = "f32"
) -> tuple[float, BoundBy] | None:
    """The time that the roofs allow from a cold cache, and the one that sets it; None when one needed is unknown."""
    bandwidth, rate = ceilings.dram_bytes_per_s, ceilings.flops_per_s(precision)
    if not bandwidth or not (flops or compulsory_bytes):
        return None
    memory = compulsory_bytes / bandwidth
    if flops and not rate:
        slowest = (ceilings.fp32_flops_per_s or 0.0) / SLOWEST_SHARE[precision] if precision in SLOWEST_SHARE else 0.0
        return (memory, "memory") if slowest and flops / slowest <= memory else None
    compute = flops / rate if flops and rate else 0.0
    return (compute, "compute") if compute > memory else (memory, "memory")


def datasheet(gpu: str) -> Ceilings | None:
    """The datasheet's figures of a device by any name that `product` knows, else None."""
    found = product(gpu)
    if found is None:
        return None
    half = found.half_flops_per_s
    return Ceilings(
        gpu=found.name,
        source="datasheet",
        origin=found.origin,
        fp32_flops_per_s=found.fp32_flops_per_s,
        dram_bytes_per_s=found.dram_bytes_per_s,
        l1_bytes_per_s=found.l1_bytes_per_s,
        matrix_flops_per_s={"tf32": found.tf32_flops_per_s, "bf16": half, "f16": half},
        l2_bytes=found.l2_bytes,
    )


def committed(name: str) -> Ceilings:
    """The ceilings measured on a named GPU and committed under reports/, else its datasheet's (`source` says which).

    Raises UsageError when neither knows the name.
    """
    path = shipped("reports") / name / "ceilings" / "ceilings.json"
    if re.fullmatch(r"[\w-]+", name) and path.is_file():
        return read_ceilings(path, f"measure it again: opbench ceiling --out reports/{name}/ceilings")
    sheet = datasheet(name)
    if sheet is None:
        raise UsageError(f"no ceilings are known for GPU '{name}'; known: {', '.join(known_gpus())}")
    return sheet


def read_ceilings(path: Path, remedy: str) -> Ceilings:
    """Return the ceilings of a JSON file; raises UsageError, which ends with `remedy`, for one that has none."""
    value = read_json(path, remedy)
    try:
        return Ceilings.from_json(value)
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{path}: holds no ceilings ({error}); {remedy}") from None


def known_gpus() -> list[str]:
    """Names that `committed` accepts."""
    measured = {path.parent.parent.name for path in shipped("reports").glob("*/ceilings/ceilings.json")}
    return sorted(measured | set(PRODUCTS))
