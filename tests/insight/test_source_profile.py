"""The source page of Nsight Compute, read, charged and summed; small tables with known sums."""

from __future__ import annotations

import json

import pytest

from opbench.errors import EnvironmentFault
from opbench.insight.nsight.metrics import KernelCounters
from opbench.insight.nsight.source_page import read_sampled, with_lines, with_texts
from opbench.insight.source_profile import SourceProfile, source_profile
from opbench.insight.stalls import CAUSES, STALLS, find_stall, mechanisms_of
from opbench.kernels.mechanism import MECHANISMS
from support.checks.errors import refuses

HEAD = '"Address","Source","# Samples","Instructions Executed","stall_long_sb","stall_selected","stall_new_one"'
HEAD += ',"stall_long_sb (Not Issued)"'
SASS = f"""==PROF== reading
"Kernel Name","add(float *, int)"
{HEAD}
"0x7f10","      LDG.E R4, desc[UR4][R2.64] ;","3","64","1","2","0","1"
"0x7f20","      FADD R5, R4, R4 ;","1,097","64","1,090","3","4","1,000"
"0x7f30","      EXIT ;","0","64","0","0","0","0"
"""
LINES = """"File Path","/somewhere/add.cu"
"Function Name","add(float *, int)"
"Line No","Source","Address","Source","# Samples"
"1","__global__ void add(float *x, int n) {","-","-","0"
"2","    float a = x[threadIdx.x];","-","-","3"
"","","0x7f10","LDG.E R4, desc[UR4][R2.64] ;","3"
"3","    x[0] = a + a, y;","-","-","1097"
"","","0x7f20","FADD R5, R4, R4 ;","1097"
"File Path","/cuda/header.h"
"Line No","Source","Address","Source","# Samples"
"9","exit","-","-","0"
"","","0x7f30","EXIT ;","0"
"""


def totals(**different: float) -> list[KernelCounters]:
    values: dict[str, float | None] = {
        "smsp__pcsamp_sample_count": 1100,
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard": 1091,
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued": 7,
        "smsp__pcsamp_warps_issue_stalled_selected": 5,
        "smsp__pcsamp_warps_issue_stalled_barrier": 0,
    }
    return [KernelCounters("add(float *, int)", "", "", "9.0", {**values, **different})]


def profile(sass: str = SASS, lines: str = LINES, **different: float) -> SourceProfile:
    return source_profile("case", "title", with_lines(read_sampled(sass), lines), totals(**different))


def test_a_wait_is_charged_to_the_line_of_the_load() -> None:
    found = profile()
    (_, first), (_, second), *rest = found.hottest()
    assert (first.place, first.charged) == ("add.cu:2", {"long_scoreboard": 1091, "selected": 2})
    assert (second.place, second.charged) == ("add.cu:3", {"new_one": 4, "selected": 3})
    assert second.waiting == {"long_scoreboard": 1090, "new_one": 4, "selected": 3} and not rest
    assert found.kernels[0].waited_at(first) == [(("/somewhere/add.cu", 3), "long_scoreboard", 1090)]
    assert found.kernels[0].sources["/somewhere/add.cu"][3] == "    x[0] = a + a, y;"
    assert found.total == 1100 and found.mismatches == () and found.compared >= 5


def test_sums_that_differ_from_the_profilers_are_reported() -> None:
    found = profile(smsp__pcsamp_sample_count=1101, smsp__pcsamp_warps_issue_stalled_barrier=1)
    fields = [(one.quantity, one.summed, one.total) for one in found.mismatches]
    assert fields == [
        ("smsp__pcsamp_warps_issue_stalled_barrier", 0, 1),
        ("smsp__pcsamp_sample_count", 1100, 1101),
    ]
    assert json.loads(json.dumps(found.to_json()))["mismatches"][1]["summed"] == 1100
    broken = profile(SASS.replace('"1,097"', '"1,096"'))
    assert ("# Samples", 1100, 1099) in [(one.quantity, one.summed, one.total) for one in broken.mismatches]


