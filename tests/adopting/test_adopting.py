"""Headers proposed from launches as strangers write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.adopting.adopting import NoOperator, adopt, propose
from opbench.adopting.matching import Guess
from opbench.adopting.parsed_file import read_file
from opbench.adopting.proposal import Proposal
from opbench.adopting.stores import stores
from opbench.errors import UsageError
from opbench.kernels.header import has_header
from opbench.source.scan import declarations
from support.checks.errors import refuses
from support.common import CATALOG

pytestmark = pytest.mark.usefixtures("forked_workers")

OPERATORS = {name: CATALOG.operator(name) for name in ("relu", "add", "matmul", "softmax", "sum")}

MATMUL = """\
#define TILE 16
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
template <typename T, int N_ = 1>
__global__ void sgemm(const T* A, const T* B, T* C, int M, int N, int K, float alpha, float beta) {}
void run(float* a, float* b, float* c, int rows, int cols, int depth, cudaStream_t stream) {
    // sgemm<<<1, 1>>>(a, b, c, 1, 1, 1);
    dim3 block(TILE, TILE), unused;
    float alpha = 2.0f;
    dim3 grid = dim3(CEIL_DIV(cols, TILE), (rows + block.y - 1) / block.y);
    sgemm<float><<<grid, block, 2 * TILE * sizeof(float), stream>>>(a, b, c, rows, cols, depth, alpha, 0);
}
"""
ADD = """\
__global__ void vectorAdd(const float* A, const float* B, float* C, int numElements) {}
int main() {
    int count = 50000, threads = 256;
    vectorAdd<<<(count + threads - 1) / threads, threads>>>(dA, dB, dC, count);
}
"""
UPDATE = """\
__global__ void relu_(float* data, bool flag, double scale, size_t n) {}
void go(float* p, size_t r) { relu_<<<min(1024, (int)ceil(r / 128.0)), 128>>>(p, true, 1.5, r); }
"""
FIXED = """\
__global__ void other(float* x) {}
__global__ void sumAll(float* in, float* out, int n) {}
int main() { sumAll<<<4096 / 256, 256>>>(in, out, 4096); other<<<1, 1>>>(in); }
"""
COOPERATIVE = """\
template <int WIDE>
__global__ void sumAll(const float* in, float* out, size_t count) {}
void run(float* d_in, float* d_out, size_t n) {
    dim3 grid(132), block(256, 1, 1);
    size_t bytes = 256 * sizeof(float);
    void* arguments[] = {&d_in, (void*)&d_out, &n};
    cudaLaunchCooperativeKernel((void*)sumAll<4>, grid, block, arguments, bytes, 0);
}
"""


def header(tmp_path: Path, text: str, **wanted: str) -> tuple[str, list[str]]:
    """The lines of a proposal but its operator's and title, and its notes."""
    path = tmp_path / "mine.cu"
    path.write_text(text)
    found = propose(read_file(path), OPERATORS, **wanted)
    assert found.text.startswith("// /// opbench\n// operator =") and found.text.endswith("\n// ///\n")
    return "\n".join(found.lines[2:]), found.notes


def guesses(tmp_path: Path, **wanted: str) -> list[Guess]:
    """What the proposal for the file that `header` wrote last guesses."""
    return propose(read_file(tmp_path / "mine.cu"), OPERATORS, **wanted).guesses


def test_macros_dim3_and_template_arguments_are_read(tmp_path: Path) -> None:
    found, notes = header(tmp_path, MATMUL)
    assert found == (
        'launch = [{ kernel = "sgemm<float>", grid = ["cdiv(n, 16)", "cdiv(m, 16)"], block = ["16", "16"], '
        'shared = "(2 * 16) * 4", args = ["a", "b", "out", "m", "n", "k", 2.0, 0.0] }]'
    )
    assert notes == []


def test_launches_by_functions_of_the_runtime_are_read(tmp_path: Path) -> None:
    found, notes = header(tmp_path, COOPERATIVE, operator="sum")
    assert 'kernel = "sumAll<4>", grid = ["132"], block = ["256", "1", "1"], shared = "256 * 4"' in found
    assert 'args = ["x", "out", "n"], cooperative = true }' in found
    plain, _ = header(tmp_path, COOPERATIVE.replace("Cooperative", ""), operator="sum")
    assert 'args = ["x", "out", "n"] }' in plain
    assert len(notes) == 1 and notes[0].startswith("the grid does not depend on an axis")


def test_a_later_variable_of_a_declaration_is_read(tmp_path: Path) -> None:
    launch = "dim3 block(256), grid((count + 255) / 256);\n    vectorAdd<<<grid, block>>>"
    found, notes = header(tmp_path, ADD.replace("vectorAdd<<<(count + threads - 1) / threads, threads>>>", launch))
    assert 'grid = ["cdiv(n, 256)"], block = ["256"]' in found and notes == []


def test_a_launch_tells_which_variable_is_the_axis(tmp_path: Path) -> None:
    found, notes = header(tmp_path, ADD)
    assert found == (
        'launch = [{ kernel = "vectorAdd", grid = ["cdiv(n, 256)"], block = ["256"], args = ["a", "b", "out", "n"] }]'
    )
    assert notes == []


def test_one_pointer_is_updated_and_literals_keep_their_type(tmp_path: Path) -> None:
    found, notes = header(tmp_path, UPDATE)
    assert found == (
        'in_place = { out = "x" }\n'
        'launch = [{ kernel = "relu_", grid = ["min(1024, cdiv(n, 128))"], block = ["128"], '
        'args = ["out", true, { f64 = 1.5 }, "n"] }]'
    )
    assert notes == []


def test_a_size_that_the_host_is_given_is_tuned(tmp_path: Path) -> None:
    text = FIXED.replace("int main()", "void launch(float* in, float* out, int n, const int block_size)").replace(
        "4096 / 256, 256", "(n + block_size - 1) / block_size, block_size"
    )
    found, _ = header(tmp_path, text.replace("in, out, 4096", "in, out, n"))
    assert found == (
        "tune = { BLOCK_SIZE = [256, 128, 512] }\n"
        'launch = [{ kernel = "sumAll", grid = ["cdiv(n, BLOCK_SIZE)"], block = ["BLOCK_SIZE"], '
        'args = ["x", "out", "n"] }]'
    )


