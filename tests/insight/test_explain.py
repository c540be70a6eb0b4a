"""What `opbench explain` says of traffic made by hand, and of the tree's own variants."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from opbench.backend.findings import Finding
from opbench.checking.checking import trace_case
from opbench.cli import cli
from opbench.gpu.limits.ceilings import Peaks
from opbench.insight.diagnosis import diagnose
from opbench.insight.explain import AnnotatedLine, explain, operands
from opbench.insight.remedies import remedies
from opbench.insight.subject import Subject
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.report.run.annotated import to_html
from opbench.results.files import RunWriter, read_run
from opbench.running.suite import read_suite
from support.builders.traffic_by_hand import CATALOG, FILE, SHARED, SOURCE, TURN, entry, explained, printed, traffic
from support.common import ROOT, Cli

GOLDEN = """\
transpose/shared[ROWS=8](rows=64,cols=64)
32×32 shared-memory tile, transposed: loads and stores are coalesced

  global requests                           256  counted
  bytes asked for                       32.8 kB  counted
  bytes moved in sectors                32.8 kB  counted
  compulsory bytes                      32.8 kB  computed
  shared wavefronts                       4,224  counted
  of these bank conflicts                 3,968  counted
  barriers per block of turn                  1  counted

  what to change first
    1. bank conflicts: pad the rows of the shared array by one element, or swizzle its index
       each 4-byte shared load request takes 32.0 wavefronts where 1.0 would do: 31.0 bank conflicts (counted), \
kernel.cu:5
       gain known only from a time on a GPU; see transpose/padded, transpose/vectorised
    2. access width: load and store 16 bytes per thread (float4)
       all lanes load neighbouring elements 4 bytes at a time (counted), kernel.cu:3
       gain known only from a time on a GPU; see transpose/vectorised
  ! line 5: bank conflicts, up to 88 % of all passes could be saved
  ! lines 3 and 5: narrow, up to 38 % of all requests could be saved
  next on the ladder: transpose/padded

kernel.cu
 line   access            requests  lanes     sectors  conflicts │
    1                                                            │ __global__ void turn(const float* x, float* out) {
    2                                                            │   __shared__ float tile[32][32];
    3 ! global load 4 B        128   32.0  4.0 of 4.0            │   tile[threadIdx.y][threadIdx.x] = x[i];
        shared store 4 B       128   32.0                    0.0 │
    4                                                            │   __syncthreads();
    5 ! global store 4 B       128   32.0  4.0 of 4.0            │   out[i] = tile[threadIdx.x][threadIdx.y];
        shared load 4 B        128   32.0                   31.0 │
    6                                                            │ }

