"""Kernels written as strangers write them, with nothing but a header on top: all run, all compile for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.gpu.compile import nvrtc
from opbench.kernels.case import Case
from opbench.running.targets import own_variants
from support.builders.compiled import compile_all
from support.common import CATALOG, RELU
from support.needs import needs_nvrtc

pytestmark = pytest.mark.usefixtures("forked_workers")

FILES = sorted(Path(__file__).parent.glob("*.cu"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_runs_as_it_is(path: Path) -> None:
    found = api.check([path], random_shapes=0, cpu_only=True)
    assert [(r.case, r.reason) for r in found if r.status != "right"] == []


@needs_nvrtc
def test_compiles_for_a_gpu_as_it_is() -> None:
    catalog = CATALOG
    requests = []
    for path in FILES:
        variant = own_variants(path, catalog)[0]
        problem = catalog.operator(variant.operator).examples()[-1]
        requests.append(Case(variant, variant.configs[0], problem).request())
    compiled = compile_all(requests, "sm_90")
    assert {r.source.name: str(c) for r, c in compiled.items() if not isinstance(c, nvrtc.CompiledModule)} == {}


def test_macros_of_the_host_refuse_nothing(tmp_path: Path) -> None:
    macros = "#define CHECK(call) { if ((call) != CURAND_OK) curandStop(call); }\n#define HEAP malloc(4)\nextern"
    (tmp_path / "mine.cu").write_text(RELU.replace("extern", macros))
    assert [r.reason for r in api.check([tmp_path / "mine.cu"], problems=["(n=1000)"], cpu_only=True)] == [""]


SURFACE = (
    RELU.replace("title =", 'surfaces.target = { tensor = "out", size = ["n"] }\n// title =')
    .replace('block = ["256"]', 'block = ["256"], args = ["x", "target", "n"]')
    .replace("float* out", "cudaSurfaceObject_t target")
    .replace("out[i] = x[i] > 0.0f ? x[i] : 0.0f", "surf1Dwrite(x[i] > 0.0f ? x[i] : 0.0f, target, 4 * i)")
)
REFUSED = {
    "a helper of the host": (
        RELU.replace("extern", "inline float clip(float x) { return x; }\nextern").replace("? x[i]", "? clip(x[i])"),
        "mine.cu:8: 'clip' is a function of the host, which a kernel cannot call: write __device__ before it",
    ),
    "a misspelt kernel": (RELU.replace("void mine", "void main_kernel"), "unknown kernel 'mine'; known: main_kernel"),
    "a name of two kernels": (
        RELU.replace("extern", "template <int W> __global__ void both(float* x) {}\nextern")
        .replace("extern", "template <int W> __global__ void both(int* x) {}\nextern")
        .replace('kernel = "mine"', 'kernel = "both<4>"'),
        "mine.cu:9: kernel 'both<4>' is the name of 2 functions; rename the kernel that the header names",
    ),
    "a template with other arguments": (
        RELU.replace("extern", "template <int W> __global__ void wide(float* x) {}\nextern").replace(
            'kernel = "mine"', 'kernel = "wide<4, 2>"'
        ),
        "mine.cu:8: kernel 'wide<4, 2>' does not fit the template's arguments",
    ),
    "a macro of the header that the file declares": (
        RELU.replace("title =", "define = { LEAST = 0 }\n// title =")
        .replace("extern", "constexpr int LEAST = 0;\n__device__ int least() { return LEAST; }\nextern")
        .replace("? x[i]", "? x[i] + least()"),
        "the header's define or tune defines the macro LEAST = 0, and the file also declares LEAST",
    ),
    "a constant that is not there": (
        RELU.replace("title =", "constants = { taps = [1] }\n// title ="),
        "constants: no __constant__ variable 'taps'; defined: none",
    ),
    "too much for a constant": (
        RELU.replace("title =", "constants = { taps = [1, 2] }\n// title =").replace(
            "extern", "__constant__ int taps;\nextern"
        ),
        "constants.taps: 8 bytes are passed, but the variable has 4",
    ),
    "a number of another kind": (
        RELU.replace('block = ["256"]', 'block = ["256"], args = ["x", "out", 2.5]'),
        "argument 3 ('f32(2.5)') has the type float, but the kernel's parameter has the type int; write { i32 = … }",
    ),
    "a grid that cannot meet": (
        RELU.replace("extern", "#include <cooperative_groups.h>\nextern").replace(
            "{\n    const", "{\n    cooperative_groups::this_grid().sync();\n    const"
        ),
        "grid.sync() in a launch that is not cooperative: write cooperative = true in the header's launch",
    ),
    "a tile of 24 threads": (
        RELU.replace("extern", "#include <cooperative_groups.h>\nextern").replace(
            "{\n    const",
            "{\n    auto all = cooperative_groups::this_thread_block();\n"
            "    cooperative_groups::tiled_partition(all, 24).sync();\n    const",
        ),
        "mine.cu:11: trap: tiled_partition(group, size): 1, 2, 4, 8, 16 or 32 threads are allowed",
    ),
    "a copy from between two numbers": (
        RELU.replace(
            "{\n    const",
            "{\n    __shared__ float copied[1];\n    const unsigned to = __cvta_generic_to_shared(copied);\n"
            '    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"((const char*)x + 2));\n'
            "    const",
        ),
        "mine.cu:11: trap: cp.async of a misaligned address or an illegal size",
    ),
    "a texture of three dimensions": (
        RELU.replace(
            "extern", "__device__ float at(cudaTextureObject_t t) { return tex3D<float>(t, 0, 0, 0); }\nextern"
        ).replace("? x[i]", "? at(0)"),
        "line 8: uses textures of three dimensions, layers or levels",
    ),
    "a texture that is none": (
        RELU.replace("? x[i]", "? tex1Dfetch<float>((cudaTextureObject_t)0, i)"),
        "mine.cu:10: trap: tex1Dfetch: no texture or surface of the header's textures or surfaces",
    ),
    "a row beyond a surface": (
        SURFACE.replace("4 * i", "4 * i + 4"),
        "mine.cu:11: trap: surf1Dwrite: out of bounds: byte 4000 of row 0 of a surface of 4000 bytes and 1 rows",
    ),
    "a column that counts elements": (
        SURFACE.replace("4 * i", "i"),
        "surf1Dwrite: 4 bytes at byte 1 of a row; texels have 4 bytes, and x counts bytes",
    ),
    "a shuffle of before Volta": (
        RELU.replace("? x[i]", "? __shfl_xor(x[i], 1)"),
        "does not compile; CUDA has no __shfl_xor any more: write __shfl_xor_sync(0xffffffff, ...)",
    ),
    "what a header that is not there defines": (
        RELU.replace("extern", '#include "clipping.cuh"\n#include <iostream>\nextern').replace(
            "? x[i]", "? clip(x[i])"
        ),
        "mine.cu:8: header 'clipping.cuh' was not found; put it at",
    ),
    "a variable that another file defines": (
        RELU.replace("extern", "extern __device__ float floors[4];\nextern").replace("? x[i]", "? x[i] + floors[0]"),
        "mine.cu:8: 'floors' is declared extern and defined in no file that is included: define it in the",
    ),
    "an instruction": (
        RELU.replace("{\n    const", '{\n    asm volatile("frobnicate;");\n    const'),
        "line 9: inline PTX 'frobnicate' is not known to the cpu backend",
    ),
}


def test_a_library_that_no_kernel_needs_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(RELU.replace("extern", "#include <cutlass/cutlass.h>\nextern"))
    assert [r.reason for r in api.check([tmp_path / "mine.cu"], problems=["(n=1000)"], cpu_only=True)] == [""]


def test_an_extern_variable_may_be_defined_beside_its_declaration(tmp_path: Path) -> None:
    both = "extern __device__ float floors[4];\n__device__ float floors[4] = {0};\nextern"
    (tmp_path / "mine.cu").write_text(RELU.replace("extern", both).replace("? x[i]", "? x[i] + floors[0]"))
    assert [r.reason for r in api.check([tmp_path / "mine.cu"], problems=["(n=1000)"], cpu_only=True)] == [""]


def test_an_atomic_is_called_from_nowhere_else(tmp_path: Path) -> None:
    counted = "{\n    __shared__ int count[1];\n    atomicAdd(count, 1);\n    const"
    (tmp_path / "mine.cu").write_text(RELU.replace("{\n    const", counted))
    (found,) = api.check([tmp_path / "mine.cu"], problems=["(n=1000)"], cpu_only=True)
    assert "mine.cu:10: uninitialised-shared: atomic update of" in found.reason


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_run_is_named_with_its_line(tmp_path: Path, what: str) -> None:
    source, words = REFUSED[what]
    (tmp_path / "mine.cu").write_text(source)
    found = api.check([tmp_path / "mine.cu"], problems=["(n=1000)"], cpu_only=True)
    assert [words in r.reason for r in found] == [True], found[0].reason