def test_what_is_guessed_is_said(tmp_path: Path) -> None:
    found, notes = header(tmp_path, FIXED)
    assert 'grid = ["n // 256"]' in found and 'args = ["x", "out", "n"]' in found
    assert notes == ["the file has other kernels: other; choose one with: --kernel NAME"]
    assert [(guess.subject, guess.value) for guess in guesses(tmp_path)] == [
        ("the output", "out"),
        ("n", "a multiple of 256"),
    ]
    text = ADD.replace("(count + threads - 1) / threads", "blocks_of(count)")
    header(tmp_path, text)
    found = propose(read_file(tmp_path / "mine.cu"), OPERATORS).contradictions
    assert [(one.kind, one.name) for one in found] == [("launch", "grid")]


@pytest.mark.parametrize(
    ("text", "wanted", "words"),
    [
        (ADD.replace("vectorAdd", "blur"), {}, "no operator fits kernel 'blur'"),
        (ADD, {"operator": "ad"}, "unknown operator 'ad'; did you mean 'add'?"),
        (ADD, {"kernel": "vectorAd"}, "unknown kernel 'vectorAd'; did you mean 'vectorAdd'?"),
        ("int main() {}", {}, "contains no __global__ function"),
    ],
)
def test_what_cannot_be_told_is_asked_for(tmp_path: Path, text: str, wanted: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        header(tmp_path, text, **wanted)
    assert words in str(caught.value)


ADOPTED = Path(__file__).parent / "adopted"
SEEN = {
    "transpose_texture": 'textures = { tex = { tensor = "x", size = ["cols", "rows"], address = "wrap", '
    "normalized = true } }",
    "transpose_surface": 'surfaces = { target = { tensor = "out", size = ["rows", "cols"] } }',
    "copy_fetch": 'textures = { source = { tensor = "x", size = ["n"], memory = "linear" } }',
    "copy_pixels": 'textures = { pixels = { tensor = "x", size = ["n // 4"], memory = "linear", channels = 4 } }',
}


@pytest.mark.parametrize("name", sorted(SEEN))
def test_textures_that_the_host_creates_are_in_the_header(name: str) -> None:
    operators = {operator: CATALOG.operator(operator) for operator in ("transpose", "copy")}
    found = propose(read_file(ADOPTED / f"{name}.cu"), operators)
    assert SEEN[name] in found.lines, found.text
    said = ["a texel of 'pixels' has 4 elements, so the size in texels is n // 4"] if name == "copy_pixels" else []
    assert found.notes == said


@pytest.mark.parametrize("name", ["transpose_texture", "transpose_surface", "copy_fetch", "relu_params", "relu_listed"])
def test_a_file_with_textures_or_structures_is_right_under_its_proposed_header(name: str, tmp_path: Path) -> None:
    operators = {operator: CATALOG.operator(operator) for operator in ("transpose", "copy", "relu")}
    path = tmp_path / f"{name}.cu"
    path.write_text(propose(read_file(ADOPTED / path.name), operators).text + (ADOPTED / path.name).read_text())
    results = api.check([path], random_shapes=1, cpu_only=True)
    assert {result.status for result in results} == {"right"}, [result.reason for result in results]


def test_texture_references_of_old_are_refused_at_their_line(tmp_path: Path) -> None:
    path = tmp_path / "old.cu"
    path.write_text("#include <cuda_runtime.h>\ntexture<float, 2, cudaReadModeElementType> image;\n" + ADD)
    with refuses("texture-reference", at=("old.cu", 2)):
        propose(read_file(path), OPERATORS)


def test_refusals_name_the_line_that_they_are_about(tmp_path: Path) -> None:
    path = tmp_path / "blur.cu"
    path.write_text("\n\n" + ADD.replace("vectorAdd", "blur"))
    with refuses("no-operator", "blur") as raised:
        propose(read_file(path), OPERATORS)
    assert str(raised.value).startswith(f"{path}:3: ")
    path.write_text("\n// /// opbench\n// ///\n" + ADD)
    with refuses("has-header", at=("blur.cu", 2)):
        adopt(path, CATALOG)


def test_a_member_hides_no_variable_of_its_name(tmp_path: Path) -> None:
    text = ADD.replace("vectorAdd<<<", "Sizes s; s.count = other; s.threads = 7;\n    vectorAdd<<<")
    assert header(tmp_path, text)[0] == header(tmp_path, ADD)[0]


@pytest.mark.parametrize("name", ["relu_params", "relu_listed"])
def test_structures_are_given_field_by_field(name: str) -> None:
    found = propose(read_file(ADOPTED / f"{name}.cu"), OPERATORS)
    fields = '["n", 0.0, "x", "out", { u64 = "1" }, { u64 = "n - 1" }, true]'
    assert f"args = [{{ struct = {fields} }}]" in found.text and not found.notes


def test_a_structure_that_no_header_gives_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "odd_relu.cu"
    path.write_text((ADOPTED / "relu_params.cu").read_text().replace("bool clip;", "float table[4];"))
    with refuses("no-operator", "p"):
        propose(read_file(path), OPERATORS)


OWN_NAMES = """\
#include <mma.h>
#ifdef DOUBLE
typedef double real;
#else
typedef float real;
#endif
template <int WIDE, int HIGH>
__global__ void sum_it(real* total, real* values, real scale, int n) {
    extern __shared__ real part[];
    for (int i = 0; i < n; i++) for (int j = 0; j < 1; j++) part[j] = values[i];
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> f;
    if (threadIdx.x == 0) atomicAdd(total, part[0]);
}
int main() {
    constexpr int SIDE = 16;
    const int block = SIDE * 8;
    int blocks = std::min(sizes::cdiv(n, block), prop.maxGridSize[0]);
    const float root = 1.0f / sqrtf(n);
    sum_it<SIDE, SIDE / 2><<<static_cast<unsigned int>(blocks), block, block * sizeof(real)>>>(a, b, root, n);
}
"""


def test_names_of_the_hosts_own_are_resolved_and_what_is_added_to_is_zeroed(tmp_path: Path) -> None:
    found, notes = header(tmp_path, OWN_NAMES, operator="sum")
    assert found == (
        'product = "f16"\n'
        "launch = [\n"
        '  { zero = "out" },\n'
        '  { kernel = "sum_it<16, 16 / 2>", grid = ["cdiv(n, 16 * 8)"], block = ["16 * 8"], shared = "(16 * 8) * 4", '
        'args = ["out", "x", { f32 = "(1.0) / sqrt(n)" }, "n"] },\n'
        "]"
    )
    assert notes == ["the kernel adds to out, so the header zeroes it before the launch"]


STORING = """\
template <int LANES> __device__ void put(float* to, const float* from, int at) { to[at] = from[at]; }
__device__ void count(int* by) { int old = atomicAdd(by, 1); }
__global__ void relu(float* in, float* result, int* seen, float* again, float* table, int n) {
    float value = in[0];
    const float* row = in + n;
    float* next = again + n;
    if (n > 1) { put<4>(result, in, n); } else for (int i = 0; i < n; i++) next[i] += row[i];
    shared[(int)table[n]] = value;
    count(seen);
    *reinterpret_cast<float4*>(&again[4]) = *reinterpret_cast<float4*>(&in[0]);
}
"""


def test_what_a_kernel_stores_to_is_read_from_its_body() -> None:
    everything = declarations(STORING)
    (kernel,) = [one for one in everything if one.is_kernel]
    pointers = ["in", "result", "seen", "again", "table"]
    found = stores(kernel, pointers, {one.name: one for one in everything})
    assert found == {"result": "stored", "seen": "added", "again": "stored"}


def test_an_update_in_place_takes_the_operators_word(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        "__global__ void step(float* w, const float* g, int n) { int i = threadIdx.x; w[i] += g[i]; }\n"
        "void go(float* w, float* g, int n) { step<<<(n + 255) / 256, 256>>>(w, g, n); }\n"
    )
    found = propose(read_file(path), {"accumulate": CATALOG.operator("accumulate")}, operator="accumulate")
    assert found.lines[2:] == [
        "in_place = true",
        'launch = [{ kernel = "step", grid = ["cdiv(n, 256)"], block = ["256"], args = ["new_total", "part", "n"] }]',
    ]
    assert found.notes == []


def test_a_pointer_to_a_structure_is_said(tmp_path: Path) -> None:
    text = "struct Rows { float* data; int n; };\n__global__ void relu(Rows* rows) { rows->data[0] = 0; }\n"
    header(tmp_path, text + "void go(Rows* r) { relu<<<1, 32>>>(r); }\n")
    found = propose(read_file(tmp_path / "mine.cu"), OPERATORS).contradictions
    assert [(one.kind, one.name) for one in found] == [("tensors", "rows")]


DISPATCHED = """\
#include <ATen/ATen.h>
struct shape_t { int rows; int cols; };
template <typename scalar_t, int WIDE>
__global__ void softmax_rows(scalar_t* out, const scalar_t* x, scalar_t scale, shape_t shape) {
    out[blockIdx.x] = x[blockIdx.x] * scale;
}
void softmax(torch::Tensor out, torch::Tensor x, shape_t shape) {
    int lines = shape.rows;
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "softmax", [&] {
        softmax_rows<scalar_t, 4><<<(lines + 3) / 4, 128, shape.cols * sizeof(float)>>>(
            out.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), scale, shape);
    });
}
"""


def test_a_dispatched_type_and_the_fields_that_a_function_gets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "softmax.cu"
    path.write_text(DISPATCHED)
    found = propose(read_file(path), {"softmax": CATALOG.operator("softmax")})
    assert 'kernel = "softmax_rows<float, 4>"' in found.text
    assert 'grid = ["cdiv(rows, 4)"], block = ["128"], shared = "cols * 4"' in found.text
    assert 'args = ["out", "x", 1.0, { struct = ["rows", "cols"] }]' in found.text
    assert [(guess.subject, guess.value) for guess in found.guesses] == [
        ("'scale'", "1.0"),
        ("the kernel with its template arguments", "softmax_rows<float, 4>"),
    ]


def test_a_type_that_a_template_of_the_host_hands_on_is_guessed(tmp_path: Path) -> None:
    text = """\
template <typename T, int WIDE> __global__ void relu_of(const T* x, T* y, T scale, int n) { y[0] = x[0] * scale; }
template <typename T> void relu(const T* x, T* y, int n) { relu_of<T, 256><<<(n + 255) / 256, 256>>>(x, y, 2, n); }
"""
    found, notes = header(tmp_path, text)
    assert 'kernel = "relu_of<float, 256>"' in found and 'args = ["x", "out", 2.0, "n"]' in found
    assert notes == [] and [guess.value for guess in guesses(tmp_path)] == ["relu_of<float, 256>"]


ALL_OPERATORS = {name: CATALOG.operator(name) for name in CATALOG.operator_names()}


def launch_line(found: Proposal) -> str:
    return next(line for line in found.lines if 'kernel = "' in line)


def test_an_input_is_never_zeroed_and_its_overwriting_is_said() -> None:
    found = propose(read_file(ADOPTED / "reduce_in_place.cu"), ALL_OPERATORS)
    assert found.operator == "sum" and found.args == ['"x"', '"out"', '"n"'] and "zero" not in found.text
    assert {(one.kind, one.name) for one in found.contradictions} == {("input written", "x"), ("output size", "out")}


def test_a_sum_of_arrays_is_an_add() -> None:
    found = propose(read_file(ADOPTED / "sum_arrays.cu"), ALL_OPERATORS)
    assert found.operator == "add" and found.args == ['"a"', '"b"', '"out"', '"n"']
    assert found.contradictions == [] and len(found.evidence) > 1


def test_sizes_that_a_file_fixes_are_required() -> None:
    found = propose(read_file(ADOPTED / "transpose_fixed.cu"), ALL_OPERATORS)
    assert found.operator == "transpose" and found.args == ['"out"', '"x"'] and found.contradictions == []
    assert found.requires == ["rows == 1024", "cols == 1024"]
    assert {(guess.subject, guess.value) for guess in found.guesses} == {("rows", "1024"), ("cols", "1024")}


@pytest.mark.parametrize(
    "option",
    [
        "int n = 1 << 24, threads = 512;\n    if (argc > 1) threads = atoi(argv[1]);",
        "int n = 1 << 24, threads = argc > 1 ? atoi(argv[1]) : 512;",
        "int n = 1 << 24, threads = (argc == 1) ? 512 : std::stoi(argv[1]);",
        'int n = 1 << 24, threads = 512, c;\n    while ((c = getopt(argc, argv, "t:")) != -1) threads = atoi(optarg);',
    ],
)
def test_what_the_command_line_may_change_is_read_as_its_default(tmp_path: Path, option: str) -> None:
    text = (ADOPTED / "relu_option.cu").read_text()
    own = text[text.index("    int n = 1 << 24") : text.index("    float *x, *out;")]
    path = tmp_path / "relu_option.cu"
    path.write_text(text.replace(own, f"    {option}\n"))
    found = propose(read_file(path), ALL_OPERATORS)
    assert 'grid = ["cdiv(n, 512)", "1"], block = ["512", "1"]' in launch_line(found) and found.contradictions == []
    assert found.requires == []
    if "?" not in option:
        assert [(guess.subject, guess.value) for guess in found.guesses] == [("'threads'", "512")]


def test_the_element_type_of_the_pointers_is_written(tmp_path: Path) -> None:
    found = propose(read_file(ADOPTED / "sum_of_ints.cu"), ALL_OPERATORS)
    assert found.contradictions == [] and 'supports = { dtype = ["i32"] }' in found.lines


def test_elements_of_another_type_contradict_the_header(tmp_path: Path) -> None:
    path = tmp_path / "sum_of_ints.cu"
    path.write_text((ADOPTED / "sum_of_ints.cu").read_text().replace("int*", "short*").replace("int *", "short *"))
    found = propose(read_file(path), ALL_OPERATORS).contradictions
    assert {(one.kind, one.name) for one in found} == {("element type", "out"), ("element type", "x")}


@pytest.mark.parametrize(
    ("kernel", "operator", "kinds"),
    [
        ("void leaky_relu(const float* x, float* out, int n) { out[n] = x[n] > 0 ? x[n] : 0.1f * x[n]; }", "", ()),
        ("void conv1d(const float* a, const float* w, float* out, int n, int m) { out[n] = a[n] * w[m]; }", "", ()),
        ("void sum(const float* x, const float* y, float* out, int n) { out[n] = x[n] * y[n]; }", "", ()),
        ("void relu(const float* x, float* out, int n) { x[n]; float v = out[n]; (void)v; }", "relu", ()),
        (
            "void add(float* a, float* b, float* out, int n) { out[n] = a[n] + b[n]; a[n] = 0; }",
            "add",
            ("input written",),
        ),
        (
            "void add(float* a, float* b, float* out, int n) { out[n] = a[n] + 2 * out[n] + b[n]; }",
            "add",
            ("output read",),
        ),
        ("void sum(const short* x, short* out, int n) { *out = x[n]; }", "sum", ("element type",)),
        (
            "void softmax(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }",
            "softmax",
            ("axis", "formula"),
        ),
    ],
)
def test_an_operator_that_the_kernel_contradicts_is_not_taken(
    tmp_path: Path, kernel: str, operator: str, kinds: tuple[str, ...]
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(f"__global__ {kernel}\n")
    if not operator:
        with pytest.raises(NoOperator) as caught:
            propose(read_file(path), ALL_OPERATORS)
        assert len(caught.value.nearest) == 3
    else:
        found = {one.kind for one in propose(read_file(path), ALL_OPERATORS, operator=operator).contradictions}
        assert found >= set(kinds)


MATRICES = """\
__global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int i = 0; i < N; i++) sum += A[row * N + i] * B[i * K + col];
    C[row * K + col] = sum;
}
void run(float* a, float* b, float* c, int M, int N, int K) {
    gemm<<<dim3((K + 15) / 16, (M + 15) / 16), dim3(16, 16)>>>(a, b, c, M, N, K);
}
"""


def test_the_outputs_index_tells_which_size_is_n(tmp_path: Path) -> None:
    path = tmp_path / "gemm.cu"
    path.write_text(MATRICES)
    found = propose(read_file(path), ALL_OPERATORS)
    assert found.args == ['"a"', '"b"', '"out"', '"m"', '"k"', '"n"']
    assert 'grid = ["cdiv(n, 16)", "cdiv(m, 16)"]' in launch_line(found)
    assert sorted((one.subject, one.value) for one in found.guesses) == [("K", "n"), ("N", "k")]
    path.write_text(MATRICES.replace("C[row * K + col] =", "int at = row * K + col; C[at] ="))
    assert propose(read_file(path), ALL_OPERATORS).args == found.args
    path.write_text(
        MATRICES.replace("int M, int N, int K", "int n, int m, int k").translate(str.maketrans("MNK", "nmk"))
    )
    assert propose(read_file(path), ALL_OPERATORS).args == found.args
    for index in ("col * M + row", "M * col + row", "row + M * col"):
        path.write_text(MATRICES.replace("C[row * K + col]", f"C[{index}]"))
        assert [one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions] == ["layout"]


def test_a_cast_of_a_size_is_the_size(tmp_path: Path) -> None:
    path = tmp_path / "gemm.cu"
    path.write_text(MATRICES)
    expected = propose(read_file(path), ALL_OPERATORS).lines
    for argument in ("(int)M", "static_cast<int>(M)"):
        path.write_text(MATRICES.replace("int M, int N", "size_t M, size_t N", 2).replace("c, M,", f"c, {argument},"))
        assert propose(read_file(path), ALL_OPERATORS).lines == expected


def test_one_size_of_a_square_makes_its_axes_equal(tmp_path: Path) -> None:
    path = tmp_path / "square.cu"
    path.write_text(
        MATRICES.replace("int M, int N, int K", "int N").replace("M, N, K", "N").replace("M", "N").replace("K", "N")
    )
    found = propose(read_file(path), ALL_OPERATORS)
    assert found.requires == ["n == m", "k == m"] and found.contradictions == []


FIXED_ENUM = """\
enum { SKIP = 3, ROWS = 64, COLS };
__global__ void transpose(float* out, const float* in) {
    out[threadIdx.x * ROWS + blockIdx.x] = in[blockIdx.x * COLS + threadIdx.x];
}
void launch(float* to, const float* from) { transpose<<<ROWS, COLS>>>(to, from); }
int main() {
    float *a, *b;
    const size_t bytes = ROWS * COLS * sizeof(float);
    cudaMalloc((void**)&a, bytes);
    cudaMalloc(&b, bytes);
    launch(b, a);
}
"""


def test_sizes_of_buffers_are_found_through_the_functions_that_launch(tmp_path: Path) -> None:
    path = tmp_path / "transpose.cu"
    path.write_text(FIXED_ENUM)
    found = propose(read_file(path), ALL_OPERATORS)
    assert found.requires == ["rows == 64", "cols == 65"] and found.contradictions == []


def test_a_kernel_that_nothing_launches_gets_a_thread_an_element(tmp_path: Path) -> None:
    path = tmp_path / "vector_add.cu"
    path.write_text(
        "__global__ void vector_add(const float* a, const float* b, float* c, int n) { c[n] = a[n] + b[n]; }\n"
    )
    found = propose(read_file(path), ALL_OPERATORS)
    assert 'grid = ["cdiv(n, 256)"], block = ["256"]' in launch_line(found)
    assert [guess.subject for guess in found.guesses] == ["the launch"]
    path.write_text(path.read_text() + "void run(float* x, int n) { launch_by(vector_add, x, x, x, n); }\n")
    assert [one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions] == ["launch"]


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("", "", []),
        ("blockIdx.y * 16", "TILE * blockIdx.y", []),
        ("blockIdx.y * 16", "blockIdx.y * blockDim.y", []),
        ("blockIdx.y * 16", "blockIdx.y * 64", ["launch"]),
        ("blockIdx.y * 16", "blockIdx.y", ["launch"]),
        ("__global__", "template <int WIDE> __global__", ["launch"]),
    ],
)
def test_a_launch_is_guessed_only_where_the_kernel_leaves_it_open(
    tmp_path: Path, before: str, after: str, kinds: list[str]
) -> None:
    path = tmp_path / "gemm.cu"
    path.write_text("#define TILE 16\n" + GEMM[: GEMM.index("void run")].replace(before, after))
    assert [one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions] == kinds


