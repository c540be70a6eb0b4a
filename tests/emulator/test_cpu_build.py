"""Compilers, the cache, diagnostics, and what is refused before it is compiled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.emulator import CpuBackend, build, toolchain
from opbench.emulator.instructions import function_name
from opbench.emulator.ptx import UnsupportedInstruction, replace_noinline, replace_ptx, replace_unroll
from opbench.emulator.ptx_functions import FUNCTIONS
from opbench.errors import CompileError, EnvironmentFault
from opbench.kernels.launch import BuildRequest, KernelLaunch
from support.builders.on_cpu import Bench, zig
from support.checks.errors import refuses_name
from support.common import CHEATS, Cli

RELU = 'extern "C" __global__ void relu(float* x) { x[threadIdx.x] = fmaxf(x[threadIdx.x], LEAST); }'


def test_a_compile_error_shows_file_and_line(bench: Bench) -> None:
    text = '\n\nextern "C" __global__ void broken(float* x) {\n  x[0] = undeclared_name;\n}'
    with pytest.raises(CompileError) as error:
        bench.backend.compile(bench.request(text, "broken"))
    message = str(error.value)
    assert f"{bench.folder / 'kernel.cu'}:4:" in message
    assert "undeclared_name" in message
    assert "wrapper.cpp" not in message
    assert str(toolchain.INCLUDE) not in message


def test_a_missing_kernel_is_named(bench: Bench) -> None:
    text = 'extern "C" __global__ void present(float* x) {}\ntemplate <int N> __global__ void other(int* y) {}'
    with refuses_name("kernel", "absent", known=("other", "present"), error=CompileError):
        bench.backend.compile(bench.request(text, "absent"))


def test_a_missing_file(bench: Bench) -> None:
    with pytest.raises(CompileError, match=r"gone\.cu: cannot be read"):
        bench.backend.compile(BuildRequest(bench.folder / "gone.cu", ("x",)))


def test_the_second_compile_runs_nothing(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CpuBackend(tmp_path / "cache")
    first = backend.compile(bench.request(RELU, "relu", LEAST="0.0f"))
    calls: list[object] = []
    monkeypatch.setattr(build.KernelBuilder, "_call", lambda *arguments: calls.append(arguments))
    again = CpuBackend(tmp_path / "cache").compile(bench.request(RELU, "relu", LEAST="0.0f"))
    assert (again, calls) == (first, [])
    with pytest.raises(AttributeError):  # the stand-in returns nothing: other macros do run the compiler
        backend.compile(bench.request(RELU, "relu", LEAST="1.0f"))
    assert len(calls) == 1


def test_a_changed_include_renews_the_module(bench: Bench) -> None:
    (bench.folder / "least.cuh").write_text("#define LEAST 0.0f\n")
    request = bench.request('#include "least.cuh"\n' + RELU, "relu")
    first = bench.backend.compile(request)
    (bench.folder / "least.cuh").write_text("#define LEAST 2.0f\n")
    second = bench.backend.compile(request)
    assert second != first
    x = np.zeros(4, np.float32)
    bench.check(request.source.read_text(), "relu", (1, 1, 1), (4, 1, 1), x)
    assert x.tolist() == [2.0] * 4


def settled(folder: Path) -> None:
    """Let all files and folders look as if they were written a minute ago."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 60_000_000_000))


