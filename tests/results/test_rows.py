"""The frame: speed-ups, shares, ranks, and missing values that stay missing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas
import pytest

from opbench.results.files import Run
from opbench.results.rows import COLUMNS, FORMER_COLUMNS, CompiledResources, Row, first_variant, frame, rows
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
    assert best.peak_share == pytest.approx(0.91)
    assert best.speedups.over_first == pytest.approx(1.83)
    assert best.speedups.over_first_low == pytest.approx(1.83 * 0.99 / 1.01)
    assert best.speedups.over_first_high == pytest.approx(1.83 * 1.01 / 0.99)
    assert best.speedups.over_previous == pytest.approx(1.5)
    assert best.speedups.over_library == pytest.approx(1.1)
    assert best.times and best.times.spread == pytest.approx(0.01)
    assert best.times.samples == 40
    assert best.times.bytes_per_s == pytest.approx(0.91 * 4e12)
    assert found["vec4[BLOCK=512]"].speedups.over_previous == pytest.approx(1.25)
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
        assert found[name].speedups.over_library is None
    assert found["cheat"].time_s == 1e-6, "the impossible time is kept, as evidence"


def test_precision_classes_are_ranked_apart() -> None:
    found = by_name(matmul_run((1024,)))
    assert found["tf32_mma"].rank == "1" and found["cublas"].rank == "1"
    assert found["tf32_mma"].speedups.over_library is None
    assert found["tf32_mma"].peak_share is None, "the fp32 peak is not a peak of tf32"
    assert found["cublas"].peak_share == pytest.approx(0.92)
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
    assert (found["corrected"].speedups.over_first, found["corrected"].speedups.over_previous) == (None, 0.5)
    assert found["bf16"].speedups.over_first == 2.0


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
    assert row.resources == CompiledResources(90, 128, 16, 0.25, "shared memory")


def test_missing_is_nan_or_none_and_never_zero() -> None:
    table = frame(run([result("naive", status="failed", reason="no", resources={}, verdict=None)], ceilings={}))
    assert list(table.columns) == [*COLUMNS, *FORMER_COLUMNS]
    for column in (
        "time_s",
        "peak_share",
        "registers",
        "occupancy",
        "speedup_over_previous",
        "bytes_per_s",
        "predicted_best_s",
        "worst_error",
    ):
        assert math.isnan(table[column][0]), column
    assert table["rank"][0] is None and table["mode"][0] is None


def test_without_ceilings_there_is_no_share() -> None:
    row = rows(run([result("naive", 1.0)], ceilings={}))[0]
    assert row.peak_share is None and row.bound is None and row.times and row.times.bytes_per_s == 8e9


def test_a_cpu_run_predicts_and_has_no_time() -> None:
    for row in rows(cpu_run(), gpu="rtx4090"):
        assert row.times is None and row.peak_share is None and row.rank is None
        assert row.predicted
    first = rows(cpu_run(), gpu="rtx4090")[0].predicted
    assert first and first.best_s == pytest.approx(128e6 / 1008e9)


def test_a_prediction_is_no_shorter_than_an_empty_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from opbench.gpu.limits.ceilings import Peaks
    from opbench.results import rows as module

    monkeypatch.setattr(module, "committed_ceilings", lambda gpu: Peaks(dram_bytes_per_s=4e12, launch_floor_s=2e-6))
    row = rows(run([result("naive", backend="cpu", nbytes=8)], backend="cpu"))[0]
    assert row.predicted and (row.predicted.best_s, row.bound) == (2e-6, "launch")


@pytest.mark.parametrize("made", [relu_run, cpu_run, counted_run])
def test_the_frame_has_what_the_rows_have(made: Callable[[], Run]) -> None:
    table = frame(made())
    assert list(table.columns) == [*COLUMNS, *FORMER_COLUMNS]
    for (_, line), row in zip(table.iterrows(), rows(made()), strict=True):
        assert (line["case"], line["status"], line["warnings"]) == (row.case, row.status, row.warnings)
        for part, columns in (
            (row, ("rank", "flops", "memory_level")),
            (row.times, ("time_s", "time_low_s", "time_high_s", "samples", "mode", "kernel_s", "bytes_per_s")),
            (row.peak, ("bound", "peak_share")),
            (row.resources, ("registers", "shared_bytes", "local_bytes", "occupancy", "spill_bytes")),
            (row.traffic, ("moved_bytes", "asked_bytes", "bank_conflict_share")),
            (row.predicted_traffic, ("l2_bytes", "dram_bytes")),
        ):
            for column in columns:
                value = getattr(part, column, None)
                assert line[column] == value or (value is None and pandas.isna(line[column])), column


def test_an_empty_run_has_every_column() -> None:
    table = frame(run([]))
    assert len(table) == 0 and list(table.columns) == [*COLUMNS, *FORMER_COLUMNS]


def test_first_variant_stops_at_what_the_run_holds_and_at_cycles() -> None:
    assert first_variant("c", {"c": "b", "b": "a", "a": ""}) == "a"
    assert first_variant("c", {"c": "b", "b": "absent"}) == "b"
    assert first_variant("a", {"a": "b", "b": "a"}) == "b"


def test_counted_traffic_becomes_columns() -> None:
    found = by_name(counted_run())
    naive, shared, summing = (found[name] for name in ("naive", "shared", "summing"))
    assert naive.traffic and shared.traffic and summing.traffic and naive.resources and found["spilling"].resources
    assert (naive.traffic.sectors_per_load, naive.traffic.ideal_sectors_per_load) == (4, 4)
    assert (naive.traffic.sectors_per_store, naive.traffic.ideal_sectors_per_store) == (32, 4)
    assert (naive.traffic.moved_bytes, naive.traffic.asked_bytes) == (36 * 100 * 32, 2 * 3200 * 4)
    assert shared.traffic.bank_conflict_share == pytest.approx(31 / 32) and shared.traffic.barriers_per_block == 1
    assert summing.traffic.atomic_collision_share == pytest.approx(3100 / 3200)
    assert (naive.traffic.source, naive.resources.source) == ("counted", "compiled for sm_90 by NVRTC 13.5")
    assert (found["spilling"].resources.spill_bytes, naive.resources.spill_bytes) == (64, 0)


def test_what_a_kernel_has_none_of_has_no_ratio() -> None:
    found = by_name(counted_run())
    naive, padded, summing = (found[name].traffic for name in ("naive", "padded", "summing"))
    assert naive and naive.bank_conflict_share is None and naive.atomic_collision_share is None
    assert padded and padded.bank_conflict_share == 0, "counted, and there are none"
    assert summing and summing.sectors_per_store is None
    table = frame(counted_run()).set_index("variant")
    for column in ("sectors_per_request_load", "moved_bytes", "asked_bytes", "barriers_per_block", "registers"):
        assert math.isnan(table[column]["uncounted"]), column
    assert table[["traffic_source", "resources_source"]].isna().loc["uncounted"].all()


def test_counts_of_some_blocks_stand_for_all_and_are_called_predicted() -> None:
    run_of_one = run([result("naive", backend="cpu")], backend="cpu")
    case = run_of_one.results[0].case
    run_of_one.traffic[case] = traffic(access("load"), counted_blocks=2, barriers=6)
    counts = rows(run_of_one)[0].traffic
    assert counts and (counts.source, counts.asked_bytes, counts.sectors_per_load) == ("predicted", 2 * 3200 * 4, 4)
    assert counts.barriers_per_block == 3
    run_of_one.traffic[case] = traffic(access("load"), complete=False)
    assert rows(run_of_one)[0].traffic is None, "an abandoned launch tells nothing of the whole"
    run_of_one.traffic[case] = traffic()
    counts = rows(run_of_one)[0].traffic
    assert counts and (counts.sectors_per_load, counts.moved_bytes) == (None, 0)


def test_a_row_says_how_its_time_was_taken_and_the_kernels_own() -> None:
    made = measured("a", noisy(1))
    row = rows(run([remeasured(made, kernel_s=5e-4, throttled=((1, 2.0, 3.0),))]))[0]
    assert row.times and (row.times.mode, row.times.kernel_s, row.times.throttled) == ("cold", 5e-4, 1)
    older = rows(run([made]))[0].times
    assert older and (older.kernel_s, older.throttled) == (None, 0)
