"""What kernels take of a GPU that is not here, against what the compiler itself says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opbench import api
from opbench.errors import EnvironmentFault
from opbench.gpu.compile import nvrtc, resources, sass
from opbench.gpu.compile.cubin import read_cubin
from opbench.gpu.compile.resources import Resources, resources_of, resources_origin
from opbench.gpu.limits.products import PRODUCTS, product
from opbench.kernels.case import Case
from opbench.kernels.launch import BuildRequest
from support.common import CATALOG, kernel_variants
from support.needs import needs_nvrtc

pytestmark = pytest.mark.usefixtures("forked_workers")

VARIANTS = kernel_variants()


def first_case(operator: str, variant: str) -> Case:
    """A variant's first config on the first example that it fits."""
    found = CATALOG.variant(operator, variant)
    cases = (Case(found, found.configs[0], p) for p in CATALOG.operator(operator).examples())
    return next(case for case in cases if not case.unmet_requirement())


def only(case: Case, gpu: str = "h200") -> Resources:
    """The resources of one case."""
    ((index, found),) = resources_of([case], gpu)
    assert index == 0
    return found


# Against the compiler's own log -----------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize(("arch", "every"), [("sm_90a", 4), ("sm_80", 9)])
def test_a_cubin_says_what_the_compilers_log_says(arch: str, every: int) -> None:
    """The default config of every fourth, or ninth, variant; a log that lost a kernel is no contradiction."""
    able = [v for v in VARIANTS if arch.endswith("a") or (v.compute_capability or "8.0") <= "8.0"]
    compared = 0
    for variant in able[::every]:
        compiled = nvrtc.compile_cubin(first_case(variant.operator, variant.name).request(), arch)
        found = read_cubin(compiled.cubin.read_bytes()).kernels
        assert {compiled.names.get(kernel, kernel) for kernel in variant.kernels} <= set(found)
        for name, told in compiled.resources.items():
            read = found[name]
            assert (read.registers, read.shared_bytes, read.local_bytes) == (
                told.registers,
                told.shared_bytes,
                told.local_bytes,
            ), f"{variant.id} {name} {arch}"
            compared += 1
    assert compared >= len(able[::every])


BOUNDED = """extern "C" __global__ void __launch_bounds__(192) first(float* a) {
  __shared__ float s[100];
  s[threadIdx.x % 100] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[(threadIdx.x + 1) % 100];
}
extern "C" __global__ void second(float* a) {
  extern __shared__ float t[];
  t[threadIdx.x] = a[0];
  __syncthreads();
  a[threadIdx.x] = t[0];
}
"""


@needs_nvrtc
@pytest.mark.parametrize("name", PRODUCTS)
def test_bounds_and_shared_memory_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bounded.cu"
    path.write_text(BOUNDED)
    compiled = resources.compile_for(BuildRequest(path, ("first", "second")), PRODUCTS[name])
    first, second = compiled.kernels["first"], compiled.kernels["second"]
    assert (first.shared_bytes, first.max_threads_per_block) == (400, 192)
    assert (second.shared_bytes, second.max_threads_per_block) == (0, 1024), (
        "what the driver keeps for itself is not counted"
    )
    assert compiled.arch == PRODUCTS[name].arch


# Of cases ---------------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_a_case_has_the_form_of_a_cuda_run() -> None:
    found = only(first_case("matmul", "shared_tile"))
    assert found.missing == ""
    entry = found.kernels["matmul_shared_tile"]
    assert entry.registers == 32 and entry.shared_bytes == 8192 and entry.local_bytes == 0
    assert entry.block == (32, 32, 1) and entry.dynamic_shared_bytes == 0
    assert entry.occupancy == 1.0 and entry.limiter == "registers and warps"
    assert entry.source == "compiled for sm_90 by NVRTC {}.{}".format(*nvrtc.library().version)
    assert entry.spill_bytes == 0
    assert len(found.machine_code_sha256) == 64


