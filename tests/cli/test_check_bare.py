"""`opbench check` on files without a header: under the proposed one, or in memory mode."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from support.common import ROOT, Cli

CASES = ROOT / "tests" / "cases" / "bare"
ADOPTED = ROOT / "tests" / "adopting" / "adopted"


def test_a_file_with_main_has_its_bounds_fault_and_its_races_found(cli: Cli, here: Path) -> None:
    shutil.copy(CASES / "bias_gelu.cu", here)
    done = cli("check", "bias_gelu.cu", "--json")
    assert done.returncode == 1, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["status"] == "wrong" and result["operator"] == "memory"
    found = {(one["kind"], one["line"]) for one in result["verdict"]["findings"]}
    assert {("out_of_bounds", 11), ("shared_race", 15)} <= found
    done = cli("check", "bias_gelu.cu")
    rerun = next(line for line in done.stdout.splitlines() if "rerun: opbench " in line)
    again = cli(*shlex.split(rerun.partition("rerun: opbench ")[2]))
    assert again.returncode == 1 and again.stdout == done.stdout


def test_a_mended_file_has_no_fault_and_is_not_called_right(cli: Cli, here: Path) -> None:
    text = (CASES / "bias_gelu.cu").read_text()
    text = text.replace("c <= cols", "c < cols").replace(
        "{\n        if (threadIdx.x < s)", "{\n        __syncthreads();\n        if (threadIdx.x < s)"
    )
    (here / "mended.cu").write_text(text)
    done = cli("check", "mended.cu", "--json")
    (result,) = json.loads(done.stdout)
    assert (done.returncode, result["status"], result["verdict"]["findings"]) == (0, "no fault found", [])
    assert "not compared" in result["reason"]
    assert re.match(r"memory/mended +1 no fault found", cli("check", "mended.cu").stdout)


def test_a_read_of_a_buffer_that_the_host_never_fills_says_how_to_fill_it(cli: Cli, here: Path) -> None:
    (here / "odd.cu").write_text(
        "__global__ void odd(const float* x, float* out, int n) {\n"
        "    const int i = threadIdx.x;\n"
        "    if (i < n) out[i] = x[i] + x[n - 1 - i];\n"
        "}\n"
        "int main() {\n"
        "    int n = 64;\n"
        "    float *x, *out;\n"
        "    cudaMalloc(&x, n * sizeof(float));\n"
        "    cudaMalloc(&out, n * sizeof(float));\n"
        "    odd<<<1, 64>>>(x, out, n);\n"
        "}\n"
    )
    (result,) = json.loads(cli("check", "odd.cu", "--memory", "--json").stdout)
    (finding, *_) = result["verdict"]["findings"]
    assert finding["kind"] == "uninitialised_global" and finding["line"] == 3
    assert any("adopt odd.cu --write" in detail for detail in finding["details"])
    assert cli("adopt", "odd.cu", "--operator", "none", "--write").returncode == 0
    header = (here / "odd.cu").read_text()
    (here / "odd.cu").write_text(header.replace('content = "uninitialised"', 'content = "random"'))
    assert cli("check", "odd.cu").returncode == 0


def test_a_header_that_memory_mode_does_not_find_is_noted_with_its_line(cli: Cli, here: Path) -> None:
    shutil.copy(CASES / "bias_gelu.cu", here)
    text = (here / "bias_gelu.cu").read_text()
    (here / "odd.cu").write_text('#include "neighbour.cuh"\n#include "missing.cuh"\n' + text)
    (here / "neighbour.cuh").touch()
    done = cli("check", "odd.cu", "--memory")
    assert "odd.cu:2: header 'missing.cuh' was not found" in done.stderr and "neighbour.cuh" not in done.stderr


def test_a_file_of_an_operator_is_checked_under_the_header_that_adopt_proposes(cli: Cli, here: Path) -> None:
    shutil.copy(ADOPTED / "sum_arrays.cu", here)
    text = (here / "sum_arrays.cu").read_text()
    done = cli("check", "sum_arrays.cu", "--cpu-only", "--random", "0")
    assert done.returncode == 0 and re.match(r"add/sum_arrays +\d+ right", done.stdout)
    assert "operator add (" in done.stderr and (here / "sum_arrays.cu").read_text() == text
    (here / "sum_arrays.cu").write_text(text.replace("A[i] + B[i]", "A[i] + B[0]"))
    done = cli("check", "sum_arrays.cu", "--cpu-only", "--random", "0")
    assert done.returncode == 1
    rerun = next(line for line in done.stdout.splitlines() if "rerun: opbench " in line)
    assert cli(*shlex.split(rerun.partition("rerun: opbench ")[2])).returncode == 1
    done = cli("check", "sum_arrays.cu", "--memory", "--size", "n=300")
    assert done.returncode == 0 and "no fault found" in done.stdout


def test_a_sum_of_ints_is_compared_with_its_reference(cli: Cli, here: Path) -> None:
    shutil.copy(ADOPTED / "sum_of_ints.cu", here)
    done = cli("check", "sum_of_ints.cu", "--random", "0", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and {(one["operator"], one["axes"]["dtype"]) for one in found} == {("sum", "i32")}


def test_a_file_that_its_operators_header_would_contradict_runs_in_memory_mode(cli: Cli, here: Path) -> None:
    name = "reduce_in_place"
    shutil.copy(ADOPTED / f"{name}.cu", here)
    done = cli("check", f"{name}.cu")
    assert done.returncode == 0 and re.match(rf"memory/{name} +1 no fault found", done.stdout), done.stdout
    assert "would contradict the file" in done.stderr


def test_a_bad_size_is_refused(cli: Cli, here: Path) -> None:
    shutil.copy(CASES / "bias_gelu.cu", here)
    done = cli("check", "bias_gelu.cu", "--size", "rows")
    assert done.returncode == 2 and "--size n=4096" in done.stderr


HISTOGRAM = """\
#include <cassert>
#include <cstdlib>
__global__ void count(const int* x, int* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    assert(x[i] > 100);
    bins[x[i] - 100000] = 1;
    if (i < 7) bins[i] = 1;
}
int main() {
    int n = 1000, *x, *bins, host[1000];
    for (int i = 0; i < n; i++) host[i] = 100 + rand() % 7;
    cudaMalloc(&x, n * sizeof(int));
    cudaMalloc(&bins, 7 * sizeof(int));
    cudaMemcpy(x, host, n * sizeof(int), cudaMemcpyHostToDevice);
    count<<<(n + 127) / 128, 128>>>(x, bins, n);
}
"""


@pytest.mark.parametrize("line", ["    assert(x[i] > 100);\n", "    bins[x[i] - 100000] = 1;\n"])
def test_what_random_contents_decide_is_no_fault_and_no_clean_bill(cli: Cli, here: Path, line: str) -> None:
    other = ({"    assert(x[i] > 100);\n", "    bins[x[i] - 100000] = 1;\n"} - {line}).pop()
    (here / "count.cu").write_text(HISTOGRAM.replace(other, ""))
    done = cli("check", "count.cu", "--json")
    (result,) = json.loads(done.stdout)
    assert (done.returncode, result["status"]) == (3, "unsupported")
    assert "count.cu:6" in result["reason"]


def test_a_fault_ahead_of_what_contents_decide_is_found(cli: Cli, here: Path) -> None:
    text = HISTOGRAM.replace("    assert(x[i] > 100);\n", "").replace("    if (i < 7) bins[i] = 1;\n", "")
    (here / "count.cu").write_text(
        text.replace("    bins[x[i]", "    if (i < 8) bins[i] = 1;\n    __syncthreads();\n    bins[x[i]")
    )
    done = cli("check", "count.cu", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)[0]["verdict"]["findings"]
    assert [(one["kind"], one["line"]) for one in found] == [("out_of_bounds", 6)]


SCATTERED = """\
__global__ void place(const int* at, float* out) { out[at[threadIdx.x]] = threadIdx.x; }
int main() {
    int* at;
    float* out;
    cudaMalloc(&at, 64 * sizeof(int));
    cudaMalloc(&out, 64 * sizeof(float));
    cudaMemcpy(at, 0, 64 * sizeof(int), cudaMemcpyHostToDevice);
    place<<<1, 64>>>(at, out);
}
"""


def test_a_race_of_stores_that_contents_place_is_not_judged(cli: Cli, here: Path) -> None:
    (here / "scattered.cu").write_text(SCATTERED)
    done = cli("check", "scattered.cu", "--json")
    (result,) = json.loads(done.stdout)
    assert (done.returncode, result["status"]) == (0, "no fault found") and "global-race" in result["reason"]
    (here / "scattered.cu").write_text(SCATTERED.replace("] = threadIdx.x", "] += threadIdx.x"))
    (result,) = json.loads(cli("check", "scattered.cu", "--json").stdout)
    assert [one["kind"] for one in result["verdict"]["findings"]] == ["global_race"]


def test_a_launch_on_a_part_of_a_buffer_has_the_buffers_end(cli: Cli, here: Path) -> None:
    text = SCATTERED.replace("out[at[threadIdx.x]]", "out[threadIdx.x]")
    (here / "parts.cu").write_text(text.replace("<<<1, 64>>>(at, out)", "<<<1, 32>>>(at, out + 32)"))
    (result,) = json.loads(cli("check", "parts.cu", "--json").stdout)
    assert result["status"] == "no fault found"
    (here / "parts.cu").write_text(text.replace("<<<1, 64>>>(at, out)", "<<<1, 32>>>(at, out + 33)"))
    (result,) = json.loads(cli("check", "parts.cu", "--json").stdout)
    assert [(one["kind"], one["offset"]) for one in result["verdict"]["findings"]] == [("out_of_bounds", 256)]


def test_the_assumed_end_of_a_buffer_is_no_fault(cli: Cli, here: Path) -> None:
    text = (
        "__global__ void far(float* x) { x[(1 << 26) + threadIdx.x] = 1; }\nvoid run(float* x) { far<<<1, 32>>>(x); }\n"
    )
    (here / "far.cu").write_text(text)
    done = cli("check", "far.cu", "--json")
    (result,) = json.loads(done.stdout)
    assert (done.returncode, result["status"]) == (3, "unsupported")


TWICE = """\
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = 2 * x[i] * x[i];
}
void solve(const float* x, float* y, int n, int threads) { twice<<<(n + threads) / threads, threads>>>(x, y, n); }
"""


def test_a_store_of_one_element_too_many_is_named_where_the_size_is_unknown(cli: Cli, here: Path) -> None:
    (here / "twice.cu").write_text(TWICE)
    done = cli("check", "twice.cu", "--memory")
    assert done.returncode == 0 and "y[1000]" in done.stderr and "if y has n = 1000 elements" in done.stderr
    command = next(line for line in done.stderr.splitlines() if "if y has" in line).partition(": opbench ")[2]
    again = cli(*shlex.split(command), "--json")
    (finding,) = json.loads(again.stdout)[0]["verdict"]["findings"]
    assert (again.returncode, finding["kind"], finding["line"], finding["buffer"]) == (1, "out_of_bounds", 3, "y")
    (here / "twice.cu").write_text(TWICE.replace("<= n", "< n"))
    assert "y[" not in cli("check", "twice.cu", "--memory").stderr


STEPS = """\
__global__ void fold(float* x) {
    __shared__ float sums[256];
    sums[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
        int i = 2 * step * threadIdx.x;
        if (i + step < 256) sums[i] += sums[i + step];
    }
    if (threadIdx.x == 0) x[0] = sums[0];
}
int main() { float* x; cudaMalloc(&x, 1024); cudaMemcpy(x, 0, 1024, cudaMemcpyHostToDevice); fold<<<1, 256>>>(x); }
"""


def test_steps_of_a_reduction_need_a_barrier_and_no_atomic_operation(cli: Cli, here: Path) -> None:
    (here / "fold.cu").write_text(STEPS)
    findings = json.loads(cli("check", "fold.cu", "--json").stdout)[0]["verdict"]["findings"]
    assert {(one["kind"], one["line"]) for one in findings} == {("shared_race", 7)}
    assert all("__syncthreads()" in one["remedy"] and "atomic" not in one["remedy"] for one in findings)


def test_a_guessed_operator_is_named_where_most_cases_are_wrong(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "combine.cu"
    text = (
        "__global__ void combine(const float* a, const float* b, float* c, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n - LESS) c[i] = a[i] + b[i];\n}\n"
        "int main() { float *a, *b, *c; int n = 1000; cudaMalloc(&a, n * 4); cudaMalloc(&b, n * 4);\n"
        "cudaMalloc(&c, n * 4); combine<<<(n + 255) / 256, 256>>>(a, b, c, n); }\n"
    )
    for less, doubted in (("1", True), ("0", False)):
        path.write_text(text.replace("LESS", less))
        done = cli("check", path, "--cpu-only", "--random", "0")
        assert ("combine.cu was taken for add" in done.stderr and "--memory" in done.stderr) == doubted, done.stderr