def test_a_helper_of_an_operator_is_not_the_operator(tmp_path: Path) -> None:
    path = tmp_path / "softmax.cu"
    text = (
        "__global__ void max_kernel(const float* x, float* most, int rows, int cols) {\n"
        "    most[blockIdx.x] = fmaxf(x[blockIdx.x * cols], x[1]);\n"
        "}\n"
        "void run(float* x, float* y, int rows, int cols) { max_kernel<<<rows, 32>>>(x, y, rows, cols); }\n"
    )
    path.write_text(text)
    assert adopt(path, CATALOG).operator == "none"


@pytest.mark.parametrize("name", ["relu_square", "add_relu"])
def test_a_name_that_says_more_than_the_operator_is_not_the_operator(tmp_path: Path, name: str) -> None:
    path = tmp_path / "fused.cu"
    path.write_text(ONE_SIDE.replace("KERNEL", name).replace("out[n - 1 - i] = in[i]", "out[i] = in[i] > 0"))
    with pytest.raises(NoOperator):
        propose(read_file(path), ALL_OPERATORS)
    path.write_text(path.read_text().replace(name, "relu"))
    assert propose(read_file(path), ALL_OPERATORS).operator == "relu"


def test_a_launch_that_an_editor_has_spaced_out_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.cu"
    path.write_text(SUM_OF_PAIRS.replace("<<<", " << <").replace(">>>", " >> >"))
    found = propose(read_file(path), ALL_OPERATORS)
    assert 'block = ["128"]' in launch_line(found) and found.guesses == []


