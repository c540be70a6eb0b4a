"""Metric names by chip and the figures derived from them."""

from __future__ import annotations

import pytest

from opbench.insight.nsight import metrics
from opbench.insight.nsight.metrics import KernelCounters, chip_of, derive, metric_names, tensor_metrics

BASE = {
    metrics.TIME: 2e-6,
    metrics.CLOCK: 1.5e9,
    metrics.OCCUPANCY: 0.5,
    "dram__bytes.sum": 1000.0,
    "dram__bytes_write.sum": 300.0,
    "l1tex__m_xbar2l1tex_read_bytes.sum": 640.0,
    "l1tex__m_l1tex2xbar_write_sectors.sum": 10.0,
    "l1tex__t_bytes.sum": 4000.0,
    metrics.INSTRUCTIONS: 100.0,
    metrics.LATENCY: 10.0,
    **dict.fromkeys([*metrics.FP32, *metrics.FP64, *metrics.FP16], 0.0),
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum": 0.0,
}


def kernel(capability: str = "9.0", **values: float | None) -> KernelCounters:
    renamed = {name.replace("DOT", "."): value for name, value in values.items()}
    return KernelCounters("k", "(1, 1, 1)", "(32, 1, 1)", capability, {**BASE, **renamed})


@pytest.mark.parametrize(
    ("capability", "chip"),
    [("9.0", "GH100"), ("9.0a", "GH100"), ("8.0", "GA100"), ("8.9", "AD102"), ("10.3", "GB100"), ("12.0", "GB202"),
     ("13.7", ""), ("", "")],
)  # fmt: skip
def test_the_chip_follows_from_the_capability(capability: str, chip: str) -> None:
    assert chip_of(capability) == chip


def test_names_differ_between_chips() -> None:
    assert tensor_metrics("GH100", "f16") == ("sm__ops_path_tensor_src_fp16.sum",)
    assert len(tensor_metrics("GB202", "f16")) == 2
    assert tensor_metrics("TU102", "bf16") == ()
    assert tensor_metrics("", "f16") == ()
    assert "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum" in metric_names("GB100")
    assert "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum" not in metric_names("GB202")
    assert "dram__bytes.sum" not in metric_names("GA10B")


@pytest.mark.parametrize("chip", ["", *sorted(set(metrics.CHIPS.values()))])
@pytest.mark.parametrize("precision", ["f32", "tf32", "f16", "bf16", "f64"])
def test_every_list_is_short_and_without_repeats(chip: str, precision: str) -> None:
    names = metric_names(chip, precision)
    assert len(set(names)) == len(names) < 52
    assert all("," not in name and " " not in name for name in names)


def test_a_multiply_add_counts_twice_and_half_instructions_work_on_pairs() -> None:
    op = "smsp__sass_thread_inst_executed_op_{}_pred_onDOTsum"
    counts = {"fadd": 1, "fmul": 10, "ffma": 100, "dfma": 1000, "hadd": 10_000, "hfma": 100_000}
    figures = derive([kernel(**{op.format(name): float(count) for name, count in counts.items()})])
    assert figures["fp32_flops"] == 1 + 10 + 200
    assert figures["fp64_flops"] == 2000
    assert figures["fp16_flops"] == 20_000 + 400_000
    assert figures["flops"] == 211 + 2000 + 420_000


def test_tensor_counters_are_flops_already() -> None:
    bf16 = {"sm__ops_path_tensor_src_bf16_dst_fp32DOTsum": 2.0**31}
    figures = derive([kernel(**bf16)], "bf16")
    assert figures["tensor_flops"] == figures["flops"] == 2**31


def test_packed_work_of_gb100_is_counted() -> None:
    packed = {"smsp__sass_thread_inst_executed_op_ffma2_pred_onDOTsum": 5.0,
              "smsp__sass_thread_inst_executed_op_fadd2_pred_onDOTsum": 0.0,
              "smsp__sass_thread_inst_executed_op_fmul2_pred_onDOTsum": 0.0}  # fmt: skip
    assert derive([kernel("10.0", **packed)])["fp32_flops"] == 20
    assert derive([kernel("10.0")])["fp32_flops"] is None


def test_several_kernels_add_up_and_ratios_are_weighted() -> None:
    """A kernel three times as long has three times the say in the occupancy."""
    short, long = kernel(), kernel(gpu__time_durationDOTsum=6e-6)
    long = KernelCounters(*(getattr(long, f) for f in ("name", "grid", "block", "compute_capability")),
                          {**long.values, metrics.OCCUPANCY: 0.9})  # fmt: skip
    figures = derive([short, long])
    assert figures["time_s"] == pytest.approx(8e-6)
    assert figures["dram_bytes"] == 2000
    assert figures["achieved_occupancy"] == pytest.approx((0.5 + 3 * 0.9) / 4)
    assert figures["sm_clock_hz"] == pytest.approx(1.5e9)


def test_missing_is_none_and_spoils_only_what_needs_it() -> None:
    figures = derive([kernel(), kernel(dram__bytesDOTsum=None)])
    assert figures["dram_bytes"] is None and figures["l2_bytes"] == 2 * (640 + 10 * 32)
    assert figures["sectors_per_request_load"] is None and figures["global_load_requests"] is None
    without_tensor = {name: value for name, value in BASE.items() if "tensor" not in name}
    figures = derive([KernelCounters("k", "", "", "9.0", without_tensor)])
    assert figures["tensor_flops"] is None and figures["flops"] is None and figures["fp32_flops"] == 0


def test_an_unknown_chip_has_no_total_of_flops() -> None:
    """Its tensor work was not counted, so that a total would be a lie."""
    assert derive([kernel("13.7")])["flops"] is None


def test_a_chip_without_such_tensor_cores_did_no_such_work() -> None:
    assert derive([kernel("7.5")], "bf16")["tensor_flops"] == 0


def test_nothing_requested_is_no_ratio() -> None:
    counts = {"l1tex__t_requests_pipe_lsu_mem_global_op_ldDOTsum": 0.0,
              "l1tex__t_sectors_pipe_lsu_mem_global_op_ldDOTsum": 0.0}  # fmt: skip
    figures = derive([kernel(**counts)])
    assert figures["global_load_requests"] == 0 and figures["sectors_per_request_load"] is None


def test_coalescing_and_conflicts() -> None:
    load = {"l1tex__t_requests_pipe_lsu_mem_global_op_ldDOTsum": 10.0,
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ldDOTsum": 320.0,
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_ldDOTratio": 4.0,
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldDOTsum": 31.0,
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ldDOTsum": 32.0}  # fmt: skip
    figures = derive([kernel(**load)])
    assert figures["sectors_per_request_load"] == 32
    assert figures["bytes_per_sector_load"] == 4
    assert figures["bank_conflicts_load"] == 31 and figures["shared_load_wavefronts"] == 32
    assert figures["bank_conflict_share_load"] == pytest.approx(31 / 32)


def test_stalls_are_shares_of_the_latency() -> None:
    stall = {"smsp__average_warps_issue_stalled_barrier_per_issue_activeDOTratio": 4.0}
    assert derive([kernel(**stall)])["stall_shares"] == {"barrier": pytest.approx(0.4)}
    assert derive([kernel(smsp__average_warp_latency_per_inst_issuedDOTratio=None)])["stall_shares"] is None


def test_no_kernels_no_figures() -> None:
    figures = derive([])
    assert figures["time_s"] is None and figures["flops"] is None and figures["achieved_occupancy"] is None
