"""Read the CSV output of the profilers, with its units and missing values."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opbench.errors import EnvironmentFault
from opbench.insight.nsight.metrics import KernelCounters
from opbench.records import JSON

_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "g": 1e9, "t": 1e12}
_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0}


def unit_factor(unit: str) -> float:
    """Return the factor that converts a unit to seconds, bytes, hertz or a share of 1; 1 for counts and unknown units.

    Releases of Nsight Compute spell units differently: nsecond or ns, cycle/nsecond or Ghz, Mbyte or MB.
    """
    unit = unit.strip()
    if unit == "%":
        return 0.01
    numerator, slash, denominator = unit.partition("/")
    if slash and _seconds(denominator):
        return unit_factor(numerator) / _seconds(denominator)
    if seconds := _seconds(unit):
        return seconds
    for suffix in ("byte", "bytes", "B", "hz", "Hz"):
        if unit.endswith(suffix) and unit.removesuffix(suffix).lower() in ("", "k", "m", "g", "t"):
            prefix = unit.removesuffix(suffix).lower()
            return 1e6 if prefix == "m" else _PREFIXES[prefix]
    return 1.0


def _seconds(unit: str) -> float:
    """Return the length of a time unit in seconds; 0 for any other unit."""
    for name, length in _SECONDS.items():
        if unit.endswith(name) and unit.removesuffix(name) in ("", "n", "u", "m"):
            return length * _PREFIXES[unit.removesuffix(name)]
    return 0.0


def cell_number(cell: str) -> float | None:
    """Return the number in a cell, without thousands separators; None for n/a, nan, inf and empty cells."""
    try:
        value = float(cell.strip().replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_ncu(text: str) -> list[KernelCounters]:
    """Read the kernels of `ncu --import … --csv --page raw`: a header row, a row of units, then one row per launch.

    Lines of the tool (==PROF==, ==WARNING==) and of the program before the header are skipped. Raises EnvironmentFault
    if there is no table.
    """
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("==")]
    header_index = next((index for index, line in enumerate(lines) if line.lstrip().startswith('"ID"')), None)
    if header_index is None:
        raise EnvironmentFault(
            "ncu printed no table of metrics; see the report with: ncu --import FILE --page raw",
            kind="no-table",
            subject="ncu",
        )
    rows = list(csv.reader(io.StringIO("".join(lines[header_index:]))))
    header, units = rows[0], [""] * len(rows[0])
    if len(rows) > 1 and len(rows[1]) == len(header) and not rows[1][0].strip():
        units = rows[1]
    launches = [row for row in rows[1:] if row and row[0].strip().isdigit()]
    if any(len(row) != len(header) for row in launches):
        raise EnvironmentFault(
            "ncu's table of metrics is torn; see the report with: ncu --import FILE --page raw",
            kind="torn-table",
            subject="ncu",
        )
    return [_kernel(header, units, row) for row in launches]


def _kernel(header: Sequence[str], units: Sequence[str], row: Sequence[str]) -> KernelCounters:
    """Return the counters of one launch in base units."""
    cells = dict(zip(header, row, strict=True))
    values: dict[str, float | None] = {}
    for name, unit, cell in zip(header, units, row, strict=True):
        if "__" in name:
            value = cell_number(cell)
            values[name] = None if value is None else value * unit_factor(unit)
    return KernelCounters(cells.get("Kernel Name", ""), cells.get("Grid Size", ""), cells.get("Block Size", ""),
                          cells.get("CC", ""), values, cells.get("device__attribute_display_name", ""))  # fmt: skip


@dataclass(frozen=True)
class KernelTime:
    """One line of the kernel summary of `nsys stats`."""

    name: str
    instances: int
    total_s: float
    median_s: float | None

    def to_json(self) -> dict[str, JSON]:
        """Return the values for the results file."""
        return {"kernel": self.name, "instances": self.instances, "time_s": self.total_s, "median_s": self.median_s}


@dataclass(frozen=True)
class Timeline:
    """The kernels and ranges of one Nsight Systems capture."""

    kernels: list[KernelTime]
    ranges: dict[str, float]
    """GPU time in seconds by range; a domain precedes the range's name, with ":" between them."""


def read_nsys(text: str) -> Timeline:
    """Read the tables of `nsys stats -f csv -o -`, in any order and between other output."""
    kernels: list[KernelTime] = []
    ranges: dict[str, float] = {}
    for row in _table_rows(text):
        if "Total Proj Time" in row and row.get("Range"):
            seconds = row["Total Proj Time"]
            if isinstance(seconds, float):
                ranges[str(row["Range"])] = ranges.get(str(row["Range"]), 0.0) + seconds
        elif "Name" in row and "Instances" in row and isinstance(row.get("Total Time"), float):
            instances, median = row["Instances"], row.get("Med")
            kernels.append(
                KernelTime(
                    str(row["Name"]),
                    int(instances) if isinstance(instances, float) else 1,
                    float(row["Total Time"] or 0.0),
                    median if isinstance(median, float) else None,
                )
            )
    return Timeline(kernels, ranges)


def _table_rows(text: str) -> Iterable[dict[str, str | float | None]]:
    """Yield rows of all tables by column name without unit; numbers with a unit are converted to base units."""
    header: list[str] = []
    for cells in csv.reader(io.StringIO(text)):
        if "Range" in cells or ("Name" in cells and "Instances" in cells):
            header = cells
        elif len(cells) != len(header) or not header:
            header = []
        else:
            yield dict(_convert_cell(column, cell) for column, cell in zip(header, cells, strict=True))


def _convert_cell(column: str, cell: str) -> tuple[str, str | float | None]:
    """Return a column's name without its unit, and the cell's value in base units; names stay text."""
    name, _, unit_text = column.partition(" (")
    if column in ("Name", "Range", "Style"):
        return column, cell
    value = cell_number(cell)
    return name, None if value is None else value * (unit_factor(unit_text.rstrip(")")) if unit_text else 1.0)