def test_a_size_that_is_a_side_or_a_number_of_blocks_is_not_the_number_of_elements(tmp_path: Path) -> None:
    path = tmp_path / "copy.cu"
    path.write_text(
        ONE_SIDE.replace("KERNEL", "copy").replace("i < n", "i < n * n").replace("out[n - 1 - i]", "out[i]")
    )
    assert "sizes" in {one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions}
    path.write_text(
        "__global__ void add(int* c, const int* a, const int* b) { int i = threadIdx.x; c[i] = a[i] + b[i]; }\n"
        "void run(int* c, int* a, int* b) { add<<<1, 5>>>(c, a, b); }\n"
    )
    assert "axis" in {one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions}


def test_a_constant_of_the_host_in_a_templates_arguments_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "gemm.cu"
    text = GEMM.replace("__global__", "template <bool TWICE>\n__global__").replace("gemm<<<", "gemm<TWICE><<<")
    path.write_text(text.replace("dim3 block", "const bool TWICE = false; dim3 block"))
    assert 'kernel = "gemm<false>"' in launch_line(propose(read_file(path), ALL_OPERATORS))


def test_a_number_that_is_copied_from_the_device_is_a_guess(tmp_path: Path) -> None:
    path = tmp_path / "divide.cu"
    path.write_text(
        "__global__ void divide(float* x, float total, int n) { if (threadIdx.x < n) x[threadIdx.x] /= total; }\n"
        "int main() {\n"
        "    float *x, total = 1.5f; const int n = 64;\n"
        "    cudaMalloc(&x, n * sizeof(float));\n"
        "    cudaMemcpy(&total, x, sizeof(float), cudaMemcpyDeviceToHost);\n"
        "    divide<<<1, 64>>>(x, total, n);\n"
        "}\n"
    )
    found = adopt(path, CATALOG)
    assert "{ f32 = 1.5 }" in found.text and [one.subject for one in found.guesses] == ["total"]


