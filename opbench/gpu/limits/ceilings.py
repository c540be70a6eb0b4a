"""Peak rates of a GPU, measured by probes or from a datasheet, and the lower bounds that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from opbench.errors import UsageError, unknown_name
from opbench.gpu.limits.products import PRODUCTS, product
from opbench.paths import shipped_folder
from opbench.records import from_json, read_json, to_json, with_new_keys

BoundBy = Literal["memory", "compute"]


@dataclass(frozen=True)
class CheckedLimit:
    """One peak that was measured again at the start of a run."""

    limit: str
    case: str
    seen: float
    """The rate measured now, in the unit of the limit."""
    off: float
    """The measured rate divided by the stored one, minus 1."""


@dataclass(frozen=True)
class CeilingCheck:
    """The outcome of checking stored peaks at the start of a run."""

    checked: tuple[CheckedLimit, ...] = ()
    text: str = ""
    """A message if a stored peak does not hold or could not be checked; else empty."""


LEVELS = {
    "dram": "DRAM", "dram_read": "DRAM read", "dram_write": "DRAM write", "l2": "L2", "l1": "shared memory",
}  # fmt: skip
"""The names of the memory levels in reports, by the prefix of the fields of `Peaks`."""


@dataclass(frozen=True)
class Peaks:
    """Peak rates of one GPU; None for an unknown peak."""

    gpu: str = ""
    source: Literal["measured", "datasheet"] = "measured"
    origin: str = ""
    """The name of the datasheet, or of the run that measured the peaks."""
    dram_bytes_per_s: float | None = None
    """Rate of a copy; bytes read and bytes written both count."""
    dram_read_bytes_per_s: float | None = None
    dram_write_bytes_per_s: float | None = None
    l2_bytes_per_s: float | None = None
    l1_bytes_per_s: float | None = None
    """L1 caches and shared memory of all multiprocessors together."""
    fp32_flops_per_s: float | None = None
    matrix_flops_per_s: dict[str, float] = field(default_factory=dict)
    """Dense rate of the tensor cores by the type of the operands: tf32, bf16, f16, s8 (8-bit integers)."""
    fp32_sustained_flops_per_s: float | None = None
    """The rate after seconds of load at settled clocks; a short burst reaches `fp32_flops_per_s`."""
    matrix_sustained_flops_per_s: dict[str, float] = field(default_factory=dict)
    """`matrix_flops_per_s` after seconds of load at settled clocks."""
    launch_floor_s: float | None = None
    """The time of an empty kernel."""
    sm_clock_hz: float | None = None
    l2_bytes: int | None = None
    cases: dict[str, str] = field(default_factory=dict)
    """For each measured limit, the case that reached it."""
    canary: CeilingCheck | None = None
    """The check of these peaks at the start of a run; None if they were not checked."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Peaks:
        """Read peaks from JSON data, in which an unknown limit may be null; raise ValueError."""
        known_values = {key: field_value for key, field_value in value.items() if field_value is not None}
        return from_json(
            cls,
            known_values
            | ({"canary": with_new_keys(known_values["canary"], text="said")} if "canary" in known_values else {}),
        )

    def to_json(self) -> dict[str, Any]:
        """Return all known limits as JSON data."""
        return {key: field_value for key, field_value in to_json(self).items() if field_value not in (None, "", {})}

    def at_level(self, level: str) -> Peaks:
        """Return the peaks with another bandwidth in place of DRAM's copy bandwidth.

        `level` is "dram", "dram_read", "dram_write", "l2" or "l1"; if a one-way bandwidth is not known, as in a
        datasheet, the copy's bandwidth is used.
        """
        rate = getattr(self, f"{level}_bytes_per_s")
        if level == "dram" or (rate is None and level.startswith("dram")):
            return self
        return replace(self, dram_bytes_per_s=rate)

    def flops_per_s(self, unit: str) -> float | None:
        """Return the peak FLOP/s of an arithmetic unit, such as "f32", "bf16" or "tf32/3".

        "tf32/3" stands for three TF32 products in place of one product.
        """
        name, _, products = unit.partition("/")
        rates = {"f32": self.fp32_flops_per_s, "f16": self.matrix_flops_per_s.get("bf16"), **self.matrix_flops_per_s}
        rate = rates.get(name)  # f16 and bf16 have the same rate.
        return rate / int(products or 1) if rate else None


SLOWEST_SHARE = {"f64": 64, "i32": 4}
"""How many times slower than float32 a unit of unknown rate can be. If memory traffic takes longer even at that rate,
memory sets the lower bound."""


def bound_and_limit(
    ceilings: Peaks, flops: int, compulsory_bytes: int, precision: str = "f32"
) -> tuple[float, BoundBy] | None:
    """Return the lower bound of a time with cold caches in seconds, and "memory" or "compute", which sets it.

    Returns None if a required peak is unknown.
    """
    bandwidth, flop_rate = ceilings.dram_bytes_per_s, ceilings.flops_per_s(precision)
    if not bandwidth or not (flops or compulsory_bytes):
        return None
    memory_s = compulsory_bytes / bandwidth
    if flops and not flop_rate:
        slowest_rate = (
            (ceilings.fp32_flops_per_s or 0.0) / SLOWEST_SHARE[precision] if precision in SLOWEST_SHARE else 0.0
        )
        return (memory_s, "memory") if slowest_rate and flops / slowest_rate <= memory_s else None
    compute_s = flops / flop_rate if flops and flop_rate else 0.0
    return (compute_s, "compute") if compute_s > memory_s else (memory_s, "memory")


def datasheet(gpu: str) -> Peaks | None:
    """Return the datasheet's peaks of a GPU by a name that `product` accepts; None for an unknown GPU."""
    gpu_product = product(gpu)
    if gpu_product is None:
        return None
    half_rate = gpu_product.half_flops_per_s
    return Peaks(
        gpu=gpu_product.name,
        source="datasheet",
        origin=gpu_product.origin,
        fp32_flops_per_s=gpu_product.fp32_flops_per_s,
        dram_bytes_per_s=gpu_product.dram_bytes_per_s,
        l1_bytes_per_s=gpu_product.l1_bytes_per_s,
        matrix_flops_per_s={"tf32": gpu_product.tf32_flops_per_s, "bf16": half_rate, "f16": half_rate}
        if half_rate
        else {},
        l2_bytes=gpu_product.l2_bytes,
    )


def committed_ceilings(name: str) -> Peaks:
    """Return the peaks of a GPU model that were measured in reports/, else those of its datasheet.

    Raise UsageError if neither has the name.
    """
    path = shipped_folder("reports") / name / "ceilings" / "ceilings.json"
    if re.fullmatch(r"[\w-]+", name) and path.is_file():
        return read_ceilings(path, f"measure it again: opbench ceiling --out reports/{name}/ceilings")
    sheet = datasheet(name)
    if sheet is None:
        raise UsageError(unknown_name("GPU", name, known_gpus(), "only the peaks of these GPUs are known"))
    return sheet


def read_ceilings(path: Path, remedy: str) -> Peaks:
    """Read peaks from a JSON file; raise UsageError, which ends with `remedy`, if the file has none."""
    value = read_json(path, remedy)
    try:
        return Peaks.from_json(value)
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{path}: contains no peaks of a GPU ({error}); {remedy}", cause=error) from None


def known_gpus() -> list[str]:
    """Return the names that `committed_ceilings` accepts."""
    measured = {path.parent.parent.name for path in shipped_folder("reports").glob("*/ceilings/ceilings.json")}
    return sorted(measured | set(PRODUCTS))
