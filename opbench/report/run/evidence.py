"""Tables of the data that a report relies on: measured peaks, hardware counters, and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.insight.stalls import issues_or_could_issue
from opbench.records import JSON
from opbench.report.run.sections import Section
from opbench.results.files import Run

Formatter = Callable[[float | None], str]


def _formatter_in(unit: str) -> Formatter:
    return lambda value: units.si(value, unit)


def _count_text(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _number_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


COUNTERS: dict[str, tuple[str, Formatter]] = {
    "time_s": ("profiled time", units.time),
    "dram_bytes": ("DRAM", _formatter_in("B")),
    "l2_bytes": ("L2", _formatter_in("B")),
    "l1_bytes": ("L1", _formatter_in("B")),
    "flops": ("FLOPs", _formatter_in("FLOP")),
    "achieved_occupancy": ("achieved occupancy", units.percent),
    "sectors_per_request_load": ("sectors per load", _number_text),
    "sectors_per_request_store": ("sectors per store", _number_text),
    "bytes_per_sector_load": ("bytes used of a 32 B sector", _number_text),
    "bank_conflicts_load": ("bank conflicts, loads", _count_text),
    "bank_conflicts_store": ("bank conflicts, stores", _count_text),
}


def counters_table(section: Section, counters: Mapping[str, Mapping[str, Any]]) -> dict[str, JSON] | None:
    """Return a table of the hardware counters of a section's cases; None without counters."""
    counted = [(row, counters[row.case]) for row in section.rows if row.case in counters]
    keys = [key for key in COUNTERS if any(values.get(key) for _, values in counted)]
    if not keys:
        return None
    column = keys.index("dram_bytes") + 1 if "dram_bytes" in keys else len(keys)
    headings = [COUNTERS[key][0] for key in keys]
    body = []
    for row, values in counted:
        cells = [
            COUNTERS[key][1](float(values[key])) if isinstance(values.get(key), (int, float)) else "–" for key in keys
        ]
        dram = values.get("dram_bytes")
        excess = units.ratio(dram / row.compulsory_bytes) if dram and row.compulsory_bytes else "–"
        body.append([row.name, *cells[:column], excess, *cells[column:], _main_stall(values)])
    return {
        "head": ["variant", *headings[:column], "DRAM ÷ compulsory", *headings[column:], "main stall"],
        "body": body,
    }


def _main_stall(values: Mapping[str, Any]) -> str:
    """Return the most frequent stall reason with its share of the samples."""
    shares = {k: v for k, v in (values.get("stall_shares") or {}).items() if not issues_or_could_issue(k)}
    if not shares:
        return "–"
    reason = max(shares, key=lambda name: shares[name])
    return f"{reason.replace('_', ' ')} {units.percent(shares[reason])}"


CEILING_ROWS: tuple[tuple[str, str, Formatter], ...] = (
    ("dram_bytes_per_s", "DRAM, reads and writes", units.byte_rate),
    ("dram_read_bytes_per_s", "DRAM, reads", units.byte_rate),
    ("dram_write_bytes_per_s", "DRAM, writes", units.byte_rate),
    ("l2_bytes_per_s", "L2 cache, reads", units.byte_rate),
    ("l1_bytes_per_s", "L1 and shared memory, reads", units.byte_rate),
    ("fp32_flops_per_s", "fp32 units, multiply-add", units.flop_rate),
    ("fp32_sustained_flops_per_s", "fp32 units, multiply-add, sustained", units.flop_rate),
    ("launch_floor_s", "an empty kernel", units.time),
    ("sm_clock_hz", "multiprocessor clock", _formatter_in("Hz")),
    ("l2_bytes", "size of the L2 cache", _formatter_in("B")),
)


class PeaksTable(TypedDict):
    """The table of a GPU's peaks for the page and the terminal."""

    gpu: str
    body: list[list[str]]
    """Rows of: label, measured rate, datasheet rate, their ratio, and the case that reached the measured rate."""
    origin: str
    measured: bool
    sustained: bool