def test_a_launch_whose_argument_a_loop_changes_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "reduce.cu"
    path.write_text(
        "//////////////////////////////////////// a banner is no header\n"
        "__global__ void reduce(float* x, float* out, int step, int n) { out[0] = x[step]; }\n"
        "void run(float* x, float* out, int n) {\n"
        "    for (int step = 1; step < n; step *= 2) { reduce<<<(n + 255) / 256, 256>>>(x, out, step, n); }\n"
        "}\n"
    )
    assert not has_header(path)
    found = propose(read_file(path), ALL_OPERATORS).contradictions
    assert [(one.kind, one.name) for one in found] == [("launch", "step")]


def test_an_output_that_is_read_after_it_was_written_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "softmax.cu"
    path.write_text(
        "__global__ void softmax(const float* x, float* out, int rows, int cols) {\n"
        "    out[threadIdx.x] = expf(x[threadIdx.x]);\n"
        "    out[threadIdx.x] /= out[0];\n"
        "}\n"
        "void run(float* x, float* out, int rows, int cols) { softmax<<<rows, 256>>>(x, out, rows, cols); }\n"
    )
    assert propose(read_file(path), ALL_OPERATORS).contradictions == []


SUM_OF_PAIRS = """\
__global__ void vector_add(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
void once(const float* x, const float* y, float* z, int count) {
    vector_add<<<(count + 127) / 128, 128>>>(x, y, z, count);
}
int main() {
    const int total = 4096;
    float *left, *right, *both;
    cudaMalloc(&left, total * sizeof(float));
    cudaMalloc(&right, total * sizeof(float));
    cudaMalloc(&both, total * sizeof(float));
    once(left, right, both, total);
}
"""
CALL = "once(left, right, both, total);"
TOTALS = """\
__global__ void totals(const float* x, float* out, int n) { atomicAdd(&out[0], x[threadIdx.x]); }
void run(const float* x, float* out, int n) { totals<<<(n + 255) / 256, 256>>>(x, out, n); }
"""


