"""Compiling for a GPU where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opbench.backend.base import KernelResources
from opbench.errors import CompileError
from opbench.gpu.compile import nvrtc
from opbench.gpu.driver.device import OWN_KERNELS
from opbench.gpu.driver.driver import why_missing
from opbench.kernels.launch import BuildRequest
from support.builders import gpu_kernels
from support.builders.compiled import compile_all
from support.checks.errors import needs_extra

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
/some/file.cu(3): warning #177-D: variable "x" was declared but never referenced
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    256 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 256 bytes cumulative stack size, 4096 bytes smem, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("OPBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, text: str, *kernels: str, **changes: object) -> BuildRequest:
    """A request for a source of these words."""
    path = folder / "kernel.cu"
    path.write_text(text)
    return BuildRequest(path, kernels, **changes)  # type: ignore[arg-type]


SCALE = 'extern "C" __global__ void scale(float* a) { a[threadIdx.x] *= FACTOR; }\n'


def test_log_is_read() -> None:
    resources, spills, warnings = nvrtc.parse_log(LOG)
    assert resources == {
        "one": KernelResources(168, 4096, 256, 384),
        "two": KernelResources(12, 0, 0, 1024),
    }
    assert spills == {"one": 12, "two": 0}
    assert len(warnings) == 2 and "C7510" in warnings[0] and "#177-D" in warnings[1]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"])
def test_own_kernels_compile(arch: str) -> None:
    compiled = nvrtc.compile_cubin(OWN_KERNELS, arch)
    assert set(compiled.resources) == set(OWN_KERNELS.kernels)
    assert compiled.cubin.read_bytes()[:4] == b"\x7fELF"
    assert not any(compiled.spill_bytes.values()) and compiled.warnings == ()


def test_kernels_of_the_device_tests_compile(tmp_path: Path) -> None:
    compiled = nvrtc.compile_cubin(write(tmp_path, gpu_kernels.KERNELS, *gpu_kernels.NAMES), "sm_90")
    assert compiled.resources["hungry"].shared_bytes == 2048


def test_headers_are_found(tmp_path: Path) -> None:
    text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>\n#include <cooperative_groups.h>\n"
    nvrtc.compile_cubin(write(tmp_path, text + SCALE, "scale", macros=(("FACTOR", "2"),)), "sm_90")


def test_second_time_comes_from_the_cache(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = write(tmp_path, SCALE, "scale", macros=(("FACTOR", "2"),))
    first = nvrtc.compile_cubin(request, "sm_90")
    assert first.cubin.parent == cache / "cubin"
    assert json.loads(first.cubin.with_suffix(".json").read_text())["resources"]["scale"]["registers"] > 0
    monkeypatch.setattr(nvrtc.Nvrtc, "compile", lambda *a: pytest.fail("compiled again"))
    assert nvrtc.compile_cubin(request, "sm_90") == first


@pytest.mark.parametrize("damage", ["", "{", "{}"])
def test_a_damaged_cache_is_compiled_anew(tmp_path: Path, damage: str) -> None:
    request = write(tmp_path, SCALE, "scale", macros=(("FACTOR", "2"),))
    first = nvrtc.compile_cubin(request, "sm_90")
    first.cubin.with_suffix(".json").write_text(damage)
    assert nvrtc.compile_cubin(request, "sm_90") == first


def test_everything_that_decides_is_in_the_key(tmp_path: Path) -> None:
    plain = write(tmp_path, SCALE, "scale", macros=(("FACTOR", "2"),))
    cubins = [
        nvrtc.compile_cubin(plain, "sm_90"),
        nvrtc.compile_cubin(plain, "sm_90a"),
        nvrtc.compile_cubin(BuildRequest(plain.source, plain.kernels, (("FACTOR", "3"),)), "sm_90"),
    ]
    cubins.append(nvrtc.compile_cubin(write(tmp_path, SCALE + "\n", "scale", macros=plain.macros), "sm_90"))
    assert len({compiled.cubin for compiled in cubins}) == 4


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    request = write(tmp_path, "\n\n" + SCALE, "scale")
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(request, "sm_90")
    assert str(caught.value).startswith(f'{request.source}:3: error: identifier "FACTOR" is undefined')
    assert "ptxas info" not in str(caught.value)


def test_unreadable_source_is_a_compile_error(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="cannot be read"):
        nvrtc.compile_cubin(BuildRequest(tmp_path / "none.cu", ()), "sm_90")


def test_many_at_once_each_with_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    good = [write(tmp_path, SCALE, "scale", macros=(("FACTOR", str(i)),)) for i in range(8)]
    bad = write(tmp_path / "bad", "nonsense", "scale")
    done = compile_all([*good, bad, good[0]], "sm_80", workers=4)
    assert list(done) == [*good, bad] and isinstance(done[bad], CompileError)
    assert all(isinstance(done[request], nvrtc.CompiledModule) for request in good)


def test_no_fast_math(tmp_path: Path) -> None:
    # With fast-math the division becomes an approximate one of a few instructions; the exact one needs many more.
    divide = write(
        tmp_path, 'extern "C" __global__ void divide(float* a, float b) { a[threadIdx.x] /= b; }\n', "divide"
    )
    exact = nvrtc.compile_cubin(divide, "sm_90").cubin.stat().st_size
    fast, *_ = nvrtc.library().compile(
        divide.source.read_bytes(), str(divide.source), ["-arch=sm_90", *nvrtc.OPTIONS, "--use_fast_math"]
    )
    assert fast is not None and exact > len(fast[0])


def test_a_kernel_whose_setmaxnreg_is_ignored_does_not_build(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void BOUNDS k(float* a) { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }'
    bounded = write(tmp_path, text, "k", macros=(("BOUNDS", "__launch_bounds__(384,1)"),))
    assert nvrtc.compile_cubin(bounded, "sm_90a").warnings == ()
    for _ in range(2):  # the second time from the cache
        with pytest.raises(
            CompileError, match=r"ptxas could not compile the kernel as written: .*\(C7508\).*setmaxnreg"
        ):
            nvrtc.compile_cubin(write(tmp_path, text, "k", macros=(("BOUNDS", ""),)), "sm_90a")


def test_architecture_follows_device_and_request() -> None:
    plain, special = BuildRequest(Path("x"), ()), BuildRequest(Path("x"), (), (), "9.0a")
    assert nvrtc.architecture((9, 0), plain) == "sm_90"
    assert nvrtc.architecture((9, 0), special) == "sm_90a"
    assert nvrtc.architecture((8, 6), plain) == "sm_86"
    newest = max(arch for arch in nvrtc.library().architectures() if arch // 10 == 12)
    assert nvrtc.architecture((12, 9), plain) == f"sm_{newest}"
    with needs_extra("nvrtc12"):
        nvrtc.architecture((99, 0), plain)


def test_each_architecture_takes_the_newest_compiler_that_knows_it() -> None:
    assert nvrtc.library("sm_90a") is nvrtc.library() is nvrtc.libraries()[0]
    for arch in ("sm_61", "sm_75", "sm_120"):
        chosen = nvrtc.library(arch)
        able = [one for one in nvrtc.libraries() if int(arch[3:]) in one.architectures()]
        assert chosen.version == max(one.version for one in able)
    with needs_extra("nvrtc12"):
        nvrtc.library("sm_20")


def test_a_compiler_reads_the_headers_of_its_own_release() -> None:
    folder = Path(next(o for o in nvrtc.include_options("sm_61") if Path(o[2:], "cuda.h").is_file())[2:])
    text = (folder / "cuda.h").read_text(errors="replace")
    assert f"#define CUDA_VERSION {nvrtc.library('sm_61').version[0]}" in text


def test_absence_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidate_libraries", lambda: ["/nowhere/libnvrtc.so"])
    nvrtc.libraries.cache_clear()
    try:
        with needs_extra("nvrtc"):
            nvrtc.library()
    finally:
        nvrtc.libraries.cache_clear()


def test_available_is_a_sentence_or_nothing() -> None:
    reason = why_missing()
    assert reason is None or reason.startswith("no CUDA device")
