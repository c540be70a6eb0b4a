"""What `opbench explain` says of traffic made by hand, and of the tree's own variants."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from common import Cli
from rich.console import Console

from opbench.advice.diagnosis import Flaw, diagnose
from opbench.advice.explain import AnnotatedLine, Explanation, explain, operands
from opbench.advice.families import COALESCED, FAMILIES, PADDED, VECTOR, cures
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog, case_named
from opbench.cli.explaining import print_explanation
from opbench.gpus.ceilings import Ceilings
from opbench.report.run.annotated import to_html
from opbench.results.files import RunWriter, read_run
from opbench.runs.suite import read_suite
from opbench.session.checking import trace_case
from opbench.traffic.counts import BranchTraffic, KernelTraffic, LineTraffic, Traffic
from opbench.traffic.findings import Finding

CATALOG = Catalog()
SHARED = "transpose/shared[ROWS=8](rows=64,cols=64)"
FILE = "kernel.cu"
SOURCE = """\
__global__ void turn(const float* x, float* out) {
  __shared__ float tile[32][32];
  tile[threadIdx.y][threadIdx.x] = x[i];
  __syncthreads();
  out[i] = tile[threadIdx.x][threadIdx.y];
}
"""


def entry(line: int, space: str, kind: str, **counts: int) -> LineTraffic:
    """One line's traffic; lanes, sectors and wavefronts are full and ideal unless given."""
    given = {"width": 4, "requests": 128, **counts}
    requests, width = given["requests"], given["width"]
    full: dict[str, int] = {"lanes": 32 * requests}
    lanes = given.get("lanes", full["lanes"])
    if space == "global":
        full |= {"sectors": lanes * width // 32, "ideal_sectors": lanes * width // 32}
    else:
        full |= {"wavefronts": requests * width // 4, "ideal_wavefronts": requests * width // 4}
    return LineTraffic("turn", FILE, line, space, kind, **{**full, **given})


TURN = (
    entry(3, "global", "load"),
    entry(3, "shared", "store"),
    entry(5, "global", "store"),
    entry(5, "shared", "load", wavefronts=4096),
)


PARITY = BranchTraffic("turn", FILE, 4, executions=128, divergent=96, fewest_lanes=16 * 96)


def traffic(*lines: LineTraffic, blocks: int = 4, counted: int = 4, barriers: int = 4) -> Traffic:
    """The lines, all of one kernel."""
    return Traffic(lines, (KernelTraffic("turn", 1, blocks, counted, 256, barriers),))


def problems(case: str, *lines: LineTraffic, barriers: int = 4) -> list[Flaw]:
    """What is wrong with such lines in a case's own kernel."""
    found = case_named(case)
    return diagnose(found, traffic(*lines, barriers=barriers), {FILE: SOURCE}, CATALOG.variants(found.variant.operator))


def explained(counts: Traffic, *findings: Finding, ceilings: Ceilings | None = None) -> Explanation:
    """The explanation of `SHARED` with these counts."""
    return explain(case_named(SHARED), counts, findings, {FILE: SOURCE}, CATALOG.variants("transpose"), ceilings)


def printed(explanation: Explanation) -> str:
    """What the terminal shows."""
    out = io.StringIO()
    print_explanation(explanation, Console(file=out, width=400, color_system=None))
    return out.getvalue()


GOLDEN = """\
transpose/shared[ROWS=8](rows=64,cols=64)
32×32 tile turned in shared memory: both sides coalesced

  global requests                           256  counted
  bytes asked for                       32.8 kB  counted
  bytes moved in sectors                32.8 kB  counted
  compulsory bytes                      32.8 kB  computed
  shared wavefronts                       4,224  counted
  of these bank conflicts                 3,968  counted
  barriers per block of turn                  1  counted

  ! line 5: bank conflicts, 88 % of all passes
      each 4-byte shared load request takes 32.0 wavefronts where 1.0 would do: 31.0 bank conflicts (counted)
      pad the rows of the shared array by one element, or swizzle its index; {CURES}
  ! line 3: narrow, 2.1 % of all passes
      all lanes load neighbouring elements 4 bytes at a time (counted)
      move 16 bytes per lane (float4); transpose/vectorised does so
  ! line 5: narrow, 2.1 % of all passes
      all lanes store neighbouring elements 4 bytes at a time (counted)
      move 16 bytes per lane (float4); transpose/vectorised does so
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

Lanes, sectors (of how many would hold the bytes) and conflicts are per request, collisions are in all.
A pass is 128 bytes through the L1 cache, a wavefront of shared memory, a warp's wait at a barrier or a parting.
Parted: how many of the warps' ways through a branch split their lanes; branches that split none are not shown.
Requests are those of the source: the device compiler may merge some. ≈: predicted from some of the blocks.
"""


def test_the_annotated_source_of_a_small_kernel() -> None:
    assert printed(explained(traffic(*TURN))) == GOLDEN.replace(
        "{CURES}", "transpose/padded and transpose/vectorised do so"
    )


def test_findings_come_first_and_mark_their_line() -> None:
    race = Finding("shared_race", "tile is written and read with no barrier", FILE, 5, count=3)
    text = printed(explained(traffic(*TURN), race))
    summary, source = text.split(f"\n{FILE}\n")
    assert summary.index("✗ line 5: shared race: tile is written") < summary.index("! line 5")
    assert "(3 times)" in summary
    assert "    5 ✗ global store" in source


def test_what_some_blocks_stand_for_is_marked_predicted_and_scaled() -> None:
    explanation = explained(traffic(*TURN, blocks=16))
    assert explanation.mark("turn") == "predicted"
    assert {f.source for f in explanation.figures if f.name == "shared wavefronts"} == {"predicted"}
    assert explanation.problems[0].source == "predicted"
    text = printed(explanation)
    assert "≈512" in text
    assert "(predicted)" in text and "(counted)" not in text


def test_every_figure_says_where_it_comes_from() -> None:
    ceilings = Ceilings(gpu="H200", dram_bytes_per_s=4e12, fp32_flops_per_s=5e13, launch_floor_s=3e-6)
    figures = {f.name: f for f in explained(traffic(*TURN), ceilings=ceilings).figures}
    assert figures["time at best, any variant"].value == 3e-6
    assert figures["time at best, any variant"].source == "predicted (H200, measured ceilings)"
    assert figures["compulsory bytes"].source == "computed"
    assert all(f.source for f in figures.values())


def test_an_abandoned_launch_is_told_of() -> None:
    assert "abandoned" in printed(explained(replace(traffic(*TURN), complete=False)))


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
    assert value["problems"][0]["cures"] == ["transpose/padded", "transpose/vectorised"]
    assert value["next_rungs"] == ["transpose/padded"]


def test_the_fragment_of_a_page_escapes_the_source() -> None:
    explanation = explain(
        case_named(SHARED), traffic(*TURN), [Finding("trap", "<b>", FILE, 3)], {FILE: SOURCE.replace("i]", "<script>]")}
    )
    html = to_html(explanation)
    assert "<script>" not in html and "&lt;script&gt;" in html and "<b>" not in html
    assert "4.0 of 4.0" in html and "31.0" in html


# Rules ------------------------------------------------------------------------------------------------------------


def test_a_strided_store_beside_a_coalesced_load_is_a_transposition() -> None:
    strided = entry(5, "global", "store", sectors=4096)
    first, *_ = problems("transpose/naive_write_strided(rows=64,cols=64)", entry(3, "global", "load"), strided)
    assert (first.kind, first.rule, first.line, first.family) == ("uncoalesced", "R7", 5, "shared transpose")
    assert first.cures[0] == "transpose/shared"
    assert "the load of line 3 is coalesced" in first.evidence


def test_a_strided_access_without_a_counterpart_is_a_wrong_index() -> None:
    lines = (entry(3, "global", "load", sectors=2112), entry(5, "global", "store", sectors=4096))
    found = problems("matmul/naive_row_x(m=64,n=64,k=64)", *lines)
    assert {p.line: p.kind for p in found} == {3: "uncoalesced", 5: "wrong innermost index"}
    assert all(p.cures == ("matmul/coalesced",) for p in found)


def test_twice_the_sectors_are_strided_and_alignment_is_no_fault() -> None:
    (found,) = problems("maxpool2d/grid3d(n=1,c=1,h=64,w=64)", entry(3, "global", "load", sectors=1024))
    assert (found.kind, found.cures) == ("strided", ("maxpool2d/multi_output",))
    assert (
        problems("maxpool2d/multi_output(n=1,c=1,h=64,w=64)", entry(3, "global", "load", width=16, requests=16)) == []
    )
    misaligned = entry(3, "global", "load", width=8, sectors=128 * 9)
    assert problems("maxpool2d/grid3d(n=1,c=1,h=64,w=64)", misaligned) == []


def test_the_scalar_path_of_a_vectorised_kernel_is_called_that() -> None:
    (found,) = problems("transpose/vectorised(rows=63,cols=65)", entry(3, "global", "load", sectors=2048))
    assert (found.kind, found.cures) == ("scalar path", ())
    assert "pad the rows" in found.advice


def test_narrow_streaming_is_cured_by_vectors() -> None:
    (found,) = problems("relu/scalar(n=4096)", entry(3, "global", "load"))
    assert (found.rule, found.cures) == ("R8", ("relu/vec4", "relu/vec4_unrolled"))
    assert problems("relu/scalar(n=4096)", entry(3, "global", "load", width=16, requests=32)) == []
    assert problems("fma/one_chain(n=4096,rounds=64)", entry(3, "global", "load")) == []


def test_a_line_that_fetches_everything_many_times_wants_a_tile() -> None:
    again = entry(3, "global", "load", requests=16384, sectors=2 * 16384)
    (found,) = problems("matmul/coalesced(m=64,n=64,k=64)", again)
    assert (found.rule, found.family, found.cures[0]) == ("R6", "shared tile", "matmul/shared_tile")
    tiled = problems("matmul/shared_tile(m=64,n=64,k=64)", again, entry(4, "shared", "store"))
    assert [p.family for p in tiled] == ["register tile"]


def test_a_workspace_that_is_read_once_is_no_reread() -> None:
    read = entry(3, "global", "load", requests=512, width=16)
    assert problems("matmul/split_k(m=64,n=64,k=64)", read) == []
    assert [p.kind for p in problems("matmul/vectorised(m=64,n=64,k=64)", read)] == ["re-read"]


def test_shared_loads_that_dwarf_global_ones_want_registers() -> None:
    lines = (entry(3, "global", "load", requests=16), entry(5, "shared", "load", requests=4096))
    (found,) = problems("matmul/shared_tile(m=64,n=64,k=64)", *lines)
    assert (found.rule, found.cures[:2]) == ("R12", ("matmul/register_tile_1d", "matmul/register_tile_2d"))


def test_collisions_of_atomics() -> None:
    hot = entry(5, "global", "atomic", requests=64, sectors=64, ideal_sectors=256, collisions=2048)
    (found,) = problems("sum/shuffle(n=65536)", hot)
    assert (found.kind, found.cures) == ("atomic collisions", ("sum/grid_stride_vec4", "sum/two_pass"))
    assert problems("sum/shuffle(n=65536)", replace(hot, collisions=100)) == []


def test_few_lanes_are_divergence_only_where_other_lines_have_more() -> None:
    tree = entry(5, "shared", "load", requests=512, lanes=512 * 5)
    full = entry(3, "shared", "store", requests=128)
    (found,) = problems("sum/interleaved(n=65536)", full, tree)
    assert (found.rule, found.cures[0]) == ("R20", "sum/sequential")
    assert problems("sum/interleaved(n=65536)", tree) == [], "an edge: every line has few lanes"
    election = entry(5, "shared", "load", requests=512, lanes=512)
    assert problems("sum/interleaved(n=65536)", full, election) == []


def parted(branch: BranchTraffic, *lines: LineTraffic) -> list[Flaw]:
    """Problems of a branch beside lines, if it has any."""
    case = case_named("sum/interleaved(n=65536)")
    counts = replace(traffic(*(lines or TURN[:3]), barriers=0), branches=(branch,))
    found = diagnose(case, counts, {FILE: SOURCE}, CATALOG.variants("sum"))
    assert sum(p.share for p in found) <= 1
    return [p for p in found if p.kind == "divergence"]


def test_a_branch_that_splits_warps_again_and_again_is_divergence() -> None:
    (found,) = parted(PARITY)
    assert (found.rule, found.line, found.cost, found.cures[0]) == ("R20", 4, 96, "sum/sequential")
    assert found.evidence == (
        "75 % of the warps' 128 passages through this branch split their lanes, 16.0 on the way of the fewer"
    )
    assert parted(replace(PARITY, fewest_lanes=96)) == [], "one lane each: an election"
    assert parted(replace(PARITY, executions=9600)) == [], "an edge of the problem"
    assert parted(replace(PARITY, executions=30, divergent=30)) == [], "too rare beside the accesses"
    tree = entry(4, "shared", "load", requests=512, lanes=512 * 5)
    (one,) = parted(PARITY, entry(3, "shared", "store"), tree)
    assert "5.0 of 32 lanes" in one.evidence, "the line's accesses have said so already"


def test_partings_stand_beside_their_line() -> None:
    counts = replace(traffic(*TURN), branches=(PARITY,))
    made = explained(counts)
    (line,) = next(f for f in made.to_json()["files"] if f["path"] == FILE)["lines"][1:2]
    assert line["line"] == 4 and line["accesses"] == []
    assert line["branches"] == [
        {"kernel": "turn", "file": FILE, "line": 4, "executions": 128, "divergent": 96, "fewest_lanes": 1536}
        | {"called_from": 0, "source": "counted"}
    ]
    (row,) = (text for text in printed(made).splitlines() if "__syncthreads" in text)
    assert row.split()[:2] == ["4", "branch"] or row.split()[:3] == ["4", "!", "branch"]
    assert "128" in row and "75 %" in row
    page = to_html(made)
    assert "<td>branch</td><td>128</td>" in page and "<td>75 %</td>" in page
    some = replace(traffic(*TURN, blocks=8), branches=(PARITY,))
    assert "≈256" in printed(explained(some))
    assert "parted" not in printed(explained(traffic(*TURN))).split("│")[0]


def test_many_barriers_with_little_between_them() -> None:
    lines = (entry(3, "shared", "store"), entry(5, "shared", "load"))
    (found,) = problems("sum/sequential(n=65536)", *lines, barriers=36)
    assert (found.rule, found.line) == ("R14", 4)
    assert "sum/shuffle" in found.cures


def test_barriers_have_a_line_without_any_source_given() -> None:
    case = case_named("sum/sequential(n=1000)")
    path = str(case.variant.path)
    lines = tuple(replace(line, file=path, line=at) for line, at in zip(TURN, (39, 39, 44, 44), strict=True))
    (found,) = (p for p in diagnose(case, traffic(*lines, barriers=36), {}, []) if p.kind == "barriers")
    assert "__syncthreads" in case.variant.path.read_text().splitlines()[found.line - 1]


def test_no_problem_is_more_than_all_passes() -> None:
    hot = entry(5, "global", "atomic", requests=64, sectors=64, ideal_sectors=256, collisions=64 * 31)
    lone = entry(3, "global", "load", lanes=256, sectors=128, ideal_sectors=128)
    found = problems("sum/interleaved(n=65536)", hot, lone, entry(2, "global", "load", requests=200))
    assert {"atomic collisions", "divergence"} <= {p.kind for p in found}
    assert sum(p.share for p in found) <= 1


def test_accesses_of_a_line_are_one_problem_of_a_kind() -> None:
    left, right = (entry(5, "shared", "load", column=c, wavefronts=w) for c, w in ((9, 4096), (30, 2048)))
    (found,) = (p for p in problems(SHARED, left, right) if p.kind == "bank conflicts")
    assert found.cost == 4096 + 2048 - 2 * 128 and "32.0 wavefronts" in found.evidence


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


# Families ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_there_in_the_tree(family: object) -> None:
    variants = [v for name in CATALOG.operator_names() for v in CATALOG.variants(name)]
    assert [v.id for v in variants if family.match(v)], "no variant says that it does this; mend the pattern"  # type: ignore[attr-defined]


def cured(family: object, case: str) -> list[str]:
    """Who cures a case."""
    found = case_named(case)
    return cures(family, found.variant, found.problem, CATALOG.variants(found.variant.operator))  # type: ignore[arg-type]


def test_a_cure_is_no_rung_below_and_fits_the_problem() -> None:
    assert cured(PADDED, SHARED) == ["transpose/padded", "transpose/vectorised"]
    assert cured(PADDED, "transpose/padded(rows=8,cols=8)") == ["transpose/vectorised"]
    assert cured(COALESCED, "matmul/vectorised(m=8,n=8,k=8)") == []
    assert "matmul/naive_col" not in cured(COALESCED, "matmul/naive_row_x(m=8,n=8,k=8)")
    assert "conv2d/nhwc_implicit_gemm" not in cured(VECTOR, "conv2d/naive_channel_x(n=1,c=8,h=8,w=8,k=8,r=3,s=3)")


# The traced run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "cure"),
    [
        (SHARED, "bank conflicts", "transpose/padded"),
        ("transpose/naive_write_strided(rows=64,cols=64)", "uncoalesced", "transpose/shared"),
        ("matmul/naive_row_x(m=32,n=32,k=32)", "wrong innermost index", "matmul/coalesced"),
        ("conv2d/naive_channel_x(n=1,c=4,h=8,w=8,k=32,r=3,s=3)", "wrong innermost index", "conv2d/naive_grid3d"),
        ("sum/interleaved(n=1000)", "divergence", "sum/sequential"),
    ],
)
def test_the_first_rungs_are_told_of_the_rung_that_mends_them(name: str, kind: str, cure: str) -> None:
    case = case_named(name)
    counts, findings = trace_case(case)
    assert findings == [] and counts.complete
    found = diagnose(case, counts, {}, CATALOG.variants(case.variant.operator))
    assert (found[0].kind, found[0].cures[0]) == (kind, cure)


def test_the_command_annotates_and_keeps_the_traffic(cli: Cli, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    writer.write("run", {"format": 1})
    writer.close()
    done = cli("explain", SHARED, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "31.0 bank conflicts (counted)" in done.stdout and "// 32-way conflict" in done.stdout
    kept = Traffic.from_json(read_run(tmp_path / "run").traffic[SHARED])
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
    able = [c for c in on_cpu if c.unmet() is None and not c.variant.is_library]
    assert len(able) >= 60
    rungs = {v.id for name in CATALOG.operator_names() for v in CATALOG.variants(name) if not v.is_library}
    assert rungs == {c.variant.id for c in able}
    assert any(c.config != c.variant.configs[0] for c in able)
    for operator in CATALOG.operator_names():
        sizes = {_odd(c) for c in able if c.variant.operator == operator}
        assert sizes == {True, False}, f"{operator} has no odd or no even problem in suites/counters.toml"


def _odd(case: Case) -> bool:
    """Whether the rows of an output do not divide by 4, so that vectors do not fit."""
    axes = case.problem.scope
    row = next(axes[name] for name in ("w", "cols", "n", "inner") if name in axes)
    return int(row) % 4 != 0
