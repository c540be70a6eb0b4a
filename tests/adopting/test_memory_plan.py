"""Plans and headers of files without an operator: every size, buffer and argument is read from the host's code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opbench.adopting.memory_plan import MemoryPlan, plan_of, proposed_plan
from opbench.adopting.memory_proposal import propose_memory
from opbench.adopting.parsed_file import read_file
from opbench.errors import UsageError
from opbench.kernels.case import Case
from opbench.kernels.header import has_memory_header, read_memory_header, read_variants
from opbench.kernels.scalar import BufferAddress, Scalar
from support.checks.errors import Refusal, refuses, refuses_name
from support.common import CATALOG

CASES = Path(__file__).parents[1] / "cases" / "bare"

TWO = """\
#include <cstdio>
#include <vector>
#define N 1000
#define DIE(x) do { if ((x) != 0) exit(1); } while (0)
const int BLOCK = 128;
struct Range { int first; float scale; const float* from; };
__global__ void fill(int* counts, unsigned char flag, size_t n) { counts[threadIdx.x] = flag; }
template <typename T, int WIDE> __global__ void spread(Range r, T* to, double by) { to[r.first] = r.from[0] * by; }
float* make(size_t count) {
    float* made;
    cudaMalloc((void**)&made, count * sizeof(float));
    return made;
}
void launch(const float* x, float* y, int first) {
    Range range = {first, 0.5f, x};
    spread<float, 4><<<dim3(2, 3), BLOCK, BLOCK * sizeof(float)>>>(range, y, 2.5);
}
int main(int argc, char** argv) {
    int *counts, blocks = argc > 1 ? atoi(argv[1]) : 4;
    float *in, *out;
    std::vector<float> host(N);
    DIE(cudaMalloc(&counts, N * sizeof(int)));
    DIE(cudaMalloc(&in, host.size() * sizeof(float)));
    cudaMalloc(&out, N * 4);
    cudaMemset(counts, 0, N * 4);
    cudaMemcpy(in, host.data(), N * 4, cudaMemcpyHostToDevice);
    fill<<<blocks, (N + BLOCK - 1) / BLOCK>>>(counts, 3, N);
    launch(in, out, 7);
    cudaMemcpy(host.data(), out, N * 4, cudaMemcpyDeviceToHost);
}
"""


def plan(tmp_path: Path, text: str, **sizes: int) -> MemoryPlan:
    path = tmp_path / "mine.cu"
    path.write_text(text)
    return plan_of(path, (), sizes).reduced


def test_launches_buffers_and_arguments_are_the_hosts(tmp_path: Path) -> None:
    found = plan(tmp_path, TWO)
    first, second = found.launches
    assert (first.kernel, first.grid, first.block) == ("fill", (4, 1, 1), (8, 1, 1))
    assert first.args == ("counts", Scalar("u8", 3), Scalar("u64", 1000))
    assert (second.kernel, second.grid, second.block, second.shared_bytes) == (
        "spread<float, 4>",
        (2, 3, 1),
        (128, 1, 1),
        512,
    )
    assert str(second.args[0]) == "struct(7, f32(0.5), in)" and second.args[1:] == ("out", Scalar("f64", 2.5))
    assert {(b.name, b.elements, b.dtype, b.content, b.is_bounded) for b in found.buffers} == {
        ("counts", 1000, "i32", "zero", True),
        ("in", 1000, "f32", "random", True),
        ("out", 1000, "f32", "uninitialised", True),
    }
    assert found.notes == () and found.sizes == {"N": 1000, "BLOCK": 128, "first": 7, "blocks": 4}


def test_numbers_that_are_only_read_are_random_where_the_host_sets_zero(tmp_path: Path) -> None:
    found = plan(
        tmp_path,
        "__global__ void k(const float* x, const int* at, float* y) { y[threadIdx.x] += x[at[threadIdx.x]]; }\n"
        "int main() { float *x, *y; int* at; cudaMalloc(&x, 256); cudaMalloc(&y, 256); cudaMalloc(&at, 256);\n"
        "cudaMemset(x, 0, 256); cudaMemset(y, 0, 256); cudaMemset(at, 0, 256); k<<<1, 64>>>(x, at, y); }\n",
    )
    assert {(b.name, b.content) for b in found.buffers} == {("x", "random"), ("at", "zero"), ("y", "zero")}


LARGE = """\
#define WIDTH 4096
__global__ void add(const float* a, const float* b, float* c, int n) {
    for (int i = threadIdx.x; i < WIDTH; i += blockDim.x) c[blockIdx.x * WIDTH + i] = a[i] + b[i];
}
int main() {
    int n = 4096, odd = 100001;
    float *a, *b, *c;
    cudaMalloc(&a, n * n * 4); cudaMalloc(&b, odd * 4); cudaMalloc(&c, n * WIDTH * 4);
    add<<<n, 128>>>(a, b, c, odd);
}
"""


def test_large_sizes_are_reduced_together(tmp_path: Path) -> None:
    found = plan(tmp_path, LARGE)
    sizes = dict(found.sizes)
    assert sizes["n"] == sizes["WIDTH"] < 4096 and sizes["n"] % 128 == 0
    assert sizes.get("odd", 100001) % 128 == 100001 % 128
    assert f"#define WIDTH {sizes['WIDTH']}\n" in found.text() and "int n = 4096" in found.text()
    assert found.launches[0].grid == (sizes["n"], 1, 1)
    assert len(found.notes) == 1


def test_sizes_of_a_function_that_nothing_calls_are_assumed_or_given(tmp_path: Path) -> None:
    text = (
        "__global__ void k(const float* x, float* y, int n, float s) { y[threadIdx.x] = s * x[n]; }\n"
        "void run(float* x, float* y, int n, float s) { k<<<(n + 63) / 64, 64>>>(x, y, n, s); }\n"
    )
    found = plan(tmp_path, text)
    assert found.sizes == {"n": 1000} and found.launches[0].grid == (16, 1, 1)
    assert {(b.name, b.content, b.is_bounded) for b in found.buffers} == {
        ("x", "random", False),
        ("y", "uninitialised", False),
    }
    found = plan(tmp_path, text, n=64, x=65, y=64)
    assert found.launches[0].grid == (1, 1, 1) and {(b.elements, b.is_bounded) for b in found.buffers} == {
        (65, True),
        (64, True),
    }
    with refuses_name("variable of the host's code", "m", known=("n", "s", "x", "y")):
        plan(tmp_path, text, m=3)


def test_kernels_that_nothing_launches_get_a_thread_an_element(tmp_path: Path) -> None:
    found = plan(tmp_path, "__global__ void k(float* x, int rows, int n) { x[blockIdx.y * n + threadIdx.y] = rows; }\n")
    assert found.launches[0].block == (16, 16, 1) and found.sizes == {"rows": 64, "n": 64}


HELPERS = """\
__device__ int row() { return threadIdx.AXIS; }
__global__ void k(float2* x, int rows, int n) { x[row() * n].y = rows; }
"""


def test_the_dimensions_of_an_assumed_block_are_those_of_the_threads_index(tmp_path: Path) -> None:
    for axis, block in (("x", (256, 1, 1)), ("y", (16, 16, 1))):
        (launch,) = plan(tmp_path, HELPERS.replace("AXIS", axis)).launches
        assert launch.block == block
    assert any("are assumed" in note for note in propose_memory(read_file(tmp_path / "mine.cu")).notes)
    with refuses("no-launch", "mine.cu", value="k"):
        plan(tmp_path, HELPERS.replace("AXIS", "z"))


def test_an_input_replaces_a_first_value_that_is_no_size(tmp_path: Path) -> None:
    text = (
        "__global__ void k(int* x, int n) { x[n] = 1; }\n"
        'int main() { int n = 0, *x; scanf("%d", &n); cudaMalloc(&x, 4 * n); k<<<n / 2, 2>>>(x, n); }\n'
    )
    assert plan(tmp_path, text).launches[0].args == ("x", 1000)
    assert plan(tmp_path, text.replace("n = 0", "n = 32")).launches[0].args == ("x", 32)


def test_an_expression_without_a_variable_is_to_get_one(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x) { x[0] = 1; }\n"
        "int main() { float* x; cudaMalloc(&x, 4); k<<<blocks_of(7), 32>>>(x); }\n"
    )
    with pytest.raises(UsageError, match=r"assign it to a variable NAME, .*--size NAME=1024"):
        plan(tmp_path, text)


def test_an_unknown_side_of_a_block_is_asked_for_with_a_usual_one(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x) { x[0] = 1; }\n"
        "int main() { float* x; int tile = best_tile(); dim3 block(tile, tile); cudaMalloc(&x, 4);\n"
        "k<<<9, block>>>(x); }\n"
    )
    with pytest.raises(UsageError, match=r"--size tile=16"):
        plan(tmp_path, text)


def test_a_size_that_fills_one_block_is_named_with_a_larger_one(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x, int n) { x[n] = 1; }\n"
        "int main() { float* x; int n = 7; cudaMalloc(&x, n * n * 4);\n"
        "dim3 block(32, 32), grid((n + 31) / 32, (n + 31) / 32); k<<<grid, block>>>(x, n); }\n"
    )
    notes = plan(tmp_path, text).notes
    assert len(notes) == 1 and "--size n=80" in notes[0]
    assert plan(tmp_path, text, n=80).notes == plan(tmp_path, text.replace("n = 7", "n = 33")).notes == ()
    assert plan(tmp_path, text.replace("n * n * 4", "196")).notes == ()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('#include "kernels.cuh"\nint main() { run(); }\n', "'kernels.cuh' was not found"),
        ("#include <kernels.cuh>\nint main() { run(); }\n", "'kernels.cuh' was not found"),
        ("int main() { thrust::device_vector<int> x(9); thrust::sort(x.begin(), x.end()); }\n", "thrust::sort"),
        ("int main() {}\n", "copy a shipped kernel"),
    ],
)
def test_a_file_without_a_kernel_is_refused_with_the_place_of_its_work(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(UsageError, match=re.escape(part)) as caught:
        plan(tmp_path, text)
    assert caught.value.kind == "no-kernel"


def test_a_size_that_cannot_be_read_is_asked_for_by_its_name(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x) { x[0] = 1; }\n"
        "int main() { float* x; int lines = count_lines(), n = lines * 2; cudaMalloc(&x, 4 * n);\n"
        "k<<<n / 2, 32>>>(x); }\n"
    )
    with pytest.raises(UsageError, match=r"opbench check \S+ --size lines=1024"):
        plan(tmp_path, text)
    assert plan(tmp_path, text, lines=8).launches[0].grid == (8, 1, 1)


def test_indices_that_come_from_contents_are_known(tmp_path: Path) -> None:
    text = """\
