"""Advice on a committed run: the cases that are chosen, what is counted for them, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from opbench.cli.advise import advise_command, lines
from opbench.errors import UsageError
from opbench.gpu.compile.resources import Resources
from opbench.kernels.folders import Catalog
from opbench.networks.records.network_run import read_case_run
from opbench.results.advice import CaseAdvice
from opbench.results.files import read_content, read_run, run_file
from opbench.running import advising
from opbench.running.advising import advise_page, advise_run
from opbench.running.shapes import reduced_problem
from support.needs import needs_nvrtc

REPORTS = Path(__file__).parent.parent.parent / "reports"
QUICK = REPORTS / "h200/quick"
COUNTED = REPORTS / "h100/counters-cpu"


@needs_nvrtc
def test_a_named_variant_gets_the_advice_of_its_ladder() -> None:
    (found,) = advise_run(QUICK, ["transpose/shared"], Catalog())
    assert found.case.startswith("transpose/shared[")
    assert found.counted_case.startswith("transpose/shared[")
    assert 0.3 < found.share_of_bound < 0.9
    best = found.advice[0]
    assert (best.mechanism, best.binds, best.source) == ("bank_conflict_free", "bank conflicts", "counted")
    assert Path(best.file).name == "shared.cu"
    assert best.line
    assert "transpose/padded" in best.examples


def test_a_case_near_its_bound_gets_none() -> None:
    (found,) = advise_run(QUICK, ["copy/vec4"], Catalog())
    assert found.is_near_bound
    assert not found.advice
    assert found.reason


@needs_nvrtc
def test_only_the_fastest_own_variant_of_a_problem_is_chosen() -> None:
    found = advise_run(QUICK, ["relu/scalar", "relu/vec4"], Catalog())
    assert len(found) == 2
    whole = advise_run(QUICK, [], Catalog())
    assert len({(one.operator, one.problem) for one in whole}) == len(whole)
    assert all("torch" not in one.case for one in whole)


@needs_nvrtc
def test_a_node_of_a_network_gets_advice_from_the_launch_that_its_case_has() -> None:
    run = REPORTS / "h100/attribution/unet-1-bf16"
    node = next(r for r in read_case_run(run).results if r.operator == "conv2d" and r.axes["c"] == 512)
    (found,) = advise_run(run, [node.case], Catalog(), "h100", read_case_run)
    assert found.advice and found.advice[0].binds == "idle multiprocessors" and found.time_s


@needs_nvrtc
def test_a_page_has_the_advice_of_the_command_for_the_variants_farthest_from_their_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = read_run(QUICK)
    run.results = [r for r in run.results if r.operator == "copy" or r.variant == "shared"]
    messages: list[str] = []
    found = advise_page(run, "h200", (), messages.append)
    assert {case.partition("[")[0] for case in found} >= {"copy/vec4", "transpose/shared"}
    assert messages == ["on 1 of 1 problems far from their lower bound"]
    for case, one in found.items():
        (same,) = advise_run(QUICK, [case], Catalog())
        assert replace(one, reason="") == replace(same, reason="")
    monkeypatch.setattr(advising, "PAGE_TIME_S", 0.0)
    assert not [case for case in advise_page(run, "h200", ()) if case.startswith("transpose")], "too late is not shown"
    run.header = replace(run.header, backend="cpu")
    assert advise_page(run, "h200", ()) == {}


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        advise_run(QUICK, ["transpose/sharde"], Catalog())
    assert "transpose/shared" in str(caught.value)


def test_without_a_gpu_counts_and_a_model_say_what_they_can() -> None:
    found = {one.case.partition("(")[0]: one for one in advise_run(COUNTED, ["transpose/shared"], Catalog())}
    assert found
    for one in found.values():
        assert one.modelled
        assert one.counted_case == one.case
        assert {piece.source for piece in one.advice} <= {"counted", "compiled", "modelled"}
        assert not any(piece.binds == "idle multiprocessors" for piece in one.advice)
    assert {one.advice[0].mechanism for one in found.values()} == {"bank_conflict_free"}


def test_without_machine_code_the_lines_give_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a laptop without NVRTC; what is not known is named."""
    missing = iter([(0, Resources(missing="NVRTC is not installed"))])
    monkeypatch.setattr(advising, "resources_of", lambda cases, gpu, blocks: missing)
    (found,) = advise_run(QUICK, ["transpose/shared"], Catalog())
    assert found.advice[0].mechanism == "bank_conflict_free"
    assert {piece.source for piece in found.advice} == {"counted"}
    assert not found.reason
    assert "NVRTC is not installed" in found.left_out
    assert found.left_out in lines(found)[-1]