@needs_nvrtc
def test_the_grid_is_that_of_the_named_gpu() -> None:
    variant = CATALOG.variant("copy", "grid_stride_vec4")
    case = Case(variant, variant.configs[0], CATALOG.operator("copy").from_axes({"n": 1 << 24}))
    grids = {gpu: only(case, gpu).kernels["copy_grid_stride_vec4"].grid[0] for gpu in ("h200", "l4")}
    per_sm = variant.configs[0]["BLOCKS_PER_SM"]
    assert grids == {"h200": 132 * per_sm, "l4": 58 * per_sm}


@needs_nvrtc
def test_the_machine_code_comes_along_where_nvdisasm_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = first_case("copy", "vec4")
    try:
        sass.nvdisasm()
    except EnvironmentFault:
        pass
    else:
        assert only(case).kernels["copy_vec4"].sass.accesses["LDG.128"] == 1
        assert "machine code missing" not in resources_origin("h200")

    def none() -> Path:
        raise sass.not_installed_error()

    monkeypatch.setattr(sass, "nvdisasm", none)
    monkeypatch.setenv("OPBENCH_CACHE", str(tmp_path))
    assert only(case).kernels["copy_vec4"].sass is None
    assert "machine code missing: nvdisasm is not installed" in resources_origin("h200")


def test_without_nvrtc_the_reason_stands_where_the_numbers_would(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(arch: str = "") -> nvrtc.Nvrtc:
        raise nvrtc.not_installed_error()

    monkeypatch.setattr(nvrtc, "library", none)
    monkeypatch.setattr(nvrtc, "libraries", none)
    found = only(first_case("relu", "scalar"))
    assert found.kernels == {} and found.missing.startswith(
        "NVRTC is not installed; install the missing package with: pip install"
    )
    assert resources_origin("h200").startswith("missing: NVRTC is not installed")


@needs_nvrtc
def test_what_nvrtc_rejects_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    case = first_case("relu", "scalar")
    path = tmp_path / "scalar.cu"
    path.write_text(case.variant.path.read_text().replace("blockIdx", "blokIdx"))
    broken = replace(case, variant=replace(case.variant, path=path))
    found = dict(resources_of([broken, case], "h200"))
    assert found[0].missing.startswith(f"NVRTC rejects the source: {path}:") and "blokIdx" in found[0].missing
    assert found[1].missing == "" and found[1].kernels


@needs_nvrtc
def test_a_gpu_that_lacks_what_a_variant_asks_for_is_told() -> None:
    case = first_case("relu", "scalar")
    case = replace(case, variant=replace(case.variant, compute_capability="9.0a"))
    assert only(case, "a100").missing == (
        "needs compute capability 9.0a, whose features only 9.0 has; A100 80GB SXM has 8.0"
    )
    assert next(iter(only(case).kernels.values())).source.startswith("compiled for sm_90a by")


def test_library_variants_and_cases_that_do_not_fit_are_left_out() -> None:
    problem = CATALOG.operator("relu").from_axes({"n": 5})
    library = Case(CATALOG.variant("relu", "torch"), {}, problem)
    fits = first_case("relu", "scalar")
    unfit = replace(fits, variant=replace(fits.variant, requires=("n > 1000000",)), problem=problem)
    assert unfit.unmet_requirement() and list(resources_of([library, unfit], "h200")) == []


def test_gpus_are_found_by_name_and_others_are_told() -> None:
    assert product("NVIDIA H200") is PRODUCTS["h200"] and product("GeForce RTX 4090") is PRODUCTS["rtx4090"]
    assert product("b300") is None
    assert only(first_case("relu", "scalar"), "b300").missing.startswith(
        "no architecture is known for GPU 'b300'; known:"
    )
    assert resources_origin("b300").startswith("missing: no architecture")


@needs_nvrtc
def test_a_cpu_run_keeps_them(tiny_suite: Path, tmp_path: Path) -> None:
    run = api.run(tiny_suite, backend="cpu", out=tmp_path / "run", report=False, gpu="a100")
    assert run.header.environment.resources.startswith("compiled for A100 80GB SXM, compute capability 8.0, by NVRTC")
    for result in run.results:
        (entry,) = result.resources.values()
        assert entry.source.startswith("compiled for sm_80 by NVRTC") and entry.registers > 0
        assert result.resources_missing == ""