@pytest.mark.parametrize(
    ("before", "after", "kind", "name"),
    [
        (CALL, "for (int i = 0; i < 4; i++) { int at = i * 1024; once(&left[at], right, both, 1024); }", "launch", "a"),
        (CALL, "once(left, right, both + 64, total - 64);", "launch", "out"),
        (CALL, "for (int i = 0; i < 9; i++) { once(left, right, both, total); std::swap(left, both); }", "launch", "a"),
        (
            CALL,
            "int left_over = total; while (left_over) { once(left, right, both, left_over); left_over /= 2; }",
            "launch",
            "n",
        ),
        ("(x, y, z, count)", "(count % 2 ? x : y, y, z, count)", "launch", "a"),
        ("out[i] = a[i] + b[i]", "float v = sinf(a[i] + b[i]); out[i] = v", "formula", "sinf"),
        ("(count + 127) / 128", "ceil(count / 512)", "launch", "grid"),
        ("int n) {", "int n, int* last) { if (n > *last) *last = n;", "tensors", "last"),
        (CALL, "once(left, right, both, 2 * total);", "sizes", "a"),
    ],
)
def test_a_header_that_the_host_code_denies_is_not_taken(
    tmp_path: Path, before: str, after: str, kind: str, name: str
) -> None:
    path = tmp_path / "pairs.cu"
    path.write_text(SUM_OF_PAIRS)
    assert propose(read_file(path), ALL_OPERATORS, operator="add").contradictions == []
    assert before in SUM_OF_PAIRS
    path.write_text(SUM_OF_PAIRS.replace(before, after))
    found = propose(read_file(path), ALL_OPERATORS, operator="add").contradictions
    assert (kind, name) in {(one.kind, one.name) for one in found}
    assert adopt(path, CATALOG).operator == "none"


@pytest.mark.parametrize(
    ("stem", "edits", "kind"),
    [
        ("totals", {"out[0]": "out[threadIdx.x]"}, "output size"),
        ("prefix_sum", {"totals": "inclusive"}, "name"),
        ("totals", {"int n)": "int n, float weight)", "out, n);": "out, n, 0.5f);"}, "formula"),
    ],
)
def test_a_sum_of_something_else_is_no_sum(tmp_path: Path, stem: str, edits: dict[str, str], kind: str) -> None:
    path = tmp_path / f"{stem}.cu"
    text = TOTALS
    for before, after in edits.items():
        text = text.replace(before, after)
    path.write_text(text)
    assert [one.kind for one in propose(read_file(path), ALL_OPERATORS, operator="sum").contradictions] == [kind]
    (tmp_path / "totals.cu").write_text(TOTALS)
    assert propose(read_file(tmp_path / "totals.cu"), ALL_OPERATORS, operator="sum").contradictions == []


def test_rows_and_columns_of_elements_are_numbers_of_the_host(tmp_path: Path) -> None:
    path = tmp_path / "plane.cu"
    path.write_text(
        "__global__ void matrix_add(const float* a, const float* b, float* out, int height, int width) {\n"
        "    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;\n"
        "    if (x < width && y < height) out[y * width + x] = a[y * width + x] + b[y * width + x];\n"
        "}\n"
        "int main() {\n"
        "    const int height = 48, width = 80;\n"
        "    float *a, *b, *c;\n"
        "    cudaMalloc(&a, height * width * sizeof(float));\n"
        "    cudaMalloc(&b, height * width * sizeof(float));\n"
        "    cudaMalloc(&c, height * width * sizeof(float));\n"
        "    dim3 block(16, 16), grid((width + 15) / 16, (height + 15) / 16);\n"
        "    matrix_add<<<grid, block>>>(a, b, c, height, width);\n"
        "}\n"
    )
    found = propose(read_file(path), ALL_OPERATORS)
    assert found.contradictions == [] and found.requires == ["n == 3840"]
    assert found.args == ['"a"', '"b"', '"out"', '"48"', '"80"']
    path.write_text(path.read_text().replace("(a, b, c, height, width)", "(a, b, c, 1, 1)"))
    assert [one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions] == ["sizes"]


def test_a_quotient_of_whole_numbers_is_rounded_up_by_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pairs.cu"
    path.write_text(SUM_OF_PAIRS.replace("(count + 127) / 128", "ceil(count / 128)"))
    found = propose(read_file(path), ALL_OPERATORS)
    assert found.requires == ["n % 128 == 0"] and 'grid = ["n // 128"]' in launch_line(found)
    path.write_text(SUM_OF_PAIRS.replace("(count + 127) / 128", "count / 128 + 1"))
    assert propose(read_file(path), ALL_OPERATORS).requires == []
    path.write_text(SUM_OF_PAIRS.replace("(count + 127) / 128, 128", "32, count / 32"))
    assert propose(read_file(path), ALL_OPERATORS).requires == ["n % 32 == 0"]
    path.write_text(SUM_OF_PAIRS.replace("(count + 127) / 128", "ceil((float)count / 128)"))
    found = propose(read_file(path), ALL_OPERATORS)
    assert found.requires == [] and 'grid = ["cdiv(n, 128)"]' in launch_line(found)


