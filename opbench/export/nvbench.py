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


def nvbench_files(run: Run, path: Path, gpu: str) -> dict[Path, bytes]:
    """Return NVBench's JSON file and the binary sample files that it names: the content of each by path."""
    sample_files: dict[Path, bytes] = {}
    operators: dict[str, list[Result]] = {}
    for result in run.results:
        operators.setdefault(result.operator, []).append(result)
    document = {
        "meta": {
            "argv": shlex.split(run.header.command),
            "version": {"json": VERSION, "opbench": run.header.opbench or __version__},
        },
        "devices": [_device_fields(run.header.environment)],
        "benchmarks": [
            _benchmark(index, operator, results, path, sample_files)
            for index, (operator, results) in enumerate(operators.items())
        ],
    }
    return {path: json.dumps(document, indent=2).encode() + b"\n", **sample_files}


def _device_fields(environment: Environment) -> dict[str, JSON]:
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
    """Return an operator's results as one benchmark of NVBench, and add its sample files to `binaries`."""
    axis_values_by_case = [_axis_values(result) for result in results]
    names = list(dict.fromkeys(name for axis_values in axis_values_by_case for name in axis_values))
    return {
        "name": operator,
        "index": index,
        "min_samples": 0,
        "devices": [0],
        "axes": [
            _axis(name, [axis_values[name] for axis_values in axis_values_by_case if name in axis_values])
            for name in names
        ],
        "states": [
            _state(result, axis_values, path, binaries)
            for result, axis_values in zip(results, axis_values_by_case, strict=True)
        ],
    }


def _axis_values(result: Result) -> dict[str, int | str]:
    """Return the value of a case on each axis of its benchmark."""
    return {"Variant": result.variant, "Config": print_config(result.config), **result.axes}


def _type_name(value: int | str) -> str:
    """Return NVBench's name for the type of an axis value."""
    return "int64" if isinstance(value, int) else "string"


def _axis(name: str, values: Sequence[int | str]) -> dict[str, JSON]:
    """Return an axis of a benchmark, such as `n`, with its distinct values."""
    distinct = [{"input_string": str(v), "description": "", "value": v} for v in dict.fromkeys(values)]
    return {"name": name, "type": _type_name(values[0]), "flags": "", "values": distinct}


def _state(
    result: Result, axis_values: dict[str, int | str], path: Path, binaries: dict[Path, bytes]
) -> dict[str, JSON]:
    """Return a case as a state of its benchmark; a case without a time is marked as skipped."""
    values = [
        {"name": name, "type": _type_name(value), "value": str(value) if isinstance(value, int) else value}
        for name, value in axis_values.items()
    ]
    has_samples = result.status == "right" and result.samples_s
    untimed_reason = "no samples: an older run of a network" if result.measurement else "no time: it ran without a GPU"
    skip_reason = result.reason if result.status != "right" else untimed_reason
    return {
        "name": "Device=0 " + " ".join(f"{name}={value}" for name, value in axis_values.items()),
        "description": result.case,
        "device": 0,
        "type_config_index": 0,
        "axis_values": values,
        "summaries": _summaries(result, path, binaries) if has_samples else None,
        "is_skipped": not has_samples,
        **({} if has_samples else {"skip_reason": f"{result.status}: {skip_reason}"}),
    }


def _summaries(result: Result, path: Path, binaries: dict[Path, bytes]) -> list[dict[str, JSON]]:
    """Return NVBench's statistics of a case's samples, and add its sample files to `binaries`."""
    samples, clocks = result.samples_s, result.clocks_hz
    quartile_1_s, median_s, quartile_3_s = (stats.quantile(samples, q) for q in (0.25, 0.5, 0.75))
    mean_s = statistics.fmean(samples)
    standard_deviation_s = statistics.stdev(samples) if len(samples) > 1 else float("inf")
    bytes_per_s = result.compulsory_bytes / median_s
    tag_prefix = "nv/cold/time/gpu"
    summaries = [
        _summary("nv/cold/sample_size", "Samples", "sample_size", len(samples)),
        _summary(f"{tag_prefix}/mean", "GPU Time", "duration", mean_s),
        _summary(f"{tag_prefix}/stdev/relative", "Noise", "percentage", standard_deviation_s / mean_s),
        _summary("nv/cold/bw/global/bytes_per_second", "GlobalMem BW", "byte_rate", bytes_per_s),
        _summary(f"{tag_prefix}/min", "Min GPU Time", "duration", min(samples), HIDDEN_BY_DEFAULT),
        _summary(f"{tag_prefix}/max", "Max GPU Time", "duration", max(samples), HIDDEN_BY_DEFAULT),
        _summary(f"{tag_prefix}/stdev/absolute", "Stdev GPU Time", "duration", standard_deviation_s, HIDDEN_BY_DEFAULT),
        _summary(f"{tag_prefix}/q1", "Q1 GPU Time", "duration", quartile_1_s, HIDDEN_BY_DEFAULT),
        _summary(f"{tag_prefix}/median", "Median GPU Time", "duration", median_s, HIDDEN_BY_DEFAULT),
        _summary(f"{tag_prefix}/q3", "Q3 GPU Time", "duration", quartile_3_s, HIDDEN_BY_DEFAULT),
        _summary(
            f"{tag_prefix}/iqr/absolute", "IQR GPU Time", "duration", quartile_3_s - quartile_1_s, HIDDEN_BY_DEFAULT
        ),
        _summary(
            f"{tag_prefix}/iqr/relative",
            "Relative IQR",
            "percentage",
            (quartile_3_s - quartile_1_s) / median_s,
            HIDDEN_BY_DEFAULT,
        ),
        _sample_file_summary("nv/json/bin:nv/cold/sample_times", f"{path.name}-bin", samples, path, binaries),
    ]
    if clocks:
        summaries.append(_summary("nv/cold/sm_clock_rate/mean", "Clock Rate", "frequency", statistics.fmean(clocks)))
        tag = "nv/json/freqs-bin:nv/cold/sample_freqs"
        summaries.append(_sample_file_summary(tag, f"{path.name}-freqs-bin", clocks, path, binaries))
    return summaries


def _summary(tag: str, name: str, hint: str, value: float, hide: str = "") -> dict[str, JSON]:
    """Return one statistic in NVBench's form; a `hide` text makes NVBench's tables leave it out."""
    type_name = "int64" if isinstance(value, int) else "float64"
    data = [{"name": "value", "type": type_name, "value": str(value)}]
    hide_key = {"hide": hide} if hide else {}
    return {"tag": tag, "name": name, "hint": hint, "description": "from opbench's samples", **hide_key, "data": data}


def _sample_file_summary(
    tag: str, folder: str, values: Sequence[float], path: Path, binaries: dict[Path, bytes]
) -> dict[str, JSON]:
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