__global__ void count(const int* x, int* bins, int n) {
    int i = threadIdx.x;
    int bin = x[i] / 4;
    atomicAdd(&bins[bin], 1);
    bins[i] += 1;
    bins[x[i]] = 0;
}
void run(int* x, int* bins, int n) { count<<<1, n>>>(x, bins, n); }
"""
    assert {4, 6} <= plan(tmp_path, text).data_lines and not {3, 5} & plan(tmp_path, text).data_lines
    assert plan(tmp_path, text).scatter_lines == {6}
    tested = plan(tmp_path, text.replace("    bins[i] += 1", "    if (threadIdx.x == 0) bins[i] += x[i]"))
    assert 5 not in tested.data_lines  # a comparison gives `x` no value
    updated = plan(tmp_path, text.replace("bins[x[i]] = 0", "bins[x[i]] = bins[x[i]] + 1"))
    assert 6 in updated.data_lines and updated.scatter_lines == set()


@pytest.mark.parametrize("text", [TWO, LARGE])
def test_a_file_with_the_proposed_header_runs_as_one_without(tmp_path: Path, text: str) -> None:
    without = plan(tmp_path, text)
    seen = without.text()
    path = tmp_path / "mine.cu"
    header = propose_memory(read_file(path)).text
    path.write_text(header + text)
    assert has_memory_header(path)
    found = plan_of(path).reduced
    assert (found.launches, found.buffers, found.sizes) == (without.launches, without.buffers, without.sizes)
    assert found.text().count("\n") == header.count("\n") + text.count("\n")
    assert found.text().removeprefix(header) == seen  # the sizes in the header are not the kernel's


def test_a_header_names_the_hosts_sizes_and_keeps_its_expressions(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(LARGE)
    found = read_memory_header(tmp_path / "mine.cu", (), propose_memory(read_file(tmp_path / "mine.cu")).text)
    assert found.sizes == {"n": 4096, "odd": 100001, "WIDTH": 4096}
    assert [(b.name, b.elements) for b in found.buffers] == [("a", "n * n"), ("b", "odd"), ("c", "n * WIDTH")]
    (launch,) = found.launch
    assert (launch.grid, launch.block, launch.args) == (("n",), ("128",), ("a", "b", "c", "odd"))


def test_guesses_of_a_header_without_an_operator_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(TWO)
    assert [one.subject for one in propose_memory(read_file(path)).guesses] == ["blocks"]
    path.write_text(
        "__global__ void k(float* x, int n) { x[n] = 1; }\nvoid run(float* x, int n) { k<<<1, 32>>>(x, n); }"
    )
    assert [(one.subject, one.value) for one in propose_memory(read_file(path)).guesses] == [("n", "1000")]


HEADED = """\
// /// opbench
// operator = "none"
// sizes = {{ n = 100 }}
// launch = [{{ kernel = "k", grid = ["1"], block = ["n"], args = ["x", "n"] }}]
// buffers.x = {buffer}
// ///
__global__ void k(float* x, int n) {{ x[threadIdx.x] = n; }}
"""


@pytest.mark.parametrize(
    ("buffer", "refusal"),
    [
        ('{ type = "f31" }', Refusal("not-allowed", "buffers.x.type", at=("mine.cu", 5))),
        ('{ content = "poison" }', Refusal("not-allowed", "buffers.x.content", at=("mine.cu", 5))),
        ('{ element = "n" }', Refusal("unknown-name", "key", value="element", at=("mine.cu", 5))),
        ('{ elements = "m" }', Refusal("unknown-name", "name", value="m")),
    ],
)
def test_what_a_header_without_an_operator_may_not_say_is_refused(
    tmp_path: Path, buffer: str, refusal: Refusal
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(HEADED.format(buffer=buffer))
    with refuses(refusal):
        plan_of(path)


def test_sizes_and_elements_of_a_header_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(HEADED.format(buffer="{}"))
    found = plan_of(path).reduced
    assert found.launches[0].block == (100, 1, 1) and not found.buffers[0].is_bounded
    found = plan_of(path, (), {"n": 7, "x": 6}).reduced
    assert found.launches[0].block == (7, 1, 1) and (found.buffers[0].elements, found.buffers[0].is_bounded) == (
        6,
        True,
    )
    with refuses_name("size of the header", "m", known=("n", "x")):
        plan_of(path, (), {"m": 3})


def test_only_a_check_takes_a_header_without_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(HEADED.format(buffer="{}"))
    with refuses("no-operator", "operator", value="none", at=("mine.cu", 2)):
        CATALOG.own_variants(path)


def test_a_variable_that_counts_on_from_itself_is_asked_for(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x) { x[0] = 1; }\n"
        "int main() { float* x; int n = limit(n, 7) * 2; cudaMalloc(&x, 4 * n); k<<<n, 32>>>(x); }\n"
    )
    with pytest.raises(UsageError, match=r"--size n=1024"):
        plan(tmp_path, text)


READ = """\
#define COUNT  (1 << 10)
#define imin(a, b) ((a) < (b) ? (a) : (b))
dim3 shape(32, 2, 1);
__global__ void k(float* x, int n) { x[n] = 1; }
template <int WIDE> void launch(float* x, int n) { k<<<n / WIDE, WIDE>>>(x, n); }
int main(int argc, char** words) {
    float *x, *y, *z;
    int rows, cols = atoi(words[1]), large = 1'000;
    scanf("%d", &rows);
    cudaMalloc(&x, COUNT * sizeof(float));
    cudaMalloc(&y, large * sizeof(float));
    cudaMalloc(&z, picture.size() * sizeof(float));
    k<<<imin(COUNT, 7), shape>>>(x, rows);
    k<<<1, 1>>>(y, cols);
    launch<16>(z, 64);
}
"""


def test_what_host_code_has_of_its_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(READ)
    found = plan_of(path).reduced
    assert [(one.grid, one.block) for one in found.launches] == [
        ((7, 1, 1), (32, 2, 1)),
        ((1, 1, 1), (1, 1, 1)),
        ((4, 1, 1), (16, 1, 1)),
    ]
    assert [(b.elements, b.is_bounded) for b in found.buffers[:2]] == [(1024, True), (1000, True)]
    assert not found.buffers[2].is_bounded
    guesses = {one.subject: one.value for one in propose_memory(read_file(path)).guesses}
    assert guesses["rows"] == guesses["cols"] == "64" and "the size of 'z'" in guesses


def test_a_shape_that_a_function_is_given_is_assumed(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x, int n) { x[n] = 1; }\\n"
        "void run(float* x, int n, dim3 shape) { dim3 grid(n / shape.x, n / shape.y); k<<<grid, shape>>>(x, n); }\\n"
    )
    (launch,) = plan(tmp_path, text).launches
    assert (launch.grid, launch.block) == ((62, 62, 1), (16, 16, 1))


SEVERAL = """\
struct Lists { int* counts; double* sums; };
__global__ void k(float* x, const float* y, int n) { x[n] = y[n]; }
__global__ void fill(int* counts, double* sums) { counts[0] = 1; sums[0] = 1; }
void first() { float *x, *y; int m = 3, n = 10; cudaMalloc(&x, n * 4); cudaMalloc(&y, n * 4); k<<<1, m>>>(x, y, n); }
void second() { float *x, *y; int m = 5, n = 20; cudaMalloc(&x, n * 4); cudaMalloc(&y, n * 4); k<<<1, m>>>(x, y, n); }
int main() {
    float *scanned, *out;
    Lists lists;
    first();
    second();
    cudaMalloc(&lists.counts, 8 * sizeof(int));
    cudaMalloc(&lists.sums, 9 * sizeof(double));
    fill<<<1, 1>>>(lists.counts, lists.sums);
    cudaMalloc(&scanned, 40); cudaMalloc(&out, 40);
    scan_elsewhere(scanned, 10);
    k<<<1, 1>>>(out, scanned, 10);
}
"""


def test_variables_of_one_name_members_and_what_other_files_fill_are_kept_apart(tmp_path: Path) -> None:
    found = plan(tmp_path, SEVERAL)
    assert [one.block[0] for one in found.launches] == [3, 5, 1, 1]
    sizes = {b.name: (b.elements, b.dtype, b.content) for b in found.buffers}
    assert [sizes[str(name)][0] for one in found.launches[:2] for name in one.args[:2]] == [10, 10, 20, 20]
    assert [sizes[str(name)][:2] for name in found.launches[2].args] == [(8, "i32"), (9, "f64")]
    assert [sizes[str(name)][2] for name in found.launches[3].args[:2]] == ["uninitialised", "random"]


def test_a_parameter_named_y_asks_for_no_second_dimension(tmp_path: Path) -> None:
    found = plan(tmp_path, "__global__ void k(const float* x, float* y, int n) { y[threadIdx.x] = x[n - 1]; }\n")
    assert found.launches[0].block == (256, 1, 1)


def test_sizes_are_reduced_in_a_file_with_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(LARGE.replace("\n", "\r\n").encode())
    found = plan_of(path).reduced
    assert f"#define WIDTH {found.sizes['WIDTH']}\r\n" in found.text()


def test_a_launch_by_a_pointer_to_a_function_and_a_type_that_only_the_kernel_says_are_read(tmp_path: Path) -> None:
    text = (
        "__global__ void k(int* x, int n) { x[n] = 1; }\n"
        "void frame(int* x, int ticks) { k<<<3, 5>>>(x, ticks); }\n"
        "int main() { animate(frame); }\n"
    )
    (launch,) = plan(tmp_path, text).launches
    assert (launch.grid, launch.block) == ((3, 1, 1), (5, 1, 1))
    text = "__global__ void k(int* x) { x[0] = 1; }\nint main() { int a[9], *x; cudaMalloc(&x, 36); k<<<1, 1>>>(x); }\n"
    assert [(b.elements, b.dtype) for b in plan(tmp_path, text).buffers] == [(9, "i32")]


def test_launches_that_a_header_leaves_out_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        "__global__ void k(int* x) { x[0] = 1; }\n__global__ void other(int* x) { x[0] = 1; }\n"
        "void second(int* x) { other<<<1, 1>>>(x); }\nint main() { int* x; cudaMalloc(&x, 4); k<<<1, 1>>>(x); }\n"
    )
    assert any("launches of other" in note for note in propose_memory(read_file(path)).notes)


VERSIONS = """\
__global__ void k(const float* x, float* y, int n) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void twice(const half* x, float* y, int n) { y[threadIdx.x] = 2 * (float)x[threadIdx.x]; }
template <int WIDE> __global__ void wide(float* y) { y[threadIdx.x] = WIDE; }
void first(const float* x, float* y, int n) { const int block = 64; k<<<n / block, block>>>(x, y, n); }
void second(const half* x, float* y, int n) { const int block = 128; twice<<<n / block, block>>>(x, y, n); }
template <int WIDE> void third(float* y) { wide<WIDE><<<1, WIDE>>>(y); }
"""


def test_all_functions_that_nothing_calls_are_launched_in_the_order_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(VERSIONS)
    proposal, plans = proposed_plan(path, (), {"n": 512})
    assert [(one.kernel, one.grid[0], one.block[0]) for one in plans.reduced.launches] == [
        ("k", 8, 64),
        ("twice", 4, 128),
    ]
    assert [one.args for one in plans.reduced.launches] == [("x", "y", 512), ("x_2", "y", 512)]
    assert {b.name: b.dtype for b in plans.reduced.buffers} == {"x": "f32", "y": "f32", "x_2": "f16"}
    (note,) = [note for note in proposal.notes if "third" in note]
    assert "not checked" in note and "WIDE" in note


def test_a_shape_outside_of_functions_is_set_by_the_function_that_main_calls(tmp_path: Path) -> None:
    text = """\
