"""pytest-benchmark's JSON, as `pytest --benchmark-json` writes it: one benchmark per measured case, one group per
problem.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from opbench.records import JSON
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.timing import stats
from opbench.timing.measurement import Measurement

VERSION = "5.1.0"
"""The version of pytest-benchmark whose format this is."""


def json_files(run: Run, path: Path, gpu: str) -> dict[Path, bytes]:
    """Return pytest-benchmark's JSON file: the content by path. It has only right cases with a time."""
    environment = run.header.environment
    document = {
        "machine_info": {
            "node": environment.uuid,
            "processor": environment.processor,
            "machine": environment.processor,
            "python_implementation": "CPython",
            "python_version": environment.python,
            "system": environment.system,
            "cpu": {"brand_raw": environment.gpu},
        },
        "commit_info": {"id": "unversioned", "time": None, "dirty": False, "project": "opbench", "branch": "(unknown)"},
        "benchmarks": [
            benchmark_of_case(result) for result in run.results if result.status == "right" and result.samples_s
        ],
        "datetime": run.header.started,
        "version": VERSION,
    }
    return {path: json.dumps(document, indent=1).encode() + b"\n"}


def benchmark_of_case(result: Result) -> dict[str, JSON]:
    """Return a measured case as one benchmark of pytest-benchmark."""
    measurement = result.measurement
    assert measurement, "only measured cases are exported"
    return {
        "group": f"{result.operator}{result.problem}",
        "name": result.case,
        "fullname": f"opbench::{result.case}",
        "params": {**result.config, **result.axes},
        "param": None,
        "extra_info": extra_info(result.case, measurement, result.machine_code_sha256),
        "options": {"timer": measurement.timer, "disable_gc": False, "warmup": True},
        "stats": {**sample_statistics(result.samples_s), "iterations": 1},
    }


def extra_info(case: str, measurement: Measurement, machine_code_sha256: str) -> dict[str, JSON]:
    """Return the values of a case, such as its checksum, for which pytest-benchmark has no column."""
    return {
        "case": case,
        "median_low_s": measurement.low_s,
        "median_high_s": measurement.high_s,
        "stop_reason": measurement.stop_reason,
        "warnings": [str(warning) for warning in measurement.warnings],
        "machine_code_sha256": machine_code_sha256,
    }


def sample_statistics(samples: Sequence[float]) -> dict[str, JSON]:
    """Return the statistics that pytest-benchmark shows, and all samples in seconds."""
    quartile_1_s, median_s, quartile_3_s = (stats.quantile(samples, q) for q in (0.25, 0.5, 0.75))
    mean_s, standard_deviation_s = statistics.fmean(samples), statistics.stdev(samples) if len(samples) > 1 else 0.0
    low_fence_s, high_fence_s = (
        quartile_1_s - 1.5 * (quartile_3_s - quartile_1_s),
        quartile_3_s + 1.5 * (quartile_3_s - quartile_1_s),
    )
    within = [sample for sample in samples if low_fence_s <= sample <= high_fence_s]
    stddev_outliers = sum(abs(sample - mean_s) > standard_deviation_s for sample in samples)
    return {
        "min": min(samples),
        "max": max(samples),
        "mean": mean_s,
        "stddev": standard_deviation_s,
        "rounds": len(samples),
        "median": median_s,
        "iqr": quartile_3_s - quartile_1_s,
        "q1": quartile_1_s,
        "q3": quartile_3_s,
        "iqr_outliers": len(samples) - len(within),
        "stddev_outliers": stddev_outliers,
        "outliers": f"{stddev_outliers};{len(samples) - len(within)}",
        "ld15iqr": min(within),
        "hd15iqr": max(within),
        "ops": 1 / mean_s,
        "total": sum(samples),
        "data": list(samples),
    }
