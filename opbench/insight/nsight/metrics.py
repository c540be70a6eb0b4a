"""Name the hardware counters that answer each question on each chip, and derive numbers from them.

Names were checked against the metric catalogues of CUPTI 13 for TU102 … GB202. A name that a chip lacks is not
requested there: for one unknown metric, some releases of Nsight Compute reject the whole command, others skip it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.records import JSON

CHIPS = {
    "7.5": "TU102", "8.0": "GA100", "8.6": "GA102", "8.7": "GA10B", "8.9": "AD102", "9.0": "GH100",
    "10.0": "GB100", "10.3": "GB100", "12.0": "GB202",
}  # fmt: skip
"""Compute capability → the chip whose metric catalogue applies."""

INTEGRATED = ("GA10B",)
"""Chips with shared system memory, which lack `dram__bytes`."""

TIME = "gpu__time_duration.sum"
CLOCK = "sm__cycles_elapsed.avg.per_second"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"
INSTRUCTIONS = "smsp__inst_executed.sum"

TRAFFIC = {
    "dram_bytes": {"dram__bytes.sum": 1},
    "dram_write_bytes": {"dram__bytes_write.sum": 1},
    "l2_bytes": {"l1tex__m_xbar2l1tex_read_bytes.sum": 1, "l1tex__m_l1tex2xbar_write_sectors.sum": 32},
    "l1_bytes": {"l1tex__t_bytes.sum": 1},
}
"""Counters of each level and the bytes per count. L2 traffic is counted at the L1 caches, where it is what the kernel
requests: `lts__t_bytes` includes code and, on GH100, every sector that the cache's two halves exchange (a copy of 8.4
MB counts 13.4 MB there). From GA100 on, a coalescer before L2 merges simultaneous reads of several multiprocessors, so
`lts__t_sectors_srcunit_tex` may be half of what they receive."""

_OPS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FP32 = {_OPS.format("fadd"): 1, _OPS.format("fmul"): 1, _OPS.format("ffma"): 2}
FP64 = {_OPS.format("dadd"): 1, _OPS.format("dmul"): 1, _OPS.format("dfma"): 2}
FP16 = {_OPS.format("hadd"): 2, _OPS.format("hmul"): 2, _OPS.format("hfma"): 4}
"""Half-precision instructions, which process two packed values."""
PACKED_FP32 = {_OPS.format("fadd2"): 2, _OPS.format("fmul2"): 2, _OPS.format("ffma2"): 4}
"""GB100 only (compute capability 10.x); without them, FP32 FLOPs are up to half too low."""

COUNTS = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "bank_conflicts_load": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "bank_conflicts_store": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "local_load_instructions": "smsp__inst_executed_op_local_ld.sum",
    "local_store_instructions": "smsp__inst_executed_op_local_st.sum",
    "instructions": INSTRUCTIONS,
}
RATIOS = {
    "bytes_per_sector_load": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
    "bytes_per_sector_store": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",
    "issue_active": "smsp__issue_active.avg.per_cycle_active",
    "warps_eligible": "smsp__warps_eligible.avg.per_cycle_active",
    "xu_pipe_share": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
}
STALLS = ("long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "math_pipe_throttle", "barrier", "wait",
          "not_selected", "selected", "branch_resolving", "no_instruction")  # fmt: skip
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

_TENSOR = "sm__ops_path_tensor_src_{}.sum"
_TENSOR_SOURCES: dict[str, dict[str, tuple[str, ...]]] = {
    "TU102": {"f16": ("fp16_bf16_tf32_dst_fp32", "fp16_dst_fp16")},
    "GH100": {"f16": ("fp16",), "bf16": ("bf16_dst_fp32",), "tf32": ("tf32_dst_fp32",), "f64": ("fp64",)},
}
_TENSOR_USUAL: dict[str, tuple[str, ...]] = {
    "f16": ("fp16_dst_fp16", "fp16_dst_fp32"),
    "bf16": ("bf16_dst_fp32",),
    "tf32": ("tf32_dst_fp32",),
    "f64": ("fp64",),
}


def tensor_metrics(chip: str, precision: str) -> tuple[str, ...]:
    """Return the counters of tensor-core work for a precision; they count FLOPs, an FMA as two.

    For f32 the counter of tf32 is used, because libraries use tf32 silently.
    """
    if chip not in CHIPS.values():
        return ()
    counted_precision = "tf32" if precision == "f32" else precision
    sources = _TENSOR_SOURCES.get(chip, _TENSOR_USUAL).get(counted_precision, ())
    return tuple(_TENSOR.format(source) for source in sources)


def has_tensor_path(chip: str, precision: str) -> bool:
    """Return whether a variant of this precision could use tensor cores on a chip; True for an unknown chip."""
    return chip not in CHIPS.values() or bool(tensor_metrics(chip, precision))


def chip_of(compute_capability: str) -> str:
    """Return the chip of a compute capability, such as "GH100" for "9.0"; "" if unknown."""
    return CHIPS.get(compute_capability.rstrip("af"), "")


def counters_by_question(chip: str, precision: str = "f32") -> dict[str, tuple[str, ...]]:
    """Return the names of the hardware counters that answer each question, such as "time", on this chip."""
    packed = tuple(PACKED_FP32) if chip == "GB100" else ()
    names = (name for level in TRAFFIC.values() for name in level)
    traffic = tuple(name for name in names if not name.startswith("dram") or chip not in INTEGRATED)
    return {
        "how long, at which clock": (TIME, CLOCK),
        "how many bytes at each level": traffic,
        "how much arithmetic on the CUDA cores": (*FP32, *FP64, *FP16, *packed),
        "how much arithmetic on the tensor cores": tensor_metrics(chip, precision),
        "how full": (OCCUPANCY, RATIOS["issue_active"], RATIOS["warps_eligible"]),
        "coalesced": (*(COUNTS[f"global_{op}_{unit}"] for op in ("load", "store") for unit in ("requests", "sectors")),
                      RATIOS["bytes_per_sector_load"], RATIOS["bytes_per_sector_store"]),
        "bank conflicts": tuple(COUNTS[f] for f in ("shared_load_wavefronts", "shared_store_wavefronts",
                                                    "bank_conflicts_load", "bank_conflicts_store")),
        "spills": (COUNTS["local_load_instructions"], COUNTS["local_store_instructions"], INSTRUCTIONS),
        "what warps wait for": (LATENCY, *(_STALL.format(reason) for reason in STALLS), RATIOS["xu_pipe_share"]),
    }  # fmt: skip


def metric_names(chip: str, precision: str = "f32") -> tuple[str, ...]:
    """Return every metric that `opbench profile` requests, each once: nine passes per kernel on an H200."""
    return tuple(dict.fromkeys(name for names in counters_by_question(chip, precision).values() for name in names))


@dataclass(frozen=True)
class KernelCounters:
    """Metrics that the profiler reported for one kernel launch, in base units; a missing metric is absent or None."""

    name: str
    grid: str
    block: str
    compute_capability: str
    values: Mapping[str, float | None]
    device: str = ""
    """The GPU's name, such as "NVIDIA H100 80GB HBM3"; "" if the report lacks it."""

    def get(self, metric: str) -> float | None:
        """Return the value of a metric; None if the profiler did not report it."""
        return self.values.get(metric)