def test_a_module_is_looked_up_anew_only_after_a_change(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are read once; an edit of the same length and a header that hides another are seen all the same."""
    text = '#include "least.cuh"\n' + RELU
    (bench.folder / "far").mkdir()
    (bench.folder / "far" / "least.cuh").write_text("#define LEAST 0.0f\n")
    request = replace(bench.request(text, "relu"), include=(bench.folder / "far",))
    settled(bench.folder)
    first = bench.backend.compile(request)
    assert bench.backend.compile(request) == first
    with monkeypatch.context() as patch:
        patch.setattr(build, "include_closure", lambda *anything: pytest.fail("reads the files again"))
        assert bench.backend.compile(request) == first
    (bench.folder / "far" / "least.cuh").write_text("#define LEAST 2.0f\n")
    second = bench.backend.compile(request)
    assert second != first
    settled(bench.folder)
    assert [bench.backend.compile(request) for _ in range(3)] == [second] * 3
    (bench.folder / "least.cuh").write_text("#define LEAST 3.0f\n")
    assert bench.backend.compile(request) not in (first, second)


def test_a_header_that_comes_into_a_folder_searched_before_is_seen(bench: Bench) -> None:
    """Also where the folder existed before, and only another one had the header."""
    for folder in ("far/sub", "sub"):
        (bench.folder / folder).mkdir(parents=True)
    (bench.folder / "far" / "sub" / "least.cuh").write_text("#define LEAST 0.0f\n")
    request = replace(bench.request('#include "sub/least.cuh"\n' + RELU, "relu"), include=(bench.folder / "far",))
    settled(bench.folder)
    first = bench.backend.compile(request)
    assert bench.backend.compile(request) == first
    (bench.folder / "sub" / "least.cuh").write_text("#define LEAST 3.0f\n")
    assert bench.backend.compile(request) != first


def test_an_edit_that_keeps_time_and_size_is_seen(bench: Bench) -> None:
    """As `cp --preserve` and `rsync --times` make it."""
    request = bench.request(RELU, "relu", LEAST="0.0f")
    settled(bench.folder)
    first = bench.backend.compile(request)
    assert bench.backend.compile(request) == first
    before = request.source.stat()
    request.source.write_text(RELU.replace("fmaxf", "fminf"))
    os.utime(request.source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert bench.backend.compile(request) != first


def test_a_file_that_was_just_written_is_read_at_each_lookup(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second edit within one step of the file system's clock would leave the same time and size."""
    request = bench.request(RELU, "relu", LEAST="0.0f")
    first = bench.backend.compile(request)
    now_ns = request.source.stat().st_mtime_ns
    monkeypatch.setattr(build.time, "time_ns", lambda: now_ns + 5_000_000)
    reads: list[object] = []
    read = build.include_closure
    monkeypatch.setattr(build, "include_closure", lambda *sought: (reads.append(sought), read(*sought))[1])
    assert bench.backend.compile(request) == first
    before = len(reads)
    assert bench.backend.compile(request) == first
    assert len(reads) > before


def test_threads_may_compile_the_same_module(bench: Bench, tmp_path: Path) -> None:
    backend = CpuBackend(tmp_path / "cache")
    request = bench.request(RELU, "relu", LEAST="0.0f")
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(backend.compile, [request] * 3))
    assert len(set(paths)) == 1
    assert [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".build")] == []


def test_the_shim_is_parsed_once(bench: Bench, tmp_path: Path) -> None:
    backend = CpuBackend(tmp_path / "cache")
    if backend._toolchain.family != "gcc":
        pytest.skip("only GCC keeps what it parsed; clang reads the shim fast enough without")
    backend.compile(bench.request(RELU, "relu", LEAST="0.0f"))
    (parsed,) = (tmp_path / "cache").glob("shim-fast-*/*.gch")
    made = parsed.stat().st_mtime_ns
    request = bench.request(RELU, "relu", LEAST="1.0f")
    again = CpuBackend(tmp_path / "cache")
    assert "fmaxf(float" not in again._builder.preprocess(request).text.replace(" ", "")
    again.compile(request)
    assert parsed.stat().st_mtime_ns == made


def test_a_macro_that_the_shim_uses_is_no_obstacle(bench: Bench) -> None:
    """The parsed shim does not fit then; the compiler reads it anew."""
    text = 'extern "C" __global__ void which(int* x) { x[0] = __CUDA_ARCH__; }'
    request = bench.request(text, "which", __CUDA_ARCH__="800")
    program = bench.backend.load(request)
    x = bench.backend.allocate("x", (1,), "i32")
    program.bind([KernelLaunch("which", (1, 1, 1), (1, 1, 1), 0, ("x",))], {"x": x})()
    assert x.read().tolist() == [800]


def test_importing_the_backend_compiles_nothing() -> None:
    script = "import subprocess; subprocess.run = None; import opbench.emulator as c; c.CpuBackend()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_no_compiler_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "_candidates", list)
    with pytest.raises(EnvironmentFault, match=r"pip install .*\[compiler\]'"):
        CpuBackend(tmp_path).environment()
    monkeypatch.setenv("OPBENCH_CXX", "/bin/false")
    with pytest.raises(EnvironmentFault, match=r"OPBENCH_CXX='/bin/false'"):
        CpuBackend(tmp_path).environment()