@pytest.mark.parametrize(
    "blocks",
    [
        "count / 128 + (count % 128 != 0)",
        "count / 128 + (count % 128 ? 1 : 0)",
        "count % 128 == 0 ? count / 128 : count / 128 + 1",
        "count / 128 + !!(count % 128)",
    ],
)
def test_a_remainder_that_gets_a_block_is_no_requirement(tmp_path: Path, blocks: str) -> None:
    """Else the check would try no size at which the kernel's guard matters."""
    path = tmp_path / "pairs.cu"
    path.write_text(SUM_OF_PAIRS.replace("(count + 127) / 128", blocks))
    assert propose(read_file(path), ALL_OPERATORS).requires == []


GEMM = """\
__global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int i = 0; i < K; i++) sum += A[row * K + i] * B[i * N + col];
    if (row < M && col < N) C[row * N + col] = sum;
}
void run(float* a, float* b, float* c, int rows, int wide, int deep) {
    dim3 block(16, 16), grid((wide + 15) / 16, (rows + 15) / 16);
    gemm<<<grid, block>>>(a, b, c, rows, wide, deep);
}
"""


@pytest.mark.parametrize(
    ("before", "after", "requires"),
    [
        ("rows, wide, deep);", "rows, wide, deep);", []),
        ("rows, wide, deep);", "rows, wide, wide);", ["k == n"]),
        ("rows, wide, deep);", "rows, 3 * deep, deep);", ["n == 3 * k"]),
        ("(rows + 15)", "(wide + 15)", ["m == n"]),
    ],
)
def test_sizes_that_a_launch_ties_together_are_required(
    tmp_path: Path, before: str, after: str, requires: list[str]
) -> None:
    path = tmp_path / "gemm.cu"
    path.write_text(
        GEMM.replace(before, after).replace("wide + 15", "3 * deep + 15" if "3 *" in after else "wide + 15")
    )
    found = propose(read_file(path), ALL_OPERATORS)
    assert (found.requires, found.contradictions) == (requires, [])


@pytest.mark.parametrize(
    ("edits", "kind"),
    [
        ({"C[row * N + col] = sum": "put(C, row * N + col, sum)"}, "output only read"),
        (
            {
                "int K) {": "int K, float beta) {",
                "C[row * N + col] = sum": "float* D = C + row * N; D[col] = sum + beta * D[col]",
                "wide, deep);": "wide, deep, 0.0f);",
            },
            "output read",
        ),
        ({"const float* A": "const float** A", "A[row": "A[0][row"}, "tensors"),
        ({"B[i * N + col]": "B[col * K + i]"}, "layout"),
        ({"A[row * K + i]": "A[i * M + row]"}, "layout"),
        (
            {
                "int M, int N, int K": "",
                "rows, wide, deep);": ");",
                "c, )": "c)",
                "C, )": "C)",
                "B[i * N + col]": "B[col * K + i]",
            },
            "layout",
        ),
        (
            {
                "int M, int N, int K": "int N",
                "K": "N",
                "M": "N",
                "rows, wide, deep);": "wide);",
                "i * N + col": "col * N + i",
            },
            "layout",
        ),
    ],
)
def test_a_matmul_that_no_header_can_say_is_not_taken(tmp_path: Path, edits: dict[str, str], kind: str) -> None:
    path, text = tmp_path / "gemm.cu", GEMM
    for before, after in edits.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    assert kind in {one.kind for one in propose(read_file(path), ALL_OPERATORS, operator="matmul").contradictions}


def test_a_grid_whose_sides_are_assigned_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gemm.cu"
    sides = "dim3 block(16, 16); dim3 grid; grid.x = (wide + 15) / 16; grid.y = (rows + 15) / 16;"
    path.write_text(GEMM.replace("dim3 block(16, 16), grid((wide + 15) / 16, (rows + 15) / 16);", sides))
    assert 'grid = ["cdiv(n, 16)", "cdiv(m, 16)", "1"]' in launch_line(propose(read_file(path), ALL_OPERATORS))


def test_a_limit_of_the_grid_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.cu"
    limited = "int blocks = (count + 127) / 128; if (blocks > 64) { blocks = 64; }\n    vector_add<<<blocks, 128>>>"
    path.write_text(SUM_OF_PAIRS.replace("vector_add<<<(count + 127) / 128, 128>>>", limited))
    assert 'grid = ["min(' in launch_line(propose(read_file(path), ALL_OPERATORS))


def test_a_grid_that_is_the_same_for_all_sizes_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "pairs.cu"
    text = SUM_OF_PAIRS.replace("(count + 127) / 128, 128>>>", "1, 64>>>")
    path.write_text(text.replace("total = 4096", "total = asked()"))
    assert [one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions] == ["grid"]
    path.write_text(text.replace("total = 4096", "total = 64"))
    found = propose(read_file(path), ALL_OPERATORS)
    assert (found.requires, found.contradictions) == (["n == 64"], [])


MOVED = """\
__global__ void transpose(float* out, const float* in, int nx, int ny) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < nx && y < ny) out[x + nx * y] = in[y + ny * x];
}
int main() {
    float *a, *b;
    int wide = 256, high = 128;
    cudaMalloc(&a, wide * high * sizeof(float));
    cudaMalloc(&b, wide * high * sizeof(float));
    dim3 block(16, 16), grid(wide / 16, high / 16);
    transpose<<<grid, block>>>(b, a, wide, high);
}
"""


