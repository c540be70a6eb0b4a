"""The frame: speed-ups, shares, ranks, and missing values that stay missing."""

from __future__ import annotations

import math

import pytest

from opbench.results.files import Run
from opbench.results.rows import COLUMNS, Row, first_variant, frame, rows, rows_of_frame
from support.builders.runs import (
    access,
    counted_run,
    cpu_run,
    matmul_run,
    measured,
    noisy,
    relu_run,
    remeasured,
    result,
    run,
    traffic,
)


def by_name(found: Run) -> dict[str, Row]:
    return {row.name: row for row in rows(found)}


def test_golden_facts_of_a_bandwidth_bound_run() -> None:
    found = by_name(relu_run())
    best = found["vec4[BLOCK=256]"]
    assert best.rank == "1" and best.bound == "memory"
    assert best.roof_share == pytest.approx(0.91)
    assert best.speedup_over_first == pytest.approx(1.83)
    assert best.speedup_over_first_low == pytest.approx(1.83 * 0.99 / 1.01)
    assert best.speedup_over_first_high == pytest.approx(1.83 * 1.01 / 0.99)
    assert best.speedup_over_rung == pytest.approx(1.5)
    assert best.speedup_over_library == pytest.approx(1.1)
    assert best.spread == pytest.approx(0.01)
    assert best.samples == 40
    assert best.bytes_per_s == pytest.approx(0.91 * 4e12)
    assert found["vec4[BLOCK=512]"].speedup_over_rung == pytest.approx(1.25)
    assert found["vec4[BLOCK=512]"].warnings == ("noisy",)


def test_overlapping_intervals_share_a_rank() -> None:
    found = by_name(relu_run())
    assert [found[name].rank for name in ("torch", "grid_stride", "unrolled", "naive")] == ["2", "4=", "4=", "6"]


def test_a_chain_of_overlaps_is_cut_at_its_fastest() -> None:
    found = by_name(run([result("a", 1.0), result("b", 1.015), result("c", 1.03)]))
    assert [found[name].rank for name in "abc"] == ["1=", "1=", "3"]


def test_only_right_cases_have_a_rank_or_a_speedup() -> None:
    found = by_name(relu_run())
    for name in ("racy", "typo", "wgmma", "cheat"):
        assert found[name].rank is None
        assert found[name].speedup_over_library is None
    assert found["cheat"].time_s == 1e-6, "the impossible time is kept, as evidence"


def test_precision_classes_are_ranked_apart() -> None:
    found = by_name(matmul_run((1024,)))
    assert found["tf32_mma"].rank == "1" and found["cublas"].rank == "1"
    assert found["tf32_mma"].speedup_over_library is None
    assert found["tf32_mma"].roof_share is None, "the fp32 roof is none of tf32"
    assert found["cublas"].roof_share == pytest.approx(0.92)
    assert found["cublas"].bound == "compute"


def test_a_first_variant_that_rounds_more_is_no_start() -> None:
    """Of a ladder whose plain variants were not run, what is left may begin with a less precise one."""
    found = by_name(
        run(
            [
                result("tf32", 1.0, precision="tf32"),
                result("corrected", 2.0, builds_on="tf32"),
                result("bf16", 0.5, precision="bf16", builds_on="tf32"),
            ]
        )
    )
    assert found["corrected"].speedup_over_first is None and found["corrected"].speedup_over_rung == 0.5
    assert found["bf16"].speedup_over_first == 2.0


def test_resources_are_the_worst_of_all_kernels() -> None:
    kernels = {
        "a": {
            "registers": 40,
            "shared_bytes": 100,
            "dynamic_shared_bytes": 28,
            "local_bytes": 0,
            "occupancy": 0.5,
            "limiter": "registers",
        },
        "b": {"registers": 90, "shared_bytes": 0, "local_bytes": 16, "occupancy": 0.25, "limiter": "shared memory"},
    }
    row = rows(run([result("two_pass", 1.0, resources=kernels)]))[0]
    assert (row.registers, row.shared_bytes, row.local_bytes, row.occupancy, row.limiter) == (
        90,
        128,
        16,
        0.25,
        "shared memory",
    )


def test_missing_is_nan_or_none_and_never_zero() -> None:
    table = frame(run([result("naive", status="failed", reason="no", resources={}, verdict=None)], ceilings={}))
    assert list(table.columns) == COLUMNS
    for column in (
        "time_s",
        "roof_share",
        "registers",
        "occupancy",
        "speedup_over_rung",
        "bytes_per_s",
        "predicted_best_s",
        "worst_error",
    ):
        assert math.isnan(table[column][0]), column
    assert rows_of_frame(table)[0].time_s is None
    assert rows_of_frame(table)[0].rank is None