@pytest.mark.skipif(not zig(), reason="no zig (pip install 'opbench[compiler]')")
def test_zig_as_the_only_compiler(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("OPBENCH_CXX", raising=False)
    bench.backend = CpuBackend(tmp_path / "zig", workers=2)
    assert bench.backend._toolchain.family == "zig"
    text = """
    extern __shared__ float scratch[];
    template <int N>
    __global__ void reverse(float* out) {
      __shared__ float extra[N];
      extra[threadIdx.x] = __shfl_xor_sync(~0u, (float)threadIdx.x, 1);
      scratch[threadIdx.x] = expf(0.0f);
      __syncthreads();
    #pragma unroll
      for (int i = 0; i < 1; ++i) out[threadIdx.x] = extra[N - 1 - threadIdx.x] + scratch[threadIdx.x];
    }"""
    out = np.zeros(64, np.float32)
    bench.check(text, "reverse<64>", (1, 1, 1), (64, 1, 1), out, shared=256)
    assert out.tolist() == [float(i ^ 1) + 1 for i in range(63, -1, -1)]
    with pytest.raises(CompileError, match=r"kernel\.cu:1:"):
        bench.backend.compile(bench.request("__global__ void broken() { nothing; }", "broken"))


@pytest.mark.skipif(not zig(), reason="no zig (pip install 'opbench[compiler]')")
def test_with_zig_alone_a_finding_has_its_line(cli: Cli, tmp_path: Path) -> None:
    """No tool on PATH, no home folder and an empty cache: what a container with the wheels and nothing else is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPBENCH_")}
    environment = {**kept, "PATH": "", "HOME": "/dev/null", "OPBENCH_CACHE": str(tmp_path / "cache")}
    answer = cli("check", CHEATS / "forgets_the_guard.cu", "--case", "*(n=31)", env=environment)
    assert answer.returncode == 1, answer.stderr
    assert "forgets_the_guard.cu:11: out-of-bounds: " in answer.stdout


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, and what is tested is how it is named")
def test_the_environment_names_the_compiler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBENCH_CXX", "g++")
    environment = bench.backend.environment()
    assert environment.backend == "cpu"
    assert environment.compiler.startswith("g++")
    assert "-O2" in environment.compiler_flags


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ("", None),
        ("8.0", None),
        ("8.9", None),
        ("9.0", None),
        ("9.0a", None),
        ("10.0", "needs compute capability 10.0; the cpu backend executes up to 9.0 code"),
    ],
)
def test_capabilities(bench: Bench, capability: str, reason: str | None) -> None:
    request = bench.request(RELU, "relu", LEAST="0.0f")
    newer = BuildRequest(request.source, request.kernels, request.macros, capability)
    assert bench.backend.unsupported_reason(newer) == reason


def test_unknown_ptx_is_unsupported_with_its_line(bench: Bench) -> None:
    text = """\
extern "C" __global__ void tensor(float* x) {
  asm volatile("tcgen05.fence::before_thread_sync;\\n" ::: "memory");
}"""
    request = bench.request(text, "tensor")
    reason = bench.backend.unsupported_reason(request)
    assert reason == "line 2: inline PTX 'tcgen05.fence::before_thread_sync' is not known to the cpu backend"
    with pytest.raises(CompileError, match=r"kernel\.cu:2: inline PTX 'tcgen05"):
        bench.backend.compile(request)


def test_ptx_in_a_branch_for_newer_gpus_is_no_obstacle(bench: Bench) -> None:
    text = """
    extern "C" __global__ void either(float* x) {
    #if __CUDA_ARCH__ >= 1000
      asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    #else
      x[threadIdx.x] = 1.0f;
    #endif
      asm volatile("" ::: "memory");
    }"""
    assert bench.backend.unsupported_reason(bench.request(text, "either")) is None
    x = np.zeros(2, np.float32)
    bench.check(text, "either", (1, 1, 1), (2, 1, 1), x)
    assert x.tolist() == [1.0, 1.0]


def test_clusters_and_grids_are_unsupported(bench: Bench) -> None:
    clusters = "__global__ void __cluster_dims__(2, 1, 1) pair(float* x) {}"
    assert bench.backend.unsupported_reason(bench.request(clusters, "pair")) == (
        "line 1: uses __cluster_dims__; the cpu backend takes clusters from the launch: cluster = [2, 1, 1]"
    )


def test_unroll_keeps_lines_and_counts() -> None:
    text = "a\n  #pragma unroll\nb\n#pragma unroll 4\n#pragma unroll (TILE)\n#pragma omp parallel\n"
    assert replace_unroll(text, {"TILE": "8"}).splitlines() == [
        "a",
        "  #pragma GCC unroll 8",
        "b",
        "#pragma GCC unroll 4",
        "#pragma GCC unroll 8",
        "#pragma omp parallel",
    ]


def test_noinline_within_attributes_stays() -> None:
    text = "__noinline__ int f(); int g() __attribute__ ((__noinline__)); int h() __attribute__((cold, __noinline__));"
    assert replace_noinline(text) == text.replace("__noinline__ int f", "__attribute__((noinline)) int f")


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ('asm("mov.u32 %0, %%laneid;" : "=r"(lane));', "::opb_ptx::mov_u32_laneid(lane)"),
        (
            'asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(to), "l"(from + f(1, 2)));',
            "::opb_ptx::cp_async_cg_shared_global(::opb_ptx::address(to), ::opb_ptx::address(from + f(1, 2)), 16)",
        ),
        (
            'asm("ld.global.nc.v2.f32 {%0, %1}, [%2+8];" : "=f"(a[0]), "=f"(a[1]) : "l"(p));',
            "::opb_ptx::ld_global_v2_f32(a[0], a[1], ::opb_ptx::address(p) + 8)",
        ),
        (
            'asm volatile("cp.async.commit_group;\\n" "cp.async.wait_group %0;" :: "n"(2));',
            "::opb_ptx::cp_async_commit_group(); ::opb_ptx::cp_async_wait_group(2)",
        ),
    ],
)
def test_ptx_becomes_calls(statement: str, call: str) -> None:
    assert replace_ptx(statement) == f"({{ {call}; }});"


def test_blocks_of_ptx_become_blocks() -> None:
    """Registers of the block, a label, a predicate, a sink, and operands that families of instructions group."""
    wait = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 ready, [%0], %1;"
    text = f'asm volatile("{{ .reg .pred ready; AGAIN: {wait} @!ready bra.uni AGAIN; }}" :: "r"(bar), "r"(phase));'
    assert replace_ptx(text) == (
        "({ __label__ opb_label_AGAIN; { bool opb_ready; opb_label_AGAIN:; "
        "::opb_ptx::mbarrier_try_wait_parity(opb_ready, ::opb_ptx::address(bar), phase); "
        "if (!opb_ready) { goto opb_label_AGAIN; } } });"
    )
    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    text = f'asm("{copy} [%0], [%1, {{%3, 7}}], [%2], %4;" :: "r"(to), "l"(map), "r"(bar), "r"(x), "l"(policy));'
    assert replace_ptx(text) == (
        "({ ::opb_ptx::load_tensor(OPB_LOAD_TILE, ::opb_ptx::address(to), ::opb_ptx::address(map), "
        "{2, {(int)(x), (int)(7)}, {}}, ::opb_ptx::address(bar), 0); });"
    )
    text = 'asm("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar));'
    assert replace_ptx(text) == "({ ::opb_ptx::mbarrier_arrive(::opb_ptx::sink{}, ::opb_ptx::address(bar)); });"
    assert replace_ptx('asm volatile("" : "+f"(x) :: "memory");') == '({ __asm__ volatile("" ::: "memory"); });'


@pytest.mark.parametrize(
    "instruction",
    [
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.bf16.bf16 {%0, %1}, %2, %3, 1, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.u8 {%0, %1, %2, %3}, %4, %5, 1",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.s8.s8 {%0, %1, %2, %3}, %4, %5, 1",
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%0, %1, %2, %3}, %4, %5, 1, 1, 1",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0",
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4]",
        "tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1",
        "mov.u32 %0, %%no_such_register",
    ],
)
def test_what_is_not_known_is_named_whole(instruction: str) -> None:
    operands = ", ".join(f'"r"(x{i})' for i in range(6))
    with pytest.raises(UnsupportedInstruction) as raised:
        replace_ptx(f'asm volatile("{instruction};" :: {operands});')
    assert raised.value.instruction == instruction


def test_matrix_instructions_of_the_header_are_known() -> None:
    header = (toolchain.INCLUDE / "opbench_cpu" / "tensor.hpp").read_text()
    assert set(re.findall(r"\b(mma_sync\w+|wgmma_[a-z]\w+)\(", header)) <= FUNCTIONS
    assert {"ld_global_v4_f32", "ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16", "mov_u32_laneid"} <= FUNCTIONS
    assert function_name("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") in FUNCTIONS