def test_a_run_without_times_and_counts_is_refused(tmp_path: Path) -> None:
    lines = read_content(run_file(COUNTED)).splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(line for line in lines if json.loads(line)["type"] != "traffic"))
    with pytest.raises(UsageError) as caught:
        advise_run(tmp_path, [], Catalog())
    assert (caught.value.kind, caught.value.value) == ("no-times", 0)


@needs_nvrtc
def test_the_command_prints_data() -> None:
    outcome = CliRunner().invoke(advise_command, [str(QUICK), "transpose/shared", "--json"])
    assert outcome.exit_code == 0
    (case,) = json.loads(outcome.stdout)
    assert case["advice"][0]["mechanism"] == "bank_conflict_free"
    assert case["advice"][0]["gain"]["low"] >= 1


def test_a_case_without_a_modelled_time_is_near_no_bound() -> None:
    found = CaseAdvice(
        "relu/mine(n=8)", "relu", "(n=8)", 0.0, 0.0, reason="its machine code is not known", modelled=True
    )
    assert found.share_of_bound == 0.0
    assert not found.is_near_bound
    assert found.reason in lines(found)[-1]


@pytest.mark.parametrize(
    ("case", "axes", "reduced_axes"),
    [
        ("softmax/block_per_row", {"rows": 4096, "cols": 1024}, {"rows": 64, "cols": 1024}),
        ("softmax/block_per_row", {"rows": 4097, "cols": 1023}, {"rows": 65, "cols": 1023}),
        ("softmax/block_per_row", {"rows": 3, "cols": 1024}, {"rows": 3, "cols": 1024}),
        ("batched_matmul/naive", {"batch": 64, "m": 1024, "n": 1024, "k": 1024}, {"batch": 16, "m": 64}),
        ("gather/flat_divmod", {"items": 50257, "features": 768, "rows": 16384, "total": 16384, "batches": "one"},
         {"rows": 64, "total": 64, "features": 768}),
    ],
)  # fmt: skip
def test_a_reduced_problem_has_whole_warps_of_rows(
    case: str, axes: dict[str, int | str], reduced_axes: dict[str, int]
) -> None:
    operator, name = case.split("/")
    variant = next(one for one in Catalog().variants(operator) if one.name == name)
    found = reduced_problem(variant, variant.configs[0], Catalog().operator(operator).from_axes(axes))
    assert found is not None
    assert {axis: found.axes[axis] for axis in reduced_axes} == reduced_axes


@needs_nvrtc
def test_the_user_s_file_of_a_run_gets_the_advice_instead_of_the_fastest_variant(tmp_path: Path) -> None:
    file = tmp_path / "my_transpose.cu"
    shipped = Catalog().variant("transpose", "shared").path.read_text()
    file.write_text(shipped.replace("// /// opbench\n", '// /// opbench\n// operator = "transpose"\n', 1))
    run = read_run(QUICK)
    run.results = [
        replace(r, variant="my_transpose", case=r.case.replace("/shared[", "/my_transpose["))
        if r.variant == "shared"
        else r
        for r in run.results
        if r.operator == "transpose"
    ]
    run.header = replace(run.header, target=(str(file),), own=("transpose/my_transpose",))
    (by_command,) = advise_run(QUICK, [], Catalog(), read_case_run=lambda _: run)
    (by_page,) = advise_page(run, "h200", ()).values()
    for found in (by_command, by_page):
        assert found.case.startswith("transpose/my_transpose[")
        assert found.advice[0].mechanism == "bank_conflict_free"
        assert found.advice[0].file == str(file)
