"""Peaks: rooflines, probes, datasheets and what is committed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from opbench.gpu.limits import ceilings
from opbench.gpu.limits.ceilings import Peaks, bound_and_limit, committed_ceilings, datasheet, known_gpus
from opbench.gpu.limits.lower_bound import lower_bound_s
from opbench.gpu.limits.products import PRODUCTS, product
from opbench.kernels.folders import case_named
from opbench.report.run.evidence import ceilings_table
from opbench.results.files import read_run
from opbench.results.result import Result
from opbench.results.rows import rows
from opbench.running.probes import MATRIX_UNITS, PROBES, peaks_from_probes, with_sustained
from opbench.running.suite import read_suite
from support.builders.runs import result
from support.builders.runs import run as fabricated_run
from support.checks.errors import refuses, refuses_name
from support.common import CATALOG, ROOT

SHEETS = {name: sheet for name in PRODUCTS if (sheet := datasheet(name))}
PEAKS = Peaks(dram_bytes_per_s=4e12, fp32_flops_per_s=50e12)


def test_json_round_trip_leaves_out_what_is_unknown() -> None:
    assert Peaks.from_json(PEAKS.to_json()) == PEAKS
    assert "l2_bytes_per_s" not in PEAKS.to_json()
    assert Peaks.from_json({"gpu": "x", "later_key": 1, "dram_bytes_per_s": None}) == Peaks(gpu="x")


def test_below_the_ridge_memory_binds_and_above_it_arithmetic() -> None:
    assert bound_and_limit(PEAKS, 0, 4_000_000) == (1e-6, "memory")
    assert bound_and_limit(PEAKS, 10**9, 8 * 10**9) == (2e-3, "memory")
    assert bound_and_limit(PEAKS, 5 * 10**13, 10**9) == (1.0, "compute")


def test_an_unknown_roof_gives_nothing_rather_than_a_guess() -> None:
    assert bound_and_limit(Peaks(fp32_flops_per_s=1e12), 10, 10) is None
    assert bound_and_limit(Peaks(dram_bytes_per_s=1e12), 10, 10) is None
    assert bound_and_limit(Peaks(dram_bytes_per_s=1e12), 0, 10) is not None
    assert bound_and_limit(PEAKS, 0, 0) is None
    assert bound_and_limit(PEAKS, 10, 10, "bf16") is None, "an fp32 peak says nothing about bf16 FLOPs"
    assert bound_and_limit(SHEETS["h200"], 10**15, 10, "bf16") is not None


def test_from_probes_takes_the_fastest_right_probe() -> None:
    gib = 1 << 30
    found = peaks_from_probes([
        result("scalar", 1e-3, operator="copy", nbytes=2 * gib),
        result("vec4", 0.5e-3, operator="copy", nbytes=2 * gib),
        result("vec4", 1e-9, operator="copy", nbytes=gib - 8, problem="(n=1)"),
        result("chains_8", 2.0, operator="fma", flops=10**14, nbytes=8),
        result("tf32", 0.1, operator="fma", flops=10**14, nbytes=8, precision="tf32"),
        result("vec4", 1e-3, operator="reread", nbytes=9 * 10**9),
        result("cheat", 1e-9, operator="copy", nbytes=2 * gib, status="invalid", reason="impossible"),
    ])  # fmt: skip
    assert found.dram_bytes_per_s == 2 * gib / 0.5e-3
    assert found.cases["dram_bytes_per_s"] == "copy/vec4(n=1000000000)"
    assert found.fp32_flops_per_s == 5e13
    assert found.l2_bytes_per_s == pytest.approx(9e12)
    assert found.launch_floor_s == 2.1e-6
    assert found.source == "measured"


def test_no_probe_gives_no_ceiling() -> None:
    assert peaks_from_probes(
        [result("vec4", operator="copy"), result("naive", status="failed", reason="no")]
    ).to_json() == {"source": "measured"}


def test_every_gpu_that_is_compiled_for_has_ceilings() -> None:
    assert set(PRODUCTS) <= set(known_gpus())


def test_every_datasheet_names_its_source_and_is_plausible() -> None:
    for sheet in SHEETS.values():
        assert sheet.source == "datasheet" and sheet.origin
        assert 2e11 < (sheet.dram_bytes_per_s or 0) < 1e13
        assert 1e13 < (sheet.fp32_flops_per_s or 0) < 1e14


@pytest.mark.parametrize(("name", "key"), [
    ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA L4", "l4"),
    ("NVIDIA GeForce RTX 3080", "rtx3080"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("rtx4090", "rtx4090"),
    ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"), ("gtx1080ti", "gtx1080ti"),
])  # fmt: skip
def test_a_device_finds_its_datasheet(name: str, key: str) -> None:
    assert product(name) is PRODUCTS[key] and datasheet(name) == SHEETS[key]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40",
        "NVIDIA H100 PCIe",
        "NVIDIA GeForce RTX 3080 Ti",
        "NVIDIA GeForce GTX 1080",
        "NVIDIA A100-SXM4-40GB",
        "",
        "llvmpipe",
    ],
)
def test_another_board_is_not_mistaken_for_it(name: str) -> None:
    assert datasheet(name) is None


def test_committed_ceilings_are_read_from_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "shipped_folder", lambda folder: tmp_path / folder)
    assert committed_ceilings("h200").source == "datasheet", "nothing measured yet: the datasheet, which says so"
    (tmp_path / "reports" / "h200" / "ceilings").mkdir(parents=True)
    path = tmp_path / "reports" / "h200" / "ceilings" / "ceilings.json"
    path.write_text(json.dumps(PEAKS.to_json()))
    assert committed_ceilings("h200") == PEAKS
    path.write_text("{")
    with refuses("not-json"):
        committed_ceilings("h200")


@pytest.mark.parametrize("name", ["gtx9", "../quick", ""])
def test_an_unknown_gpu_names_the_known_ones(name: str) -> None:
    with refuses_name("GPU", name, known=tuple(known_gpus())):
        committed_ceilings(name)


@pytest.mark.parametrize(
    ("problem", "level", "rate"),
    [
        ("fill(n=268435456)", "dram_write", 4.6e12), ("sum(n=67108864)", "dram_read", 4.4e12),
        ("add(n=67108864)", "dram", 4e12), ("copy(n=1000)", "dram", 4e12), ("matmul(m=512,n=512,k=512)", "dram", 4e12),
        ("reread(n=1000,rounds=3)", "l2", 9e12), ("shared_reread(n=1000,rounds=3)", "l1", 30e12),
    ],
)  # fmt: skip
def test_bytes_that_go_one_way_are_judged_by_that_ceiling(problem: str, level: str, rate: float) -> None:
    operator, _, axes = problem.partition("(")
    found = CATALOG.operator(operator).parse(f"({axes}")
    limits = replace(
        PEAKS, dram_read_bytes_per_s=4.4e12, dram_write_bytes_per_s=4.6e12, l2_bytes_per_s=9e12, l1_bytes_per_s=30e12
    )
    assert found.bandwidth() == level and limits.at_level(level).dram_bytes_per_s == rate
    assert PEAKS.at_level("dram_write") == PEAKS, "unknown one-way limits leave the copy's"


def test_a_fill_at_the_write_ceiling_is_at_its_roof_and_possible() -> None:
    case = case_named("fill/vec4(n=268435456)")
    nbytes = case.problem.bytes()
    limits = Peaks(dram_bytes_per_s=4e12, dram_write_bytes_per_s=5e12, l2_bytes_per_s=2e13)
    least_s, why = lower_bound_s(case, limits)
    assert least_s == pytest.approx(0.95 * nbytes / 5e12) and why == "measured DRAM write bandwidth"
    done = result("vec4", nbytes / 5e12, operator="fill", nbytes=nbytes, memory_level=case.problem.bandwidth())
    (row,) = rows(fabricated_run([done], ceilings=limits.to_json()))
    assert row.peak_share is not None and 0.95 < row.peak_share <= 1.05, "1.25 by a copy's ceiling"


@pytest.mark.parametrize(
    ("gpu", "mode", "share"),
    [
        ("NVIDIA H200", "cold", 1 / 1.10), ("NVIDIA H200", "dirty", 1 / 1.10), ("NVIDIA H200", "hot", 0.0),
        ("NVIDIA H200", "graph, hot", 0.0), ("NVIDIA GeForce RTX 4090", "cold", 0.5 / 1.10),
    ],
)  # fmt: skip
def test_after_a_flush_all_compulsory_bytes_count(gpu: str, mode: str, share: float) -> None:
    """32 MiB read and 32 MiB written by a GPU whose L2 cache holds all of it."""
    case = case_named("relu/vec4(n=8388608)")
    limits = Peaks(gpu=gpu, dram_bytes_per_s=1e12, l2_bytes=72 << 20)
    whole_s = case.problem.bytes() / 1e12
    assert lower_bound_s(case, limits, mode)[0] == pytest.approx(share * whole_s)


COLD_RUNS = ("quick", "full", "layers", "gradients", "hopper", "mma")


@pytest.mark.parametrize("name", COLD_RUNS)
def test_committed_times_are_possible_after_a_flush(name: str) -> None:
    run = read_run(ROOT / "reports" / "h200" / name)
    catalog, judged = CATALOG, 0
    for done in run.results:
        if done.measurement is None or done.status != "right":
            continue
        problem = catalog.operator(done.operator).from_axes(done.axes)
        work = SimpleNamespace(problem=problem, unit=done.unit or done.precision)
        least_s, bound = lower_bound_s(work, run.ceilings, done.measurement.mode)  # type: ignore[arg-type]
        assert done.measurement.median_s >= least_s, f"{done.case}: below {least_s} s by {bound}"
        judged += 1
    assert judged > 100


def test_three_products_of_a_matrix_unit_have_a_third_of_its_rate() -> None:
    limits = Peaks(fp32_flops_per_s=60e12, matrix_flops_per_s={"tf32": 360e12})
    assert [limits.flops_per_s(unit) for unit in ("f32", "tf32", "tf32/3", "bf16")] == [60e12, 360e12, 120e12, None]


def test_sustained_rates_stand_beside_the_burst_and_replace_nothing() -> None:
    def probes(time_s: float) -> list[Result]:
        return [
            result("chains_8", time_s, operator="fma", flops=10**14, nbytes=8),
            result("cublas_tf32", time_s / 10, operator="matmul", flops=10**14, nbytes=8, precision="tf32"),
        ]

    found = with_sustained(peaks_from_probes(probes(2.0)), probes(2.5))
    assert (found.fp32_flops_per_s, found.fp32_sustained_flops_per_s) == (5e13, 4e13)
    assert found.matrix_flops_per_s == {"tf32": 5e14} and found.matrix_sustained_flops_per_s == {"tf32": 4e14}
    assert found.flops_per_s("f32") == 5e13 and set(found.cases) == {
        "fp32_flops_per_s", "fp32_sustained_flops_per_s", "tf32", "tf32 sustained",
    }  # fmt: skip
    table = ceilings_table(found, SHEETS["h200"])
    labels = [line[0] for line in table["body"]]
    assert "fp32 units, multiply-add, sustained" in labels and "tensor cores, tf32, sustained" in labels
    assert "tensor cores, bf16" in labels and table["sustained"]
    assert all(len(line) == 5 for line in table["body"])
    assert not ceilings_table(peaks_from_probes(probes(2.0)), None)["sustained"]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_sixteen_bit_problems_are_judged_by_the_matrix_units(dtype: str) -> None:
    case = case_named(f"linear/torch(m=4096,n=4096,k=4096,dtype={dtype})")
    assert case.precision == dtype and case.variant.precision == "f32" and case.unmet_requirement() is None
    limits = Peaks(fp32_flops_per_s=5e13, matrix_flops_per_s={dtype: 8e14})
    assert lower_bound_s(case, limits)[0] == pytest.approx(0.95 * case.problem.flops() / 8e14), "not by the fp32 units"
    done = result(
        "torch", 2e-4, operator="linear", flops=case.problem.flops(), nbytes=10**8, precision=case.precision
    )  # fmt: skip
    assert peaks_from_probes([done]).matrix_flops_per_s == {dtype: pytest.approx(case.problem.flops() / 2e-4)}
    assert case_named("linear/torch(m=4,n=4,k=4)").precision == "f32"


@pytest.mark.parametrize("suite", ["ceilings", "sustained"])
def test_every_matrix_rate_has_a_probe_of_its_own(suite: str) -> None:
    cases = read_suite(Path(suite), CATALOG, "cuda").cases
    probed = {(case.variant.operator, case.unit) for case in cases}
    assert probed >= {(operator, PROBES[name].unit) for name in MATRIX_UNITS for operator in PROBES[name].operators}


def test_the_fastest_of_own_probe_and_library_is_the_peak_of_the_tensor_cores() -> None:
    library = result("torch", 1e-3, operator="linear", flops=10**12, nbytes=8, precision="bf16")
    probe = result("wgmma_shared_bf16", 1e-3, operator="mma", flops=10**12 + 1, nbytes=8, precision="bf16")
    unsupported = result("wgmma_shared_bf16", operator="mma", status="unsupported", reason="needs 9.0a")
    assert peaks_from_probes([library, probe]).cases["bf16"].startswith("mma/wgmma_shared_bf16")
    assert peaks_from_probes([library, unsupported]).cases["bf16"].startswith("linear/torch")