dim3 block, grid;
__global__ void k(float* x) { x[threadIdx.x] = 1; }
void choose(int n) { block.x = 64; block.y = 2; grid.x = (n - 1) / block.x + 1; }
void frame() { float* x; cudaMalloc(&x, 4096); k<<<grid, block>>>(x); }
int main() { choose(1000); START }
"""
    for start in ("frame();", "on_key(frame);"):
        (launch,) = plan(tmp_path, text.replace("START", start)).launches
        assert (launch.grid, launch.block) == ((16, 1, 1), (64, 2, 1))


TENSORS = """\
#include <torch/extension.h>
__global__ void k(const float* x, const float* w, float* y, int rows, int n) { y[threadIdx.x] = x[threadIdx.x]; }
torch::Tensor run(torch::Tensor x, torch::Tensor w, int kernel_size) {
    const int rows = static_cast<int>(x.size(0));
    auto y = torch::zeros({rows, x.size(1)}, x.options());
    auto scratch = torch::empty_like(x);
    k<<<(x.size(1) + 255) / 256, 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), rows, x.size(1));
    k<<<1, kernel_size>>>(x.data_ptr<float>(), w.data_ptr<float>(), scratch.data_ptr<float>(), rows, x.size(1));
    return y;
}
"""


def test_sizes_of_tensors_are_assumed_or_given(tmp_path: Path) -> None:
    found = plan(tmp_path, TENSORS)
    first, second = found.launches
    assert (first.grid, first.args) == ((1, 1, 1), ("x", "w", "y", 64, 64))
    assert second.args[2] == "scratch"
    assert {b.name: (b.elements if b.is_bounded else 0, b.content) for b in found.buffers} == {
        "x": (0, "random"),
        "w": (0, "random"),
        "y": (64 * 64, "zero"),
        "scratch": (0, "uninitialised"),
    }
    assert plan(tmp_path, TENSORS, rows=5).launches[0].args[3] == 5
    guesses = {one.subject for one in propose_memory(read_file(tmp_path / "mine.cu")).guesses}
    assert guesses >= {"rows", "x.size(1)"}


MACROS = """\
template <typename T, int WIDE, int HEAD> __global__ void k(const T* x, T* y, int n) { y[0] = x[WIDE + HEAD]; }
torch::Tensor run(torch::Tensor x) {
    const int n = x.size(0);
    auto y = torch::zeros_like(x);
    HEAD_SWITCH(n, [&] { k<scalar_t, 8, kHead><<<n, 32>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n); });
    return y;
}
"""


def test_a_template_argument_that_a_macro_defines_is_assumed_or_given(tmp_path: Path) -> None:
    found = plan(tmp_path, MACROS)
    assert [one.kernel for one in found.launches] == ["k<float, 8, 64>"]
    assert {b.name: b.content for b in found.buffers} == {"x": "random", "y": "zero"}
    guesses = [one.subject for one in propose_memory(read_file(tmp_path / "mine.cu")).guesses]
    assert guesses == ["n", "kHead"]
    assert [one.kernel for one in plan(tmp_path, MACROS, kHead=16).launches] == ["k<float, 8, 16>"]


def test_the_length_of_a_text_is_assumed(tmp_path: Path) -> None:
    text = (
        "__global__ void k(const char* x, int n) { n = x[n - 1]; }\n"
        "int main() { char* x; int n = strlen(words); cudaMalloc(&x, n); k<<<n / 8, 8>>>(x, n); }\n"
    )
    assert plan(tmp_path, text).launches[0].args == ("x", 1000)


def test_windows_are_assumed_to_be_smaller_than_what_they_slide_over(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x, int n, int w, int s) { x[n] = w + s; }\n"
        "void run(float* x, int input_size, int kernel_size, int stride) {\n"
        "k<<<(input_size - kernel_size) / stride + 1, 32>>>(x, input_size, kernel_size, stride); }\n"
    )
    (launch,) = plan(tmp_path, text).launches
    assert launch.args == ("x", 1000, 3, 1)


def test_a_batch_is_assumed_to_be_small_if_there_are_other_sizes(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x, int a, int b, int c, int d) { x[a] = b + c + d; }\n"
        "void run(float* x, int batch_size, int heads, int rows, int n) {\n"
        "k<<<batch_size * heads, 32>>>(x, batch_size, heads, rows, n); }\n"
    )
    assert plan(tmp_path, text).launches[0].args == ("x", 2, 2, 64, 64)
    text = text.replace("int heads, int rows, int n", "int n").replace(
        "batch_size, heads, rows, n)", "batch_size, n, 1, 1)"
    )
    assert plan(tmp_path, text.replace("* heads", "")).launches[0].args == ("x", 64, 64, 1, 1)


def test_sizes_are_assumed_to_be_no_smaller_than_a_tile(tmp_path: Path) -> None:
    """A kernel without bounds checks overwrites its own elements if a row is shorter than its tile."""
    text = """\