def test_a_reason_without_a_column_gets_the_name_of_the_only_total_without_one() -> None:
    text = SASS.replace('"1,097"', '"1,099"')
    assert profile(text).reasons["unlisted"] == 2
    found = profile(text, smsp__pcsamp_sample_count=1102, smsp__pcsamp_warps_issue_stalled_warpgroup_arrive=2)
    assert found.reasons["warpgroup_arrive"] == 2 and found.mismatches == ()


def test_quotes_in_the_source_do_not_move_the_columns() -> None:
    odd = '    asm("mma" : "+f"(c[0]) : "r"(a[0]), "r"("x","y"));'
    text = LINES.replace("    x[0] = a + a, y;", odd)
    (kernel,) = with_lines(read_sampled(SASS), text)
    assert kernel.sources["/somewhere/add.cu"][3] == odd and kernel.instructions[1].line == 3


def test_the_whole_text_of_a_file_is_shown_unless_it_has_changed() -> None:
    (kernel,) = with_lines(read_sampled(SASS), LINES)
    whole = "__global__ void add(float *x, int n) {\n  float a = x[threadIdx.x];\n  x[0] = a + a, y;\n}\n"
    assert with_texts(kernel, lambda _: whole).sources["/somewhere/add.cu"][4] == "}"
    other = whole.replace("threadIdx.x", "threadIdx.y")
    assert with_texts(kernel, lambda _: other).sources == kernel.sources == with_texts(kernel, lambda _: None).sources


def test_launches_of_one_kernel_are_added() -> None:
    twice = read_sampled(SASS + SASS.partition("\n")[2])
    assert len(twice) == 1 and twice[0].launches == 2
    assert [one.count for one in twice[0].instructions] == [6, 2194, 0]
    assert twice[0].instructions[1].samples == {"long_scoreboard": 2180, "selected": 6, "new_one": 8}


def test_without_line_information_instructions_remain() -> None:
    found = profile(lines="")
    assert [line.place for _, line in found.hottest()] == ["unknown line"] and found.total == 1100


def test_a_report_without_samples_is_a_fault() -> None:
    with refuses("no-samples", "ncu", error=EnvironmentFault):
        read_sampled('==PROF== reading\n"ID","Kernel Name"\n')


def test_remedies_name_the_variants_of_the_operator() -> None:
    kernels = with_lines(read_sampled(SASS), LINES)
    found = source_profile("case", "title", kernels, (), lambda name: ["add/early"] if name == "double_buffer" else [])
    first = found.remedies[0]
    assert (first.reason, first.samples, first.causes) == ("long_scoreboard", 1091, {"global memory": 1091})
    assert first.variants == {"double_buffer": ("add/early",)} and "double_buffer" in first.mechanisms
    assert "selected" not in [remedy.reason for remedy in found.remedies]


@pytest.mark.parametrize(
    "name",
    [
        "Stall Short Scoreboard",
        "stall_short_sb",
        "short-scoreboard",
        "smsp__pcsamp_warps_issue_stalled_short_scoreboard_not_issued",
        "smsp__average_warps_issue_stalled_short_scoreboard",
    ],
)
def test_a_reason_is_known_by_every_spelling(name: str) -> None:
    found = find_stall(name)
    assert found is not None and found.name == "short_scoreboard"


def test_every_spelling_of_the_tools_is_known() -> None:
    from opbench.insight.nsight.metrics import STALLS as COUNTED

    assert all(find_stall(name) for name in COUNTED)
    assert len({stall.column for stall in STALLS.values()}) == len(STALLS)
    assert find_stall("bank conflicts") is None


def test_cures_are_mechanisms_of_headers() -> None:
    every = [*STALLS.values(), *CAUSES]
    assert all(name in MECHANISMS for entry in every for name in entry.mechanisms)
    assert mechanisms_of("short_scoreboard", "MUFU") != mechanisms_of("short_scoreboard", "LDS")
    assert mechanisms_of("barrier", "LDS") == STALLS["barrier"].mechanisms