def ceilings_table(peaks_used: Peaks | None, sheet: Peaks | None) -> PeaksTable:
    """Return the table of peaks: measured, from the datasheet, and the case that reached each of them."""
    measured = peaks_used if peaks_used is not None and peaks_used.source == "measured" else None
    sheet = peaks_used if peaks_used is not None and measured is None else sheet
    body = []
    for key, label, show in CEILING_ROWS:
        measured_rate, datasheet_rate = getattr(measured, key, None), getattr(sheet, key, None)
        if measured_rate is None and datasheet_rate is None:
            continue
        share = (
            units.percent(measured_rate / datasheet_rate)
            if measured_rate and datasheet_rate and key.endswith("per_s")
            else "–"
        )
        probe_case = measured.cases.get(key, "") if measured else ""
        body.append(
            [
                label,
                show(measured_rate) if measured_rate else "–",
                show(datasheet_rate) if datasheet_rate else "–",
                share,
                probe_case,
            ]
        )
    body += _matrix_rows(measured, sheet)
    return {
        "gpu": (peaks_used or sheet or Peaks()).gpu,
        "body": body,
        "origin": sheet.origin if sheet else "",
        "measured": measured is not None,
        "sustained": bool(measured and measured.fp32_sustained_flops_per_s),
    }


def _matrix_rows(measured: Peaks | None, sheet: Peaks | None) -> list[list[str]]:
    """Return the rates of the tensor cores by precision class, measured and from the datasheet."""
    body = []
    measured_rates, datasheet_rates = (c.matrix_flops_per_s if c else {} for c in (measured, sheet))
    for name in dict.fromkeys([*measured_rates, *datasheet_rates]):
        measured_rate, datasheet_rate = measured_rates.get(name), datasheet_rates.get(name)
        share_of_datasheet = units.percent(measured_rate / datasheet_rate) if measured_rate and datasheet_rate else "–"
        case = measured.cases.get(name, "") if measured else ""
        body.append(
            [
                f"tensor cores, {name}",
                units.flop_rate(measured_rate),
                units.flop_rate(datasheet_rate),
                share_of_datasheet,
                case,
            ]
        )
        if measured and (sustained := measured.matrix_sustained_flops_per_s.get(name)):
            share_of_datasheet = units.percent(sustained / datasheet_rate) if datasheet_rate else "–"
            case = measured.cases.get(f"{name} sustained", "")
            label = f"tensor cores, {name}, sustained"
            body.append([label, units.flop_rate(sustained), units.flop_rate(datasheet_rate), share_of_datasheet, case])
    return body


def devices_table(run: Run) -> dict[str, JSON] | None:
    """Return a table of the devices of a run: model, peaks, and number of cases; None for a single device."""
    if not run.devices:
        return None
    headings = ["device", "model", "UUID", "driver", "DRAM", "fp32", "launch", "problems", "cases"]
    body = []
    for device in run.devices.values():
        peaks, environment = device.ceilings or Peaks(), device.environment
        device_results = [result for result in run.results if run.device_name(result) == device.name]
        problems = {(result.operator, result.problem) for result in device_results}
        fact_cells = [fact or "–" for fact in (device.name, environment.gpu, device.uuid, environment.driver)]
        rates = [units.byte_rate(peaks.dram_bytes_per_s), units.flop_rate(peaks.fp32_flops_per_s)]
        body.append(
            [*fact_cells, *rates, units.time(peaks.launch_floor_s), str(len(problems)), str(len(device_results))]
        )
    return {"head": headings, "body": body}


UNIT_OF_SUFFIX = {"_bytes": "B", "_hz": "Hz", "_w": "W", "_s": "s"}
"""Units of fields by the end of their names."""


def flat_rows(value: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Convert nested values to table rows: a name in words, with dots such as "gpu.name", and the value as text.

    A field with an SI unit in its name is shown with that unit: max_sm_clock_hz as "max sm clock", "1.98 GHz".
    """
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        suffix = next((suffix for suffix in UNIT_OF_SUFFIX if key.endswith(suffix)), "")
        name = f"{prefix}{key.removesuffix(suffix)}".replace("_", " ")
        if isinstance(item, Mapping):
            rows += flat_rows(item, f"{prefix}{key}.")
        elif isinstance(item, (int, float)) and suffix:
            rows.append((name, units.si(item, UNIT_OF_SUFFIX[suffix])))
        elif isinstance(item, bool):
            rows.append((name, "yes" if item else "no"))
        elif isinstance(item, (list, tuple)):
            rows.append((name, ", ".join(map(str, item))))
        else:
            rows.append((name, "–" if item is None or item == "" else str(item)))
    return rows