def derive(kernels: Sequence[KernelCounters], precision: str = "f32") -> dict[str, JSON]:
    """Return the numbers of a whole range: sums over its kernels, and means with matching weights."""
    chip = chip_of(kernels[0].compute_capability) if kernels else ""
    figures: dict[str, float | None] = {"time_s": total(kernels, TIME)}
    figures |= {field: _weighted_sum(kernels, level) for field, level in TRAFFIC.items()}
    figures |= _flops_by_unit(kernels, chip, precision)
    figures |= {field: total(kernels, name) for field, name in COUNTS.items()}
    for op in ("load", "store"):
        requests, sectors = figures[f"global_{op}_requests"], figures[f"global_{op}_sectors"]
        conflicts, wavefronts = figures[f"bank_conflicts_{op}"], figures[f"shared_{op}_wavefronts"]
        field = f"bytes_per_sector_{op}"
        figures[field] = weighted_mean(kernels, RATIOS[field], COUNTS[f"global_{op}_sectors"])
        figures[f"sectors_per_request_{op}"] = _ratio_known(sectors, requests)
        figures[f"bank_conflict_share_{op}"] = _ratio_known(conflicts, wavefronts)
    figures["achieved_occupancy"] = weighted_mean(kernels, OCCUPANCY, TIME)
    figures["sm_clock_hz"] = weighted_mean(kernels, CLOCK, TIME)
    for field in ("issue_active", "warps_eligible", "xu_pipe_share"):
        figures[field] = weighted_mean(kernels, RATIOS[field], TIME)
    return {**figures, "stall_shares": _stall_shares(kernels)}


