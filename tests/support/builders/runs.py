"""Fabricated runs of plausible numbers, for tests of reports only; nothing here was measured."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from opbench.backend.counts import ORIGIN_COUNTED, KernelTraffic, LineTraffic, Traffic
from opbench.gpu.limits.ceilings import Peaks
from opbench.records import from_json, to_json
from opbench.results.files import Run, RunWriter
from opbench.results.header import RunHeader
from opbench.results.result import Result
from opbench.timing import stats
from opbench.timing.clock import DeviceState
from opbench.timing.measurement import Measurement, TimingWarning

CEILINGS: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "source": "measured",
    "dram_bytes_per_s": 4.0e12,
    "l2_bytes_per_s": 9.5e12,
    "fp32_flops_per_s": 50e12,
    "launch_floor_s": 2.1e-6,
    "l2_bytes": 60 << 20,
    "cases": {"dram_bytes_per_s": "copy/vec4[VEC=4](n=268435456)", "fp32_flops_per_s": "fma/registers(n=33554432)"},
}


def measurement(
    median_s: float, half_width: float = 0.01, count: int = 40, seed: int = 0, warnings: tuple[str, ...] = ()
) -> Measurement:
    """A measurement with an interval of `half_width` times the median on either side."""
    draw = random.Random(seed)
    samples = [median_s * (1 + half_width * draw.gauss(0, 1)) for _ in range(count)]
    quartiles = (median_s * (1 - half_width / 2), median_s * (1 + half_width / 2))
    made = Measurement(
        "cold",
        "events",
        tuple(samples),
        median_s,
        median_s * (1 - half_width),
        median_s * (1 + half_width),
        quartiles,
        0.96,
        "target",
        5,
        DeviceState(),
        DeviceState(),
        2.1e-6,
        tuple(TimingWarning(w) for w in warnings),
    )
    return made


TAKEN = {"registers": 32, "shared_bytes": 0, "local_bytes": 0}


def result(
    variant: str,
    time_s: float | None = None,
    *,
    operator: str = "relu",
    config: dict[str, int] | None = None,
    problem: str = "(n=1000000000)",
    status: str = "right",
    reason: str = "",
    flops: int = 0,
    nbytes: int = 8_000_000_000,
    builds_on: str = "",
    backend: str = "cuda",
    precision: str = "f32",
    **more: Any,
) -> Result:
    """One result; `time_s` None means not measured."""
    half_width, warnings = more.pop("half_width", 0.01), more.pop("warnings", ())
    shown = f"[{','.join(f'{k}={v}' for k, v in config.items())}]" if config else ""
    values: dict[str, Any] = {
        "case": f"{operator}/{variant}{shown}{problem}",
        "operator": operator,
        "variant": variant,
        "config": config or {},
        "problem": problem,
        "axes": {},
        "precision": precision,
        "backend": backend,
        "status": status,
        "reason": reason,
        "flops": flops,
        "compulsory_bytes": nbytes,
        "builds_on": builds_on,
        "title": f"the {variant} way",
        "measurement": measurement(time_s, half_width, seed=len(variant), warnings=warnings) if time_s else None,
        "verdict": {
            "right": status == "right",
            "reason": reason,
            "worst_error": 2.1e-7,
            "allowed_error": 4.8e-7,
            "integers": "exact",
            "findings": [],
            "launches": [{"kernel": variant, "grid": [4096, 1, 1], "block": [256, 1, 1], "shared_bytes": 0}],
        },
        "resources": {
            variant: {
                "registers": 32,
                "shared_bytes": 0,
                "local_bytes": 0,
                "dynamic_shared_bytes": 1024,
                "grid": [4096, 1, 1],
                "block": [256, 1, 1],
                "occupancy": 0.75,
                "limiter": "registers",
            }
        },
    }
    return from_json(Result, to_json(values | more))


def run(results: list[Result], *, backend: str = "cuda", ceilings: dict[str, Any] | None = None, **header: Any) -> Run:
    """A finished run around some results, with ceilings unless it ran on a CPU."""
    environment = (
        {"gpu": "NVIDIA H200", "driver": "580.0", "sm_count": 132}
        if backend == "cuda"
        else {"compiler": "g++ 12.2.0", "processor": "x86_64"}
    )
    values = {
        "format": 1,
        "opbench": "0.1.0",
        "suite": "quick",
        "title": "Fabricated for a test",
        "backend": backend,
        "seed": 20260,
        "started": "2026-01-02T03:04:05+00:00",
        "cases": len(results),
        "timing": {"mode": "cold"},
        "environment": environment,
    }
    found = Run(Path("unused"), from_json(RunHeader, values | header), results, finished=True)
    known = ceilings if ceilings is not None else CEILINGS if backend == "cuda" else {}
    found.ceilings = Peaks.from_json(known) if known else None
    return found


def elsewhere(found: Run, **environment: Any) -> None:
    """Change what a run's header says of its environment."""
    here = replace(found.header.environment, **environment)
    found.header = replace(found.header, environment=here)