Request: one access of one warp in the source; the device compiler may merge requests. ≈: predicted from a sample
of the blocks. Lanes, sectors and conflicts are averages per request, collisions are totals. Sectors: 8.0 of 4.0
means that 8 sectors of 32 bytes were moved and 4 would hold the bytes that the lanes asked for.
Pass: 128 bytes through L1, a wavefront of shared memory, a warp's wait at a barrier, or the second path of a
divergent branch. Diverged: the share of warps whose lanes took different paths; branches without are not shown.
"""


def test_the_annotated_source_of_a_small_kernel() -> None:
    assert printed(explained(traffic(*TURN))) == GOLDEN


def test_findings_come_first_and_mark_their_line() -> None:
    race = Finding("shared_race", "tile is written and read with no barrier", FILE, 5, count=3)
    text = printed(explained(traffic(*TURN), race))
    summary, source = text.split(f"\n{FILE}\n")
    assert summary.index(f"{FILE}:5: shared-race: tile is written") < summary.index("! line 5")
    assert "seen 3 times" in summary and "opbench help finding shared-race" in summary
    assert "    5 ✗ global store" in source


def test_what_some_blocks_stand_for_is_marked_predicted_and_scaled() -> None:
    explanation = explained(traffic(*TURN, blocks=16))
    assert explanation.count_source("turn") == "predicted"
    assert {f.source for f in explanation.figures if f.name == "shared wavefronts"} == {"predicted"}
    assert explanation.problems[0].source == "predicted"
    text = printed(explanation)
    assert "≈512" in text
    assert "(predicted)" in text and "(counted)" not in text


def test_every_figure_says_where_it_comes_from() -> None:
    ceilings = Peaks(gpu="H200", dram_bytes_per_s=4e12, fp32_flops_per_s=5e13, launch_floor_s=3e-6)
    figures = {f.name: f for f in explained(traffic(*TURN), ceilings=ceilings).figures}
    assert figures["lower bound of the problem"].value == 3e-6
    assert figures["lower bound of the problem"].source == "predicted (H200, measured peaks)"
    assert figures["compulsory bytes"].source == "computed"
    assert all(f.source for f in figures.values())


def test_an_abandoned_launch_is_told_of() -> None:
    assert "did not finish" in printed(explained(replace(traffic(*TURN), complete=False)))


def test_accesses_in_no_known_source_are_not_lost() -> None:
    lost = replace(TURN[0], file="", line=0)
    explanation = explained(traffic(*TURN[1:], lost))
    assert explanation.elsewhere == (lost,)
    assert "unknown file:?" in printed(explanation)
    assert explanation.to_json()["elsewhere"][0]["requests"] == 128


def test_the_json_holds_ratios_and_sources() -> None:
    value = json.loads(json.dumps(explained(traffic(*TURN)).to_json()))
    lines = {line["line"]: line for line in value["files"][0]["lines"]}
    assert set(lines) == {3, 5}
    load = next(a for a in lines[5]["accesses"] if a["space"] == "shared")
    assert (load["conflicts_per_request"], load["source"]) == (31.0, "counted")
    assert value["problems"][0]["remedies"] == ["transpose/padded", "transpose/vectorised", "transpose/tma"]
    assert value["next_rungs"] == ["transpose/padded"]


def test_the_fragment_of_a_page_escapes_the_source() -> None:
    found = [Finding("trap", "<b>", FILE, 3)]
    explanation = explain(
        Subject.of_case(case_named(SHARED)), traffic(*TURN), found, {FILE: SOURCE.replace("i]", "<script>]")}
    )
    html = to_html(explanation)
    assert "<script>" not in html and "&lt;script&gt;" in html and "<b>" not in html
    assert "4.0 of 4.0" in html and "31.0" in html


@pytest.mark.parametrize(
    ("text", "loads", "stores"),
    [
        ("sum += a[i * k + j] * b[j];", ["a[i * k + j]", "b[j]"], []),
        ("tile[y][x] = in[i] == 0 ? 1 : in[j];", ["in[i]", "in[j]"], ["tile[y][x]"]),
        ("tree[t] += tree[t + d];", ["tree[t]", "tree[t + d]"], ["tree[t]"]),
        ("x = a[b[i]];", [], []),
        ("x = *p + a[i", ["a[i"], []),
    ],
)
def test_elements_of_a_line(text: str, loads: list[str], stores: list[str]) -> None:
    assert (operands(text, "load"), operands(text, "store")) == (loads, stores)


def test_two_accesses_of_a_line_are_told_apart() -> None:
    left, right = (entry(5, "shared", "load", column=column) for column in (9, 30))
    line = AnnotatedLine(5, "sum += a[i] * b[a_rather_long_index + i];", (left, right))
    assert [line.label(e) for e in (left, right)] == ["shared load 4 B a[i]", "shared load 4 B b[…]"]
    assert replace(line, text="f(p, q);").label(right) == "shared load 4 B (2 of 2)"
    assert replace(line, accesses=(left,)).label(left) == "shared load 4 B"


# Remedies ---------------------------------------------------------------------------------------------------------


def remedies_of(mechanism: str, case: str) -> list[str]:
    """Return the variants that use a mechanism, for a named case."""
    found = case_named(case)
    return remedies(mechanism, found.variant, found.problem, CATALOG.variants(found.variant.operator))


def test_a_remedy_is_above_on_the_ladder_and_fits_the_problem() -> None:
    above = ["transpose/padded", "transpose/vectorised", "transpose/tma"]
    assert remedies_of("bank_conflict_free", SHARED) == above
    assert remedies_of("bank_conflict_free", "transpose/padded(rows=8,cols=8)") == above[1:]
    assert remedies_of("bank_conflict_free", "transpose/padded(rows=7,cols=7)") == above[1:2], "tma needs whole vectors"
    assert remedies_of("coalesced", "matmul/vectorised(m=8,n=8,k=8)") != []
    assert "matmul/naive_col" not in remedies_of("coalesced", "matmul/naive_row_x(m=8,n=8,k=8)")
    nchw = "conv2d/naive_channel_x(n=1,c=8,h=8,w=8,k=8,r=3,s=3)"
    assert "conv2d/nhwc_implicit_gemm" not in remedies_of("vectorised_access", nchw)


def test_the_variants_of_softmax_that_coalesce_are_named() -> None:
    found = remedies_of("coalesced", "softmax/thread_per_row(rows=64,cols=128)")
    assert found == ["softmax/block_per_row", "softmax/online", "softmax/warp_registers", "softmax/vectorised"]
    case = case_named("softmax/thread_per_row(rows=64,cols=128)")
    counts, _ = trace_case(case)
    problems = diagnose(Subject.of_case(case, CATALOG.variants("softmax")), counts, {})
    assert {p.remedies for p in problems if p.mechanism == "coalesced"} == {tuple(found)}


# The traced run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        (SHARED, "bank conflicts", "transpose/padded"),
        ("transpose/naive_write_strided(rows=64,cols=64)", "uncoalesced", "transpose/shared"),
        ("matmul/naive_row_x(m=32,n=32,k=32)", "uncoalesced", "matmul/coalesced"),
        ("conv2d/naive_channel_x(n=1,c=4,h=8,w=8,k=32,r=3,s=3)", "uncoalesced", "conv2d/naive_grid3d"),
        ("sum/interleaved(n=1000)", "divergence", "sum/sequential"),
    ],
)
def test_the_first_variants_are_told_of_the_variant_that_mends_them(name: str, kind: str, remedy: str) -> None:
    case = case_named(name)
    counts, findings = trace_case(case)
    assert findings == [] and counts.complete
    found = diagnose(Subject.of_case(case, CATALOG.variants(case.variant.operator)), counts, {})
    assert (found[0].kind, found[0].remedies[0]) == (kind, remedy)


def test_the_command_annotates_and_keeps_the_traffic(cli: Cli, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    writer.write("run", {"format": 1})
    writer.close()
    done = cli("explain", SHARED, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "31.0 bank conflicts (counted)" in done.stdout and "// 32-way conflict" in done.stdout
    kept = read_run(tmp_path / "run").traffic[SHARED]
    assert kept.total("conflicts") == 3968


def test_the_command_refuses_what_it_cannot_run(cli: Cli) -> None:
    assert cli("explain", "transpose/share(rows=8,cols=8)").returncode == 2
    library = cli("explain", "relu/torch(n=8)")
    assert library.returncode == 2 and "unsupported" in library.stderr
    assert cli("explain", SHARED, "--gpu", "voodoo").returncode == 2


# The suite --------------------------------------------------------------------------------------------------------


def test_the_counters_suite_is_the_same_on_both_backends_and_covers_the_tree() -> None:
    on_cpu, on_gpu = (read_suite(Path("counters"), CATALOG, backend).cases for backend in ("cpu", "cuda"))
    assert [c.name for c in on_cpu] == [c.name for c in on_gpu]
    able = [c for c in on_cpu if c.unmet_requirement() is None and not c.variant.is_library]
    assert len(able) >= 60
    variants = {v.id for name in CATALOG.operator_names() for v in CATALOG.variants(name) if not v.is_library}
    assert variants == {c.variant.id for c in able}
    assert any(c.config != c.variant.configs[0] for c in able)
    for operator in CATALOG.operator_names():
        sizes = {_odd(c) for c in able if c.variant.operator == operator}
        assert sizes == {True, False}, f"{operator} has no odd or no even problem in suites/counters.toml"


def _odd(case: Case) -> bool:
    """Whether the rows of an output do not divide by 4, so that vectors do not fit."""
    axes = case.problem.scope
    row = next(
        axes[name]
        for name in ("w", "cols", "features", "n", "inner", "steps", "stride", "tiles", "pixels", "depth", "rank")
        if name in axes
    )
    return int(row) % 4 != 0


def test_a_measured_time_is_on_top_of_the_limits() -> None:
    case = "fill/scalar[BLOCK=256](n=16384)"
    words = ["explain", case, "--gpu", "h100", "--times", str(ROOT / "reports/h100/counters")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    rows = done.output.partition("limits of H100")[2].splitlines()[1:]
    assert rows[0].split()[0] == "measured" and "by the run of --times" in rows[0]
    assert {"launch", "issue", "DRAM", "load-store"} <= {row.split()[0] for row in rows if row.strip()}
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert found["measured_s"] > max(bound["time_s"] for bound in found["bounds"])
    wrong = CliRunner().invoke(cli, [*words[:-1], str(ROOT / "reports/h200/attention")])
    assert getattr(wrong.exception, "kind", "") == "not-measured"