def test_the_indices_tell_rows_from_columns(tmp_path: Path) -> None:
    path = tmp_path / "turn.cu"
    path.write_text(MOVED)
    found = propose(read_file(path), ALL_OPERATORS)
    assert found.args == ['"out"', '"x"', '"rows"', '"cols"'] and found.contradictions == []
    assert {(one.subject, one.value) for one in found.guesses} >= {("nx", "rows"), ("ny", "cols")}
    path.write_text(MOVED.replace("x + nx * y", "x * ny + y").replace("y + ny * x", "y * nx + x"))
    assert propose(read_file(path), ALL_OPERATORS).args == ['"out"', '"x"', '"cols"', '"rows"']
    path.write_text(path.read_text().replace("nx", "first").replace("ny", "second"))  # whose place says the opposite
    found = propose(read_file(path), ALL_OPERATORS)
    assert sorted((one.subject, one.value) for one in found.guesses if one.subject in ("first", "second")) == [
        ("first", "cols"),
        ("second", "rows"),
    ]
    for before, after in (("ny * x", "nx * x"), ("nx * y", "(nx + 1) * y")):
        path.write_text(MOVED.replace(before, after))
        assert [one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions] == ["layout"]


ONE_SIDE = """\
__global__ void KERNEL(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[n - 1 - i] = in[i];
}
void run(int count) {
    float *a, *b;
    cudaMalloc(&a, count * sizeof(float));
    cudaMalloc(&b, count * sizeof(float));
    KERNEL<<<(count + 255) / 256, 256>>>(a, b, count);
}
"""


def test_a_reversal_is_no_transpose(tmp_path: Path) -> None:
    path = tmp_path / "backwards.cu"
    path.write_text(ONE_SIDE.replace("KERNEL", "backwards"))
    with pytest.raises(NoOperator):
        propose(read_file(path), ALL_OPERATORS)
    assert adopt(path, CATALOG).operator == "none"


def test_a_kernel_that_the_file_defines_twice_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "pairs.cu"
    kernel, host = SUM_OF_PAIRS.split("void once", 1)
    path.write_text(f"#ifdef FIRST\n{kernel}#else\n{kernel}#endif\nvoid once{host}")
    assert [one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions] == ["launch"]


def test_an_update_after_a_copy_is_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "running.cu"
    path.write_text(
        ONE_SIDE.replace("KERNEL", "running").replace("out[n - 1 - i] = in[i]", "{ out[i] = in[i]; out[i] += out[0]; }")
    )
    with pytest.raises(NoOperator):
        propose(read_file(path), ALL_OPERATORS)


def test_a_buffer_of_one_side_is_no_square(tmp_path: Path) -> None:
    path = tmp_path / "turn.cu"
    path.write_text(ONE_SIDE.replace("KERNEL", "transpose"))
    assert ("sizes", "n") in {(one.kind, one.name) for one in propose(read_file(path), ALL_OPERATORS).contradictions}
    path.write_text(path.read_text().replace("count * sizeof", "count * count * sizeof"))
    assert "sizes" not in {one.kind for one in propose(read_file(path), ALL_OPERATORS).contradictions}


FOURS = """\
__global__ void add(const float4* a, const float4* b, float4* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i].x = a[i].x + b[i].x; out[i].w = a[i].w + b[i].w; }
}
void run(const float4* a, const float4* b, float4* out, int total) {
    int fours = total / 4;
    add<<<(fours + 255) / 256, 256>>>(a, b, out, fours);
}
"""


def test_a_size_that_counts_vectors_is_no_axis(tmp_path: Path) -> None:
    path = tmp_path / "fours.cu"
    path.write_text(FOURS)
    assert ("sizes", "n") in {(one.kind, one.name) for one in propose(read_file(path), ALL_OPERATORS).contradictions}
    path.write_text(FOURS.replace("i < n", "i * 4 < n").replace("total / 4", "total"))
    assert propose(read_file(path), ALL_OPERATORS).contradictions == []


def test_an_unsigned_type_has_the_bytes_of_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "bytes.cu"
    path.write_text(
        "__global__ void twist(unsigned char* p, int n) { p[threadIdx.x] ^= 1; }\n"
        "int main() { unsigned char* p; int n = 64; cudaMalloc(&p, n * sizeof(unsigned char));"
        " twist<<<1, 64>>>(p, n); }\n"
    )
    assert 'p = { type = "u8", elements = "n"' in adopt(path, CATALOG).text


def test_a_kernel_that_is_launched_with_two_sizes_is_given_neither(tmp_path: Path) -> None:
    text = (
        "__global__ void softmax(const float* x, float* y, int n) { float most = x[0], total = 0;\n"
        "for (int i = 1; i < n; ++i) most = fmaxf(most, x[i]);\n"
        "for (int i = 0; i < n; ++i) total += expf(x[i] - most);\n"
        "if (threadIdx.x < n) y[threadIdx.x] = expf(x[threadIdx.x] - most) / total; }\n"
        "int main() { int few = 4, many = 64; float *x, *y; cudaMalloc(&x, 256); cudaMalloc(&y, 256);\n"
        "softmax<<<1, 256>>>(x, y, few);\nsoftmax<<<1, 256>>>(x, y, MANY);\n}\n"
    )
    path = tmp_path / "k.cu"
    path.write_text(text.replace("MANY", "few"))
    assert (
        "cols == 4" in propose(read_file(path), ALL_OPERATORS).requires
        and not propose(read_file(path), ALL_OPERATORS).contradictions
    )
    path.write_text(text.replace("MANY", "many"))
    assert [(one.kind, one.name) for one in propose(read_file(path), ALL_OPERATORS).contradictions] == [
        ("launch", "cols")
    ]


def test_a_template_is_launched_from_a_header_as_written(tmp_path: Path) -> None:
    launch = "void run(float* a, float* b, float* c, int n) { sum_of<int, 4><<<n / 64, 64>>>(a, b, c, n); }\n"
    (tmp_path / "run.h").write_text("#pragma once\n" + "// a line that makes the header longer\n" * 9 + launch)
    kernel = "template <typename Index, int Wide>\n__global__ void sum_of(float* a, float* b, float* c, int n) {}\n"
    (tmp_path / "mine.cu").write_text(kernel + '#include "run.h"\n')
    found = propose(read_file(tmp_path / "mine.cu"), OPERATORS, operator="add")
    assert 'kernel = "sum_of<int, 4>"' in found.text
