"""NVBench's JSON 1.0.0 with its binary sample files, as `--jsonbin` writes them (NVIDIA/nvbench, json_printer.cu).

A benchmark is an operator; its axes are the variant, the config and the operator's own; a state is a case. Numbers in
summaries are strings, as NVBench writes them. Samples and clocks are separate files of little-endian float32,
`FILE.json-bin` and `FILE.json-freqs-bin`.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opbench._version import __version__
from opbench.backend.environment import Environment
from opbench.kernels.variant import print_config
from opbench.records import JSON
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.timing import stats

VERSION = {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}
HIDDEN_BY_DEFAULT = "Hidden by default."
"""The hint with which NVBench hides a value in its tables."""


def files(run: Run, path: Path, gpu: str) -> dict[Path, bytes]:
    """Return the JSON file, then the binary files that it names relative to itself."""
    binaries: dict[Path, bytes] = {}
    operators: dict[str, list[Result]] = {}
    for result in run.results:
        operators.setdefault(result.operator, []).append(result)
    document = {
        "meta": {
            "argv": shlex.split(run.header.command),
            "version": {"json": VERSION, "opbench": run.header.opbench or __version__},
        },
        "devices": [_device(run.header.environment)],
        "benchmarks": [
            _benchmark(index, operator, results, path, binaries)
            for index, (operator, results) in enumerate(operators.items())
        ],
    }
    return {path: json.dumps(document, indent=2).encode() + b"\n", **binaries}


def _device(environment: Environment) -> dict[str, JSON]:
    """Return the known values of the run's environment under NVBench's names."""
    capability = environment.capability and 100 * environment.capability[0] + 10 * environment.capability[1]
    known = {
        "sm_version": capability,
        "ptx_version": capability,
        "sm_default_clock_rate": environment.max_sm_clock_hz,
        "number_of_sms": environment.sm_count or None,
        "global_memory_size": environment.memory_bytes,
        "global_memory_bus_peak_clock_rate": environment.max_memory_clock_hz,
        "l2_cache_size": environment.l2_bytes,
        "ecc_state": environment.ecc,
    }
    reported = {key: value for key, value in known.items() if value is not None}
    return {"id": 0, "name": environment.gpu or "unknown", **reported}


def _benchmark(
    index: int, operator: str, results: Sequence[Result], path: Path, binaries: dict[Path, bytes]
) -> dict[str, JSON]:
    points = [_axis_position(result) for result in results]
    names = list(dict.fromkeys(name for point in points for name in point))
    return {
        "name": operator,
        "index": index,
        "min_samples": 0,
        "devices": [0],
        "axes": [_axis(name, [point[name] for point in points if name in point]) for name in names],
        "states": [_state(result, point, path, binaries) for result, point in zip(results, points, strict=True)],
    }


def _axis_position(result: Result) -> dict[str, int | str]:
    """Return the position of a case on the axes."""
    return {"Variant": result.variant, "Config": print_config(result.config), **result.axes}


def _type(value: int | str) -> str:
    return "int64" if isinstance(value, int) else "string"


def _axis(name: str, values: Sequence[int | str]) -> dict[str, JSON]:
    distinct = [{"input_string": str(v), "description": "", "value": v} for v in dict.fromkeys(values)]
    return {"name": name, "type": _type(values[0]), "flags": "", "values": distinct}


def _state(result: Result, point: dict[str, int | str], path: Path, binaries: dict[Path, bytes]) -> dict[str, JSON]:
    values = [
        {"name": name, "type": _type(value), "value": str(value) if isinstance(value, int) else value}
        for name, value in point.items()
    ]
    measured = result.status == "right" and result.samples_s
    untimed = "no samples: an older run of a network" if result.measurement else "no time: it ran without a GPU"
    why = result.reason if result.status != "right" else untimed
    return {
        "name": "Device=0 " + " ".join(f"{name}={value}" for name, value in point.items()),
        "description": result.case,
        "device": 0,
        "type_config_index": 0,
        "axis_values": values,
        "summaries": _summaries(result, path, binaries) if measured else None,
        "is_skipped": not measured,
        **({} if measured else {"skip_reason": f"{result.status}: {why}"}),
    }


def _summaries(result: Result, path: Path, binaries: dict[Path, bytes]) -> list[dict[str, JSON]]:
    samples, clocks = result.samples_s, result.clocks_hz
    first, middle, third = (stats.quantile(samples, q) for q in (0.25, 0.5, 0.75))
    mean = statistics.fmean(samples)
    spread = statistics.stdev(samples) if len(samples) > 1 else float("inf")
    bytes_per_s = result.compulsory_bytes / middle
    time = "nv/cold/time/gpu"
    summaries = [
        _summary("nv/cold/sample_size", "Samples", "sample_size", len(samples)),
        _summary(f"{time}/mean", "GPU Time", "duration", mean),
        _summary(f"{time}/stdev/relative", "Noise", "percentage", spread / mean),
        _summary("nv/cold/bw/global/bytes_per_second", "GlobalMem BW", "byte_rate", bytes_per_s),
        _summary(f"{time}/min", "Min GPU Time", "duration", min(samples), HIDDEN_BY_DEFAULT),
        _summary(f"{time}/max", "Max GPU Time", "duration", max(samples), HIDDEN_BY_DEFAULT),
        _summary(f"{time}/stdev/absolute", "Stdev GPU Time", "duration", spread, HIDDEN_BY_DEFAULT),
        _summary(f"{time}/q1", "Q1 GPU Time", "duration", first, HIDDEN_BY_DEFAULT),
        _summary(f"{time}/median", "Median GPU Time", "duration", middle, HIDDEN_BY_DEFAULT),
        _summary(f"{time}/q3", "Q3 GPU Time", "duration", third, HIDDEN_BY_DEFAULT),
        _summary(f"{time}/iqr/absolute", "IQR GPU Time", "duration", third - first, HIDDEN_BY_DEFAULT),
        _summary(f"{time}/iqr/relative", "Relative IQR", "percentage", (third - first) / middle, HIDDEN_BY_DEFAULT),
        _binary("nv/json/bin:nv/cold/sample_times", f"{path.name}-bin", samples, path, binaries),
    ]
    if clocks:
        summaries.append(_summary("nv/cold/sm_clock_rate/mean", "Clock Rate", "frequency", statistics.fmean(clocks)))
        tag = "nv/json/freqs-bin:nv/cold/sample_freqs"
        summaries.append(_binary(tag, f"{path.name}-freqs-bin", clocks, path, binaries))
    return summaries


def _summary(tag: str, name: str, hint: str, value: float, hide: str = "") -> dict[str, JSON]:
    kind = "int64" if isinstance(value, int) else "float64"
    data = [{"name": "value", "type": kind, "value": str(value)}]
    shown = {"hide": hide} if hide else {}
    return {"tag": tag, "name": name, "hint": hint, "description": "from opbench's samples", **shown, "data": data}


def _binary(tag: str, folder: str, values: Sequence[float], path: Path, binaries: dict[Path, bytes]) -> dict[str, JSON]:
    """Return a summary that names a file of float32 values, and add the file to `binaries`."""
    number = sum(name.parent.name == folder for name in binaries)
    name = f"{folder}/{number}.bin"
    binaries[path.parent / name] = np.asarray(values, dtype="<f4").tobytes()
    data = [
        {"name": "filename", "type": "string", "value": name},
        {"name": "size", "type": "int64", "value": str(len(values))},
    ]
    return {
        "tag": tag,
        "name": "Samples file",
        "hint": "file/sample_times",
        "hide": "Not needed in table.",
        "data": data,
    }
