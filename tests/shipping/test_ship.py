"""What `opbench ship` writes is built by g++ and run: its own test program says whether it is right."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.errors import EnvironmentFault, UsageError
from opbench.gpu.compile.nvrtc import library
from opbench.kernels.case import Case
from opbench.kernels.tensors import Tensor
from opbench.results.book import Book, BookEntry, BookTime
from opbench.shipping import library as shipped_library
from opbench.shipping.choosing import choose_cases, find_target
from opbench.shipping.compiling import CompiledText
from opbench.shipping.folder import MANIFEST
from opbench.shipping.options import ShipOptions
from opbench.shipping.proving import MAX_COMPARED_ELEMENTS, comparison_step, draw_numbers
from opbench.shipping.shipping import ship_library
from support.builders.shipped import built
from support.checks.errors import Refusal, refuses
from support.common import CATALOG, Cli

RELU = "relu/vec4[BLOCK=256](n=1027)"
MATMUL = "matmul/shared_tile[TILE=16](m=33,n=65,k=17)"
WGMMA = "matmul/wgmma_bf16[BN=64](m=64,n=72,k=40,dtype=bf16)"
"""Two tensor maps, dynamic shared memory, a header, another problem of the same operator."""
WINOGRAD = "conv2d/nhwc_winograd_3xtf32[BM=64,BN=64,STAGES=4](n=1,c=4,h=6,w=6,k=8,r=3,s=3,padding=1,layout=nhwc)"
"""Four launches, one of them once, and three workspaces."""

OWN = "scaled/whole[BLOCK=64](n=131)"
OPERATOR = """\
from dataclasses import dataclass

import numpy as np

from opbench import Operator


@dataclass(frozen=True, kw_only=True)
class Scaled(Operator):
    n: int
    inputs = {"x": "n", "weight": "3"}
    outputs = {"out": "n"}

    def reference(self, x, weight):
        return x * weight[np.arange(self.n) % 3] + 0.5

    @classmethod
    def examples(cls):
        return [cls(n=n) for n in (1, 131)]
"""
WHOLE = """\
// /// opbench
// title = "a whole program: main, a launch, a template in a namespace, a constant, a header beside it"
// tune = { BLOCK = [64] }
// constants = { taps = "weight", half_of = [0.5] }
//
// [[launch]]
// fill   = "out"
// value  = 3
//
// [[launch]]
// kernel = "ops::scale<float, 3>"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", { u64 = "n" }]
// ///
//
// Why.
#include <cstdio>
#include <vector>
#include "helper.cuh"
#define CHECK(call) if ((call) != cudaSuccess) std::exit(1)

__constant__ float taps[3];
__constant__ float half_of[1];

namespace ops {
template <class T, int count>
__global__ void scale(const T* x, T* out, unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)BLOCK + threadIdx.x;
    if (i < n) out[i] = fused(x[i], taps[i % count], half_of[0]);
}
}  // namespace ops

int main() {
    std::vector<float> host(10);
    float* x;
    CHECK(cudaMalloc(&x, 40));
    ops::scale<float, 3><<<1, 64>>>(x, x, 10);
    std::printf("%f\\n", host[0]);
}
"""
"""All that a file of one's own may bring along."""
HELPER = (
    "#ifndef H\n#define H\n__device__ inline float fused(float a, float b, float c) { return a * b + c; }\n#endif\n"
)