template <int THREADS, int TILE_M, int TILE_N>
__global__ void fill(float* c, int m, int n) {
    for (int e = threadIdx.x; e < TILE_M * TILE_N; e += THREADS)
        c[(blockIdx.y * TILE_M + e / TILE_N) * n + blockIdx.x * TILE_N + e % TILE_N] = 1;
}
void run(float* c, int m, int n) {
    constexpr int THREADS = 256, TILE_M = 32, TILE_N = 128;
    fill<THREADS, TILE_M, TILE_N><<<dim3((n + TILE_N - 1) / TILE_N, (m + TILE_M - 1) / TILE_M), THREADS>>>(c, m, n);
}
"""
    assert plan(tmp_path, text).sizes == {"m": 128, "n": 128}


def test_a_shift_in_a_template_argument_does_not_end_the_arguments(tmp_path: Path) -> None:
    text = (
        "template <int WARPS> __global__ void k(float* x) { x[WARPS] = 1; }\n"
        "int main() { float* x; const int block = 512, warps = (block + 31) >> 5; cudaMalloc(&x, 400);\n"
        "k<warps><<<1, block>>>(x); }\n"
    )
    assert [one.kernel for one in plan(tmp_path, text).launches] == ["k<((512 + 31) >> 5)>"]


def test_template_arguments_are_the_constants_of_the_function_that_launches(tmp_path: Path) -> None:
    text = (
        "template <int SIDE> __global__ void k(float* x) { x[SIDE] = 1; }\n"
        "void first(float* x) { const int SIDE = 8; k<SIDE><<<1, SIDE>>>(x); }\n"
        "void second(float* x) { const int SIDE = 4; k<SIDE * 2><<<1, SIDE>>>(x); }\n"
        "int main() { float* x; cudaMalloc(&x, 400); first(x); second(x); }\n"
    )
    found = [(one.kernel, one.block[0]) for one in plan(tmp_path, text).launches]
    assert found == [("k<8>", 8), ("k<4 * 2>", 4)]


def test_a_buffer_of_unknown_size_holds_what_the_launch_stores(tmp_path: Path) -> None:
    text = (
        "__global__ void k(unsigned char* x) { x[blockIdx.x * 4 + 3] = 1; }\n"
        "int main() { unsigned char* x; cudaMalloc(&x, picture.size()); k<<<1000000, 1>>>(x); }\n"
    )
    (buffer,) = plan(tmp_path, text).buffers
    assert not buffer.is_bounded and buffer.elements >= 4_000_000


CHUNKS = """\
__global__ void square(const float* in, float* out, int n) { out[threadIdx.x] = in[threadIdx.x] * in[n - 1]; }
int main() {
    const int total = 96, parts = 3;
    float *from, *to;
    cudaMalloc(&from, total * sizeof(float));
    cudaMalloc(&to, total * sizeof(float));
    cudaMemcpy(from, 0, total * 4, cudaMemcpyHostToDevice);
    for (int i = 0; i < parts; ++i) {
        int at = i * (total / parts);
        square<<<1, total / parts>>>(from + at, &to[at], total / parts);
    }
}
"""


def test_each_turn_of_a_loop_gets_its_part_of_a_buffer(tmp_path: Path) -> None:
    found = plan(tmp_path, CHUNKS)
    assert [one.args[:2] for one in found.launches] == [
        ("from", "to"),
        (BufferAddress(("from",), 128), BufferAddress(("to",), 128)),
        (BufferAddress(("from",), 256), BufferAddress(("to",), 256)),
    ]
    assert [one.buffers() for one in found.launches] == [{"from", "to"}] * 3
    (tmp_path / "mine.cu").write_text(CHUNKS.replace("parts = 3", "parts = 6"))
    longer = propose_memory(read_file(tmp_path / "mine.cu"))
    assert len(longer.notes) == 1 and longer.text.count("square") == 4


STEPS = """\
__global__ void step(const float* now, float* next) { next[threadIdx.x] = now[threadIdx.x]; }
int main() {
    float *a, *b;
    cudaMalloc(&a, 64 * 4);
    cudaMalloc(&b, 64 * 4);
    float *now = a, *next = b;
    for (int i = 0; i < TURNS; i++) { step<<<1, 64>>>(now, next); CHANGE }
}
"""


@pytest.mark.parametrize(
    ("turns", "change", "pairs"),
    [
        (3, "std::swap(now, next);", [("a", "b"), ("b", "a"), ("a", "b")]),
        (2, "float* old = now; now = next; next = old;", [("a", "b"), ("b", "a")]),
        (100, "", [("a", "b")]),
        (100, "std::swap(now, next);", [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")]),
    ],
)
def test_swapped_pointers_are_followed(tmp_path: Path, turns: int, change: str, pairs: list[tuple[str, str]]) -> None:
    found = plan(tmp_path, STEPS.replace("TURNS", str(turns)).replace("CHANGE", change))
    assert [one.args for one in found.launches] == pairs


def test_a_loop_that_halves_a_size_keeps_to_it(tmp_path: Path) -> None:
    text = """\