def test_without_ceilings_there_is_no_share() -> None:
    row = rows(run([result("naive", 1.0)], ceilings={}))[0]
    assert row.roof_share is None and row.bound is None and row.bytes_per_s == 8e9


def test_a_cpu_run_predicts_and_has_no_time() -> None:
    for row in rows(cpu_run(), gpu="rtx4090"):
        assert row.time_s is None and row.roof_share is None and row.bytes_per_s is None and row.rank is None
        assert row.predicted_best_s is not None
    assert rows(cpu_run(), gpu="rtx4090")[0].predicted_best_s == pytest.approx(128e6 / 1008e9)


def test_a_prediction_is_no_shorter_than_an_empty_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from opbench.gpu.limits.ceilings import Ceilings
    from opbench.results import rows as module

    monkeypatch.setattr(module, "committed", lambda gpu: Ceilings(dram_bytes_per_s=4e12, launch_floor_s=2e-6))
    row = rows(run([result("naive", backend="cpu", nbytes=8)], backend="cpu"))[0]
    assert (row.predicted_best_s, row.bound) == (2e-6, "launch")


def test_the_rows_survive_the_frame() -> None:
    found = rows(matmul_run((1024,)))
    assert rows_of_frame(frame(matmul_run((1024,)))) == found


def test_an_empty_run_has_every_column() -> None:
    table = frame(run([]))
    assert len(table) == 0 and list(table.columns) == COLUMNS


def test_first_variant_stops_at_what_the_run_holds_and_at_cycles() -> None:
    assert first_variant("c", {"c": "b", "b": "a", "a": ""}) == "a"
    assert first_variant("c", {"c": "b", "b": "absent"}) == "b"
    assert first_variant("a", {"a": "b", "b": "a"}) == "b"


def test_counted_traffic_becomes_columns() -> None:
    found = by_name(counted_run())
    naive, shared, summing = (found[name] for name in ("naive", "shared", "summing"))
    assert (naive.sectors_per_request_load, naive.ideal_sectors_per_request_load) == (4, 4)
    assert (naive.sectors_per_request_store, naive.ideal_sectors_per_request_store) == (32, 4)
    assert (naive.moved_bytes, naive.asked_bytes) == (36 * 100 * 32, 2 * 3200 * 4)
    assert shared.bank_conflict_share == pytest.approx(31 / 32) and shared.barriers_per_block == 1
    assert summing.atomic_collision_share == pytest.approx(3100 / 3200)
    assert (naive.traffic_source, naive.resources_source) == ("counted", "compiled for sm_90 by NVRTC 13.5")
    assert (found["spilling"].spill_bytes, naive.spill_bytes) == (64, 0)


def test_what_a_kernel_has_none_of_has_no_ratio() -> None:
    found = by_name(counted_run())
    assert found["naive"].bank_conflict_share is None and found["naive"].atomic_collision_share is None
    assert found["padded"].bank_conflict_share == 0, "counted, and there are none"
    assert found["summing"].sectors_per_request_store is None
    table = frame(counted_run()).set_index("variant")
    for column in ("sectors_per_request_load", "moved_bytes", "asked_bytes", "barriers_per_block", "registers"):
        assert math.isnan(table[column]["uncounted"]), column
    assert table[["traffic_source", "resources_source"]].isna().loc["uncounted"].all()


def test_counts_of_some_blocks_stand_for_all_and_are_called_predicted() -> None:
    run_of_one = run([result("naive", backend="cpu")], backend="cpu")
    case = run_of_one.results[0].case
    run_of_one.traffic[case] = traffic(access("load"), counted_blocks=2, barriers=6)
    row = rows(run_of_one)[0]
    assert (row.traffic_source, row.asked_bytes, row.sectors_per_request_load) == ("predicted", 2 * 3200 * 4, 4)
    assert row.barriers_per_block == 3
    run_of_one.traffic[case] = traffic(access("load"), complete=False)
    assert rows(run_of_one)[0].traffic_source is None, "an abandoned launch tells nothing of the whole"
    run_of_one.traffic[case] = traffic()
    assert (rows(run_of_one)[0].sectors_per_request_load, rows(run_of_one)[0].moved_bytes) == (None, 0)


def test_the_rows_of_a_cpu_run_survive_the_frame() -> None:
    assert rows_of_frame(frame(counted_run())) == rows(counted_run())


def test_a_row_says_how_its_time_was_taken_and_the_kernels_own() -> None:
    made = measured("a", noisy(1))
    row = rows(run([remeasured(made, kernel_s=5e-4, throttled=((1, 2.0, 3.0),))]))[0]
    assert (row.mode, row.kernel_s, row.throttled) == ("cold", 5e-4, 1)
    older = rows(run([made]))[0]
    assert (older.kernel_s, older.throttled) == (None, 0)