LAUNCHES = {"right": True, "launches": [{"kernel": "k", "grid": [1, 1, 1], "block": [256, 1, 1], "shared_bytes": 0}]}


def measured(name: str, seconds: list[float], clock_hz: tuple[float, float] = (1.98e9, 1.98e9), **more: Any) -> Result:
    """A right result with these very samples."""
    made = result(name, 1e-3, verdict=LAUNCHES, **more)
    interval = stats.median_interval(seconds)
    return remeasured(
        made,
        samples_s=tuple(seconds),
        median_s=stats.median(seconds),
        low_s=interval.low,
        high_s=interval.high,
        before=DeviceState(sm_clock_hz=clock_hz[0]),
        after=DeviceState(sm_clock_hz=clock_hz[1]),
    )


def remeasured(made: Result, **changes: Any) -> Result:
    """The result with some of its measurement changed."""
    assert made.measurement
    return replace(made, measurement=replace(made.measurement, **changes))


def noisy(seed: int, median_s: float = 1e-3, spread: float = 0.002, count: int = 20) -> list[float]:
    """Samples around a median."""
    draw = random.Random(seed)
    return [median_s * (1 + draw.gauss(0, spread)) for _ in range(count)]


def written(folder: Path, found: Run) -> Path:
    """A run on disk."""
    writer = RunWriter(folder)
    writer.write("run", found.header.to_json())
    for entry in found.results:
        writer.result(entry)
    writer.close()
    return folder


MISMATCH = "my.cu:9: wrong-result: out[7]: got 0, expected 1.37, allowed ±2e-05 (3 of 100 elements)"
COMPILER = 'typo.cu(12): error: identifier "x" is undefined\n  out[i] = x;\n           ^'


def relu_run() -> Run:
    """Bandwidth-bound: vec4 wins at 91 % of 4 TB/s, 1.83 times naive; one tie; one of each way to fall."""
    best = 8e9 / (0.91 * 4e12)
    return run([
        result("naive", best * 1.83),
        result("grid_stride", best * 1.5, builds_on="naive"),
        result("vec4", best, builds_on="grid_stride", config={"BLOCK": 256}),
        result("vec4", best * 1.2, builds_on="grid_stride", config={"BLOCK": 512}, warnings=("noisy",)),
        result("unrolled", best * 1.505, builds_on="grid_stride"),
        result("torch", best * 1.1, library=True, resources={}),
        result("racy", status="wrong", reason=MISMATCH),
        result("typo", status="failed", reason=COMPILER, verdict=None),
        result("wgmma", status="unsupported", reason="needs compute capability 9.0a", verdict=None),
        result("cheat", 1e-6, status="invalid", reason="impossible: 1e-06 s is below the lower bound of 0.002 s"),
    ])  # fmt: skip


def matmul_run(problems: tuple[int, ...] = (1024, 2048, 4096)) -> Run:
    """Compute-bound with a sweep of configs, several precisions and counters."""
    results = []
    variants = [
        ("naive", "", 0.03),
        ("coalesced", "naive", 0.1),
        ("tiled", "coalesced", 0.22),
        ("register_tiled", "tiled", 0.55),
        ("vectorized", "register_tiled", 0.72),
        ("double_buffered", "vectorized", 0.83),
        ("warp_tiled", "vectorized", 0.835),
    ]
    for n in problems:
        work = {"operator": "matmul", "problem": f"(m={n},n={n},k={n})", "flops": 2 * n**3, "nbytes": 12 * n**2}
        for name, base, share in variants:
            for i, tile in enumerate((8, 16, 32)):
                time_s = 2 * n**3 / (share * (1 - 0.12 * ((i + 2) % 3)) * 50e12) * (1 + 200 / n)
                results.append(result(name, time_s, builds_on=base, config={"TILE": tile}, half_width=0.004, **work))
        results.append(result("cublas", 2 * n**3 / 46e12, library=True, resources={}, **work))
        results.append(result("tf32_mma", 2 * n**3 / 210e12, precision="tf32", builds_on="warp_tiled", **work))
        results.append(
            result("odd", status="unsupported", reason=f"needs n % 3 == 0 (here n={n})", verdict=None, **work)
        )
    found = run(results)
    for r in found.results:
        if r.config.get("TILE") == 16 and r.measurement:
            found.counters[r.case] = {
                "case": r.case,
                "time_s": r.measurement.median_s * 1.02,
                "dram_bytes": r.compulsory_bytes * 3.1,
                "l2_bytes": 9e9,
                "flops": r.flops,
                "achieved_occupancy": 0.61,
                "sectors_per_request_load": 4.0,
                "bank_conflicts_load": 12345.0,
                "bank_conflicts_store": None,
                "stall_shares": {"short_scoreboard": 0.41, "barrier": 0.1},
            }
    return found