@pytest.fixture(scope="module", autouse=True)
def _needs_nvrtc() -> None:
    try:
        library()
    except EnvironmentFault as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shipped library of opbench's kernels and one of a user's own."""
    out = tmp_path_factory.mktemp("ship") / "lib"
    own = out.parent / "own" / "scaled"
    own.mkdir(parents=True)
    for name, text in (("operator.py", OPERATOR), ("whole.cu", WHOLE), ("helper.cuh", HELPER)):
        (own / name).write_text(text)
    names = (RELU, MATMUL, WGMMA, OWN)
    ship_library(ShipOptions(names=names, out=out, name="kernels", variants=(own.parent,), command="a test"))
    return out


def test_a_shipped_library_is_built_and_proves_itself_and_catches_a_wrong_build(folder: Path) -> None:
    program, environment = built(folder, "kernels.cu", "kernels_test.cpp")

    def run(data: Path, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, data], env={**environment, **more}, capture_output=True, text=True, check=False)

    data = folder / "kernels_test.safetensors"
    answer = run(data)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("  right ") == 4 and answer.stdout.endswith("all right\n")
    assert "relu(n=999999937, dtype=f32) is not in this library; it holds (n=1027)" in answer.stdout
    # Another GPU is told, not launched on.
    other = run(data, SHIP_CAPABILITY="80")
    assert other.returncode == 1 and "compiled for sm_90a; this GPU has compute capability 8.0" in other.stdout
    # One number of the reference that is another must be found.
    content = bytearray(data.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    begin, _ = header["1.out.reference"]["data_offsets"]
    at = 8 + length + begin + 8 * 100
    content[at : at + 8] = np.float64(np.frombuffer(content[at : at + 8])[0] + 0.001).tobytes()
    wrong = data.with_name("wrong.safetensors")
    wrong.write_bytes(content)
    answer = run(wrong)
    wrong.unlink()
    assert answer.returncode == 1 and "WRONG 1.out: 1 elements, first [100]" in answer.stdout


def test_the_source_has_the_chosen_kernels_alone_each_with_its_origin(folder: Path) -> None:
    source = (folder / "kernels.cu").read_text()
    for case in (RELU, MATMUL, WGMMA):
        variant = CATALOG.case(case).variant
        assert f"from variants/{variant.operator}/{variant.path.name}, sha256 {variant.source_sha256[:16]}" in source
    assert len(re.findall(r"^__global__|__global__ void", source, re.MULTILINE)) == 4
    assert {path.name for path in (folder / "opbench").iterdir()} == {
        "activations.cuh",
        "barrier.cuh",
        "bf16.cuh",
        "format.cuh",
        "overlap.cuh",
        "sums.cuh",
        "tma.cuh",
        "wgmma.cuh",
    }
    assert "from scaled/whole.cu, sha256 " in source and "int main" not in source and "std::vector" not in source
    told = json.loads((folder / MANIFEST).read_text())
    assert told["arch"] == "sm_90a" and list(told["cases"]) == [RELU, MATMUL, WGMMA, OWN]
    header = (folder / "kernels.h").read_text()
    compiled = subprocess.run(
        ["g++", "-x", "c", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", "-"],
        input=re.sub("#include <cuda_runtime_api.h>", "typedef void* cudaStream_t;", header),
        text=True,
        capture_output=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr


def test_a_launch_that_prepares_can_be_called_apart_and_configs_do_not_share_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from opbench.shipping.interface import header_text
    from opbench.shipping.source import source_text

    catalog = CATALOG
    other = WINOGRAD.replace("BM=64,BN=64,STAGES=4", "BM=128,BN=64,STAGES=3").replace("w=6", "w=8")
    cases = [catalog.case(WINOGRAD), catalog.case(other)]
    monkeypatch.setattr(shipped_library, "compile_text", lambda text, found, arch: CompiledText(arch))
    made = shipped_library.make_library(cases, "kernels", find_target("h200"), {}, "a test")
    source, header = source_text(made), header_text(made)
    assert [piece.namespace for piece in made.kernels] == [
        "conv2d_nhwc_winograd_3xtf32",
        "conv2d_nhwc_winograd_3xtf32_2",
    ]
    assert source.count("#define BM ") == source.count("#undef BM\n") == 2
    assert "kernels_conv2d_prepare(" in header and "_prepare computes what depends on weight" in header
    prepare = source.partition("if (steps & PREPARE) {")[2].partition("}")[0]
    assert "winograd_filters()" in prepare and prepare.count("TRY(launch(") == 1


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_drawn_numbers_are_what_the_type_holds(dtype: str) -> None:
    from opbench.kernels.tensors import from_storage

    values = from_storage(draw_numbers(Tensor("x", (4096,), dtype), 3), dtype).astype(np.float64)
    assert -2 <= values.min() < -1.9 and 1.9 < values.max() < 2 and abs(values.mean()) < 0.1
    assert len(np.unique(values)) > (200 if dtype == "bf16" else 1000)


@pytest.mark.parametrize("shape", [(1024, 1000), (2048, 2048), (30, 41, 300, 7), (1 << 20, 3)])
def test_a_sample_of_an_output_looks_at_every_index_of_every_axis(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    step = comparison_step(Tensor("out", shape))
    seen = np.unravel_index(np.arange(0, size, step), shape)
    assert step > 1 and len(seen[0]) <= MAX_COMPARED_ELEMENTS
    for axis, length in enumerate(shape):
        everything = min(length, len(seen[0]))
        assert len(np.unique(seen[axis])) == everything, f"axis {axis} of {shape} by steps of {step}"


@pytest.mark.parametrize(
    ("names", "refusal"),
    [
        (("relu",), Refusal("no-winners-file", "relu")),
        (("rellu",), Refusal("unknown-name", "operator or network", value="rellu")),
        (("matmul/cublas(m=8,n=8,k=8)",), Refusal("vendor-library", "matmul/cublas(m=8,n=8,k=8)")),
        (
            ("matmul/wgmma_bf16(m=8,n=8,k=7,dtype=bf16)",),
            Refusal("unsupported-problem", value="k % 8 == 0 and n % 8 == 0"),
        ),
        ((RELU, "relu/scalar(n=1027)"), Refusal("duplicate-problem", RELU, value="relu/scalar[BLOCK=256](n=1027)")),
        (("alexne",), Refusal("unknown-name", "operator or network", value="alexne")),
    ],
)
def test_what_cannot_be_shipped_is_refused_and_nothing_is_written(
    names: tuple[str, ...], refusal: Refusal, tmp_path: Path
) -> None:
    with refuses(refusal):
        ship_library(ShipOptions(names=names, out=tmp_path / "lib"))
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_the_gpu_has_no_instructions_for_is_refused_by_name(tmp_path: Path) -> None:
    with refuses("missing-capability", WGMMA, value="sm_89", allowed="9.0a"):
        ship_library(ShipOptions(names=(WGMMA,), out=tmp_path / "lib", gpu="l4"))


def test_a_folder_that_is_there_is_replaced_when_asked_and_only_one_of_ours(tmp_path: Path) -> None:
    out = tmp_path / "lib"
    plain = ShipOptions(names=("relu/vec4(n=5)",), out=out, test=False)
    replacing = replace(plain, replace=True)
    out.mkdir()
    (out / "mine").write_text("precious")
    for options in (plain, replacing):
        with pytest.raises(UsageError) as refused:
            ship_library(options)
        assert refused.value.kind in ("folder-exists", "not-our-folder") and refused.value.subject == out
    assert [path.name for path in tmp_path.rglob("*")] == ["lib", "mine"]
    (out / "mine").rename(tmp_path / "mine")
    out.rmdir()
    ship_library(plain)
    with refuses("folder-exists", "lib", allowed="--replace"):
        ship_library(plain)
    assert ship_library(replacing).summary.startswith(f"wrote {out}: 1 problem, 1 kernel text, ")
    assert {path.name for path in tmp_path.iterdir()} == {"lib", "mine"}


def test_the_command_line_ships_and_says_what_to_do_next(cli: Cli, tmp_path: Path) -> None:
    answer = cli("ship", "relu/vec4(n=5)", "--out", "lib", "--no-test", "--gpu", "h200")
    assert answer.returncode == 0 and answer.stderr.endswith("build it and prove it: make -C lib test\n"), answer.stderr
    assert "//   opbench ship 'relu/vec4(n=5)' --out lib" in (tmp_path / "lib" / "opbench.cu").read_text()
    assert "-gencode arch=compute_90,code=sm_90 " in (tmp_path / "lib" / "Makefile").read_text()


def book_of(*entries: tuple[str, str, float]) -> Book:
    """A book of cases with a precision and a time."""
    catalog = CATALOG

    def entry(name: str, precision: str, seconds: float) -> BookEntry:
        case: Case = catalog.case(name)
        time = BookTime(name, seconds, seconds, seconds, case.variant.source_sha256, "0", "now", "run")
        return BookEntry(case.problem.name, str(case.problem), precision, "NVIDIA H200", "9.0", time)

    return Book("cold", tuple(entry(*each) for each in entries))


def test_a_book_gives_the_fastest_of_each_problem_that_the_precision_allows() -> None:
    tf32 = "matmul/mma_tf32(m=64,n=64,k=64)"
    f32 = "matmul/shared_tile[TILE=16](m=64,n=64,k=64)"
    book = book_of((tf32, "tf32", 1e-6), (f32, "f32", 2e-6), (WGMMA, "bf16", 3e-6), ("relu/vec4(n=5)", "f32", 1e-6))
    gpu = find_target("sm_90", book)
    assert (gpu.name, gpu.sm_count) == ("NVIDIA H200", 132)
    by_precision = {
        precision: [case.variant.name for case in choose_cases(("matmul",), CATALOG, book, gpu, precision).cases]
        for precision in ("f32", "tf32")
    }
    assert by_precision == {"f32": ["shared_tile", "wgmma_bf16"], "tf32": ["mma_tf32", "wgmma_bf16"]}
    with refuses("no-such-problem", "softmax", value="f32", allowed="sm_90"):
        choose_cases(("softmax",), CATALOG, book, gpu, "f32")
    both = Book("cold", (*book.entries, *(replace(entry, gpu="NVIDIA H100") for entry in book.entries)))
    with refuses("several-gpus", "--gpu", value="sm_90", allowed=("NVIDIA H200", "NVIDIA H100")):
        find_target("sm_90", both)
    assert len(choose_cases(("matmul",), CATALOG, both, find_target("h100", both), "f32").cases) == 2
    with refuses("unknown-architecture", "--gpu", value="sm_75"):
        find_target("sm_75")