def _flops_by_unit(kernels: Sequence[KernelCounters], chip: str, precision: str) -> dict[str, float | None]:
    """Return FLOPs by unit and their sum; the sum is None if a part that could be non-zero is missing."""
    fp32 = _weighted_sum(kernels, FP32 | (PACKED_FP32 if chip == "GB100" else {}))
    fp64, fp16 = _weighted_sum(kernels, FP64), _weighted_sum(kernels, FP16)
    names = tensor_metrics(chip, precision)
    tensor = _sum_known([total(kernels, name) for name in names])
    if not names and has_tensor_path(chip, precision):
        tensor = None
    parts = {"fp32_flops": fp32, "fp64_flops": fp64, "fp16_flops": fp16, "tensor_flops": tensor}
    return {"flops": _sum_known(list(parts.values())), **parts}


def _weighted_sum(kernels: Sequence[KernelCounters], weights: Mapping[str, int]) -> float | None:
    """Return the sum of metrics over all kernels, each with its weight; None if one is missing."""
    counts = {name: total(kernels, name) for name in weights}
    return _sum_known([None if count is None else weights[name] * count for name, count in counts.items()])


def _stall_shares(kernels: Sequence[KernelCounters]) -> dict[str, float] | None:
    """Return each stall reason's share of a warp's latency; None if the profiler reported no latency."""
    latency = weighted_mean(kernels, LATENCY, INSTRUCTIONS)
    reasons = {reason: weighted_mean(kernels, _STALL.format(reason), INSTRUCTIONS) for reason in STALLS}
    if not latency:
        return None
    return {reason: value / latency for reason, value in reasons.items() if value is not None}


def total(kernels: Sequence[KernelCounters], metric: str) -> float | None:
    """Return the sum over all kernels; None if any kernel lacks the metric."""
    return _sum_known([kernel.get(metric) for kernel in kernels]) if kernels else None


def weighted_mean(kernels: Sequence[KernelCounters], metric: str, weight: str) -> float | None:
    """Return the mean of a metric weighted by another metric; None if one is missing.

    Kernels of weight zero are ignored, as their ratio is 0/0.
    """
    pairs = [(kernel.get(metric), kernel.get(weight)) for kernel in kernels]
    if any(mass is None or (value is None and mass > 0) for value, mass in pairs):
        return None
    mass = sum(m for _, m in pairs if m)
    return sum(v * m for v, m in pairs if v is not None and m) / mass if mass else None


def _sum_known(values: Sequence[float | None]) -> float | None:
    """Return the sum of values; None if one of them is None."""
    known = [value for value in values if value is not None]
    return float(sum(known)) if len(known) == len(values) else None


def _ratio_known(numerator: float | None, denominator: float | None) -> float | None:
    """Return numerator / denominator; None if either is None or the denominator is 0."""
    return numerator / denominator if numerator is not None and denominator else None