def cpu_run() -> Run:
    """The same operators without a clock."""
    names = ("naive", "grid_stride", "vec4", "unrolled")
    results = [result(name, backend="cpu", resources={}, nbytes=128_000_000) for name in names]
    results.append(
        result(
            "torch",
            backend="cpu",
            library=True,
            status="unsupported",
            reason="calls a GPU library; needs the cuda backend",
            nbytes=128_000_000,
            verdict=None,
            resources={},
        )
    )
    results += [
        result(
            name,
            backend="cpu",
            operator="matmul",
            problem="(m=64,n=64,k=64)",
            flops=2 * 64**3,
            nbytes=3 * 4 * 64**2,
            resources={},
        )
        for name in ("naive", "tiled")
    ]
    results.append(
        result(
            "racy",
            backend="cpu",
            operator="matmul",
            problem="(m=64,n=64,k=64)",
            flops=2 * 64**3,
            nbytes=3 * 4 * 64**2,
            status="wrong",
            reason="racy.cu:14: shared memory race: written by thread 3, read by thread 35",
            resources={},
        )
    )
    return run(results, backend="cpu")


COMPILER_NAME = "compiled for sm_90 by NVRTC 13.5"


def access(kind: str, sectors: float = 4, ideal: float = 4, space: str = "global", **more: Any) -> LineTraffic:
    """100 requests of full warps, 4 bytes a lane; sectors, or wavefronts of shared memory, are per request."""
    counts = {"requests": 100, "lanes": 3200, "width": 4, "line": 7, "file": "elsewhere/k.cu", "kernel": "k"} | more
    names = ("wavefronts", "ideal_wavefronts") if space == "shared" else ("sectors", "ideal_sectors")
    found = dict(zip(names, (round(100 * sectors), round(100 * ideal)), strict=True))
    return LineTraffic(space=space, kind=kind, **(counts | found))


def traffic(*lines: LineTraffic, barriers: int = 0, counted_blocks: int = 4, complete: bool = True) -> Traffic:
    """Traffic of one kernel of four blocks."""
    kernel = KernelTraffic("k", 1, 4, counted_blocks, 128, barriers)
    return Traffic(lines, (kernel,), ORIGIN_COUNTED, complete)


def compiled(registers: int = 12, spill_bytes: int = 0, local_bytes: int = 0) -> dict[str, Any]:
    """Resources as a cpu run has them."""
    found = {"registers": registers, "spill_bytes": spill_bytes, "local_bytes": local_bytes, "source": COMPILER_NAME}
    return {"k": TAKEN | found | {"occupancy": 0.5, "limiter": "registers and warps"}}


def counted_run() -> Run:
    """A cpu run with a variant for each fault, one without any and one of which nothing is known."""
    work: dict[str, Any] = {"backend": "cpu", "operator": "transpose", "problem": "(n=320)", "nbytes": 25600}
    fine = (access("load"), access("store"))
    conflicts = access("load", 32, 1, "shared", line=9)
    collisions = access("atomic", 1, 1, collisions=3100, line=9)
    known = {
        "naive": (compiled(), traffic(access("load"), access("store", 32))),
        "shared": (compiled(), traffic(*fine, conflicts, barriers=4)),
        "padded": (compiled(), traffic(*fine, access("load", 1, 1, "shared", line=9), barriers=4)),
        "summing": (compiled(), traffic(access("load"), collisions)),
        "spilling": (compiled(255, 64, 64), traffic(*fine)),
    }
    results = [result(name, resources=resources, **work) for name, (resources, _) in known.items()]
    results.append(result("uncounted", resources={}, resources_missing="no NVRTC here", **work))
    found = run(results, backend="cpu")
    found.traffic = {r.case: known[r.variant][1] for r in results if r.variant in known}
    return found


def pair() -> tuple[Run, Run]:
    """Two runs with one of each kind."""
    base = [
        measured("same", noisy(0)),
        measured("slower", noisy(1)),
        measured("much_slower", noisy(2)),
        measured("faster", noisy(3)),
        measured("breaks", noisy(4)),
        measured("unsure", noisy(5, spread=0.05)),
        result("fixed", status="wrong", reason="out[3]: got 1, want 2"),
        result("still", status="wrong", reason="out[3]: got 1, want 2"),
        result("other", status="unsupported", reason="needs 10.0"),
        measured("gone", noisy(6)),
        result("untimed"),
    ]
    new = [
        measured("same", noisy(10)),
        measured("slower", noisy(11, 1.1e-3)),
        measured("much_slower", noisy(12, 2e-3)),
        measured("faster", noisy(13, 0.8e-3)),
        result("breaks", status="wrong", reason="out[7]: got 0.0, want 1.37"),
        measured("unsure", noisy(15, spread=0.05)),
        measured("fixed", noisy(16)),
        result("still", status="failed", reason="does not compile"),
        result("other", status="unsupported", reason="needs 10.0"),
        result("new", status="wrong", reason="out[1]: <b>"),
        result("untimed"),
    ]
    return run(base), run(new)
