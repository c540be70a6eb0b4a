"""What a header does is told at the line of the kernel that calls it, in the header, and in findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.checking.checking import trace_case
from opbench.emulator.backend import CpuBackend
from opbench.insight.explain import explain
from opbench.insight.subject import Subject
from opbench.kernels.case import Case
from opbench.running import targets
from support.common import CATALOG

pytestmark = pytest.mark.usefixtures("forked_workers")

HEADER = """\
#pragma once
template <class T>
__device__ __forceinline__ T fetch(const T* from, int at) {
    return from[at];
}

__device__ __forceinline__ void put(float* to, int at, float value) {
    to[at] = value;
}
"""
KERNEL = """\
// /// opbench
// operator = "relu"
// launch = [{ kernel = "mine", grid = ["cdiv(n, 256)"], block = [256] }]
// ///
#include "moves.cuh"
extern "C" __global__ void mine(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float a = fetch(x, i);
    const float b = fetch(x, n - 1 - i);
    put(out, i, a > 0.0f ? a : b * 0.0f);
}
"""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    (tmp_path / "moves.cuh").write_text(HEADER)
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL)
    (variant,) = targets.own_variants(path, CATALOG)
    return Case(variant, {}, CATALOG.operator("relu").from_axes({"n": 1024}))


def test_a_headers_accesses_stand_at_the_call_and_in_the_header(case: Case) -> None:
    traffic, findings = trace_case(case)
    sources = {str(source.path): source.text for source in case.variant.sources}
    made = explain(Subject.of_case(case), traffic, findings, sources)
    kernel, header = made.files
    calls = {line.number: [label for label, _ in line.labelled_accesses] for line in kernel.lines if line.has_counts}
    assert calls == {
        9: ["moves.cuh global load 4 B"],
        10: ["moves.cuh global load 4 B"],
        11: ["moves.cuh global store 4 B"],
    }
    each = [line.calls[0].requests for line in kernel.lines if line.has_counts]
    assert each == [32, 32, 32]
    assert {line.number: sum(e.requests for e in line.accesses) for line in header.lines if line.has_counts} == {
        4: 64,
        8: 32,
    }
    assert [line.number for line in header.around_counts(1).lines] == [3, 4, 5, 7, 8, 9]
    assert made.elsewhere == ()
    listed = next(file for file in made.to_json()["files"] if file["path"].endswith("mine.cu"))
    assert [line["calls"][0]["line"] for line in listed["lines"]] == [4, 4, 8]


def test_a_problem_of_a_header_names_both_lines(case: Case, tmp_path: Path) -> None:
    strided = KERNEL.replace("fetch(x, i)", "fetch(x, i % 32 * 32 + i / 32)")
    (tmp_path / "mine.cu").write_text(strided)
    (variant,) = targets.own_variants(tmp_path / "mine.cu", CATALOG)
    traffic, findings = trace_case(Case(variant, {}, case.problem))
    sources = {str(source.path): source.text for source in variant.sources}
    made = explain(Subject.of_case(Case(variant, {}, case.problem)), traffic, findings, sources)
    worst = made.problems[0]
    assert worst.place == "line 9 (in moves.cuh:4)" and "32.0 sectors" in worst.evidence
    assert [line.number for line in made.files[0].lines if worst in line.problems] == [9]
    assert [line.number for line in made.files[1].lines if worst in line.problems] == [4]


def test_a_finding_in_a_header_names_both_lines(case: Case, tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(KERNEL.replace("put(out, i,", "put(out, i + 8,"))
    results = api.check([tmp_path / "mine.cu"], random_shapes=0)
    wrong = next(r for r in results if r.status == "wrong")
    assert "mine.cu:11: out-of-bounds: write of 4 bytes" in wrong.reason and ", in moves.cuh:8, block" in wrong.reason
    assert wrong.verdict is not None
    assert [(found.line, found.called_from) for found in wrong.verdict.findings][:1] == [(8, 11)]


def test_a_race_names_where_both_accesses_were_called(case: Case, tmp_path: Path) -> None:
    text = KERNEL.replace("const float b = fetch(x, n - 1 - i);", "__shared__ float row[256];").replace(
        "put(out, i, a > 0.0f ? a : b * 0.0f);",
        "put(row, threadIdx.x, a);\n    put(out, i, fmaxf(fetch(row, threadIdx.x ^ 32), 0.0f));",
    )
    (tmp_path / "mine.cu").write_text(text)
    results = api.check([tmp_path / "mine.cu"], random_shapes=0)
    races = [f for r in results if r.verdict for f in r.verdict.findings if f.rule == "shared-race"]
    sides = {(f.location_to_show[1], f.line, f.related[0].called_from, f.related[0].line) for f in races}
    assert sides <= {(11, 8, 12, 4), (12, 4, 11, 8)} and sides


def test_an_unknown_instruction_of_a_header_is_unsupported_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "moves.cuh").write_text('__device__ void wait() {\n    asm volatile("nosuch.thing;");\n}\n')
    path = tmp_path / "mine.cu"
    path.write_text(
        KERNEL.replace("fetch(x, n - 1 - i)", "0.0f")
        .replace("fetch(x, i)", "x[i]")
        .replace("put(out, i,", "out[i] = (")
    )
    (variant,) = targets.own_variants(path, CATALOG)
    case = Case(variant, {}, CATALOG.operator("relu").from_axes({"n": 7}))
    reason = CpuBackend().unsupported_reason(case.request())
    assert reason is not None and "moves.cuh:2: inline PTX 'nosuch.thing'" in reason
    (tmp_path / "moves.cuh").write_text("// __cluster_dims__ and asm are only spoken of here\n")
    assert CpuBackend().unsupported_reason(case.request()) is None
    path.write_text(path.read_text().replace("__global__ void", "__global__ void __cluster_dims__(2)"))
    assert "clusters from the launch" in str(CpuBackend().unsupported_reason(case.request()))