__global__ void fold(float* x, int half) { x[threadIdx.x] += x[threadIdx.x + half]; }
int main() {
    const int n = 4096;
    float* x;
    cudaMalloc(&x, n * 4);
    cudaMemcpy(x, 0, n * 4, cudaMemcpyHostToDevice);
    for (int half = n / 2; half > 0; half >>= 1) fold<<<1, 32>>>(x, half);
}
"""
    assert [one.args[1] for one in plan(tmp_path, text, n=64).launches] == [32, 16, 8, 4]


def test_one_case_of_a_switch_is_launched_with_a_block_of_its_tile(tmp_path: Path) -> None:
    text = """\
template <int TILE> __global__ void tiled(float* x) { x[threadIdx.y * TILE + threadIdx.x] = 1; }
void run(float* x, dim3 block) {
    switch (block.y) {
        case 8: tiled<8><<<1, block>>>(x); break;
        case 16: tiled<16><<<1, block>>>(x); break;
    }
}
"""
    found = plan(tmp_path, text)
    assert [(one.kernel, one.block) for one in found.launches] == [("tiled<8>", (8, 8, 1))]


def test_a_pointer_to_pointers_is_refused(tmp_path: Path) -> None:
    text = "__global__ void rows(float** x) { x[0][threadIdx.x] = 1; }\nvoid run(float** x) { rows<<<1, 32>>>(x); }\n"
    with refuses("pointer-to-pointers", "x", value="rows"):
        plan(tmp_path, text)


def test_a_part_of_a_buffer_is_for_headers_without_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "part.cu"
    path.write_text(
        '// /// opbench\n// operator = "relu"\n// title = "part"\n'
        '// launch = [{ kernel = "part", grid = ["1"], block = ["1"], '
        'args = [{ buffer = "x", offset = "1" }, "out", "n"] }]\n'
        "// ///\n__global__ void part(const float* x, float* out, int n) { out[0] = x[0]; }\n"
    )
    (variant,) = read_variants(path)
    case = Case(variant, {}, CATALOG.operator("relu").from_axes({"n": 8}))
    with refuses("part-of-argument", "x"):
        case.launches(1)


def test_no_size_is_reduced_below_what_a_block_works_on(tmp_path: Path) -> None:
    text = """\
__global__ void tile(float* x, int n) { for (int i = 0; i < 4; i++) x[blockIdx.x * 256 + i * 64 + threadIdx.x] = n; }
int main() {
    const int n = 1 << 22;
    float* x;
    cudaMalloc(&x, n * sizeof(float));
    tile<<<n / 256, 64>>>(x, n);
}
"""
    found = plan(tmp_path, text)
    assert found.sizes["n"] < 1 << 22 and found.sizes["n"] % 256 == 0
