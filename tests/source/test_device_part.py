"""What of a file the GPU sees, read without a compiler."""

from __future__ import annotations

from pathlib import Path

from opbench.errors import CompileError
from opbench.source.device_part import device_part, has_host_part, kernels_of, missing_header_error, write_device_code
from opbench.source.scan import declarations
from opbench.source.sources import Source, include_closure, plain_code

TEXT = """\
#include <iostream>
#define BLOCK 256
#define SCALE(x) scaled(x)
#define KERNEL(NAME, T) __global__ void NAME(T* p) { p[0] = T(1); }
using namespace std;
typedef struct { int width; float* data; } Matrix;
const int N = 1 << 20, M = 3;
int threads = 0;
__constant__ float taps[9];
inline __device__ float scaled(float x) { return x * taps[0]; }
void scale(float* x) { k<<<1, 1>>>(x); }
void report(const std::string& words) { std::cout << words; }
template <typename T, int W = (3 > 2)>
__global__ void __launch_bounds__(BLOCK) add(const T* __restrict__ a, T* b, int threads) {
#if M > 2
    if (threads < N) {
#else
    {
#endif
        b[0] = SCALE(a[0]) + cg::scale(b).scale(1);
    }
}
KERNEL(ones, float)
namespace a { namespace b {
struct Sum { float x; __device__ Sum operator+(const Sum& other) const { return {x + other.x}; } };
extern "C" { __global__ void plain(Matrix m) { Sum s{1}; m.data[0] = (s + s).x; } }
}}
static_assert(BLOCK == 256, "main() { <<<");
int main() { add<float><<<(N + 255) / 256, BLOCK>>>(x, y, N); report("done"); }
"""


def left_of(tmp_path: Path, *wanted: str) -> str:
    """The code of the device's part."""
    path = tmp_path / "mine.cu"
    path.write_text(TEXT)
    sources = include_closure(path)
    assert has_host_part(sources)
    text = device_part(sources, wanted).texts[path]
    assert text.count("\n") == TEXT.count("\n"), "lines keep their numbers"
    return plain_code(text)


def test_a_kernel_keeps_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    text = left_of(tmp_path, "add<float>")
    for kept in ("scaled(float", "taps[9]", "const int N", "#if M > 2", "__launch_bounds__(BLOCK)", "static_assert"):
        assert kept in text
    for aside in ("main", "report", "void scale", "iostream", "plain", "Matrix", "int threads = 0", "KERNEL(ones"):
        assert aside not in text, f"{aside}: nobody needs it"


def test_types_macros_and_namespaces_are_followed(tmp_path: Path) -> None:
    text = left_of(tmp_path, "plain")
    assert "struct Sum" in text and "Matrix" in text and "namespace a { namespace b {" in text
    assert "add" not in text and "taps" not in text
    assert "KERNEL(ones, float)" in left_of(tmp_path, "ones")


def test_kernels_have_their_names_parameters_and_lines() -> None:
    found = {kernel.qualified_name: kernel for kernel in kernels_of(TEXT)}
    assert set(found) == {"add", "a::b::plain"}, "what a macro writes is not seen"
    assert found["add"].is_template and found["add"].line == 13
    assert [" ".join(t.text for t in p) for p in found["add"].parameters()] == [
        "const T * __restrict__ a",
        "T * b",
        "int threads",
    ]
    assert "C" in found["a::b::plain"].specifiers and not found["a::b::plain"].is_template


def test_words_in_comments_and_strings_decide_nothing() -> None:
    text = 'const char* s = "main() { k<<<1, 1>>>(); }"; // cudaMalloc\n__device__ int x;\n'
    assert [sorted(one.names) for one in declarations(text)] == [["s"], ["x"]]
    assert plain_code('a("asm(x)"); /* asm( */ b;') == 'a("");   b;'


def test_a_header_of_cudas_own_is_to_be_installed_and_any_other_to_be_added() -> None:
    error = CompileError("it does not compile")
    for name in ("nv/target", "cub/block/block_exchange.cuh", "cuda/barrier"):
        assert "install the wheel nvidia-cuda-cccl" in str(missing_header_error(error, (name,), ()))
    source = Source(Path("mine.cu"), b'#include <cstdio>\n#  include "clipping.cuh"\n', 0)
    missing = missing_header_error(error, ("clipping.cuh",), (source,))
    assert str(missing).startswith("mine.cu:2: header 'clipping.cuh' was not found; put it at ")
    assert missing_header_error(missing, ("clipping.cuh",), (source,)) is missing


def test_a_product_in_a_bracket_declares_nothing(tmp_path: Path) -> None:
    text = """\
constexpr int WIDE = 16, HIGH = 8, DEEP = 4;
__device__ int area(int a, int b) { return a + b; }
__launch_bounds__(WIDE * HIGH, 1) __global__ void fill(float* x, int n) { x[area(n * DEEP, 1)] = 0; }
"""
    path = tmp_path / "fill.cu"
    path.write_text(text)
    (kernel,) = [found for found in declarations(text) if found.is_kernel]
    assert {"WIDE", "HIGH", "DEEP"} <= kernel.uses
    assert "x" not in kernel.uses
    assert device_part(include_closure(path), ("fill",)).texts[path] == text


def test_an_attribute_by_a_macro_belongs_to_what_comes_behind(tmp_path: Path) -> None:
    text = """\
#define FORMAT(...) __attribute__((format(printf, __VA_ARGS__)))
extern "C" {
FORMAT(1, 2) void report(const char* words, ...);
__global__ void fill(float* x) { x[0] = 0; }
}
"""
    path = tmp_path / "fill.cu"
    path.write_text(text)
    assert "FORMAT(1, 2)" not in device_part(include_closure(path), ("fill",)).texts[path]


def test_a_macro_that_registers_what_launches_declares_nothing(tmp_path: Path) -> None:
    text = """\
#include <mma.h>
#define REGISTER(NAME, RUN) static const bool known_##RUN = Registry::add(#NAME, RUN);
#define FILL(NAME) __global__ void NAME(float* x) { x[0] = 0; }
using namespace nvcuda;
struct Registry { static bool add(const std::string& name, void (*run)(float*)); };
FILL(fill)
__global__ void multiply(float* x) { wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums; x[0] = sums.x[0]; }
void run_multiply(float* x) { multiply<<<1, 32>>>(x); }
REGISTER(wmma, run_multiply)
"""
    path = tmp_path / "multiply.cu"
    path.write_text(text)
    kept = device_part(include_closure(path), ("multiply",)).texts[path]
    assert "REGISTER(wmma" not in kept
    assert "std::string" not in kept
    assert "FILL(fill)" in device_part(include_closure(path), ("fill",)).texts[path], "a macro may write a kernel"


def test_a_header_that_stays_as_it_is_includes_one_that_does_not(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text('#include "outer.cuh"\n__global__ void fill(float* x) { x[0] = VALUE; }\n')
    (tmp_path / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\n')
    (tmp_path / "inner.cuh").write_text("#pragma once\nusing stream = cudaStream_t;\n#define VALUE 1.0f\n")
    read = include_closure(tmp_path / "mine.cu")
    folder = tmp_path / "cut"
    folder.mkdir()
    written = write_device_code(device_part(read, ("fill",)), read, folder)
    assert str(written[tmp_path / "inner.cuh"]) in written[tmp_path / "outer.cuh"].read_text()
    assert "cudaStream_t" not in written[tmp_path / "inner.cuh"].read_text()
