"""What `opbench check` says of a kernel on the GPU, from NVRTC where it is installed, else from the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from common import RELU, Cli

from opbench import api
from opbench.backends.nvrtc import nvrtc
from opbench.backends.nvrtc.resources import resources_of
from opbench.backends.nvrtc.source import source_fault
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.catalog.launch import BuildRequest
from opbench.errors import EnvironmentFault

PLAIN = RELU.replace('extern "C" __global__', "__global__")
VECTOR = RELU.replace('extern "C"', '#include <vector>\nextern "C"')


def installed() -> bool:
    """Whether there is an NVRTC."""
    try:
        nvrtc.library()
    except EnvironmentFault:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not installed(), reason="NVRTC is not installed")


@needs_nvrtc
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (PLAIN, "unknown kernel 'mine'; known: _Z4minePKfPfi (is it extern \"C\" __global__?)"),
        (VECTOR, 'mine.cu:8: catastrophic error: cannot open source file "vector"'),
        (RELU.replace("blockIdx.x *", "__builtin_popcount(0) + blockIdx.x *"), "mine.cu:9: error: "),
    ],
)
def test_a_kernel_that_nvrtc_refuses_is_not_right(cli: Cli, relu_file: Path, source: str, words: str) -> None:
    relu_file.write_text(source)
    done = cli("check", relu_file)
    assert done.returncode == 1, done.stdout
    assert "10 failed, refused by NVRTC" in done.stdout
    assert "failed: right on the CPU, but NVRTC refuses it for sm_90: " in done.stdout and words in done.stdout
    assert done.stdout.count("refuses it for") == 1, "one message for all cases"


@needs_nvrtc
def test_a_right_kernel_says_what_it_compiles_for_unless_told_not_to(cli: Cli, relu_file: Path) -> None:
    done = cli("check", relu_file)
    assert (done.returncode, done.stdout.strip()) == (0, "relu/mine  10 right, compiles for sm_90")
    relu_file.write_text(PLAIN)
    left_out = cli("check", relu_file, "--cpu-only")
    assert (left_out.returncode, left_out.stdout.strip()) == (0, "relu/mine  10 right")


@needs_nvrtc
def test_a_run_on_the_cpu_fails_it_too_and_a_check_tries_a_few_modules(tmp_path: Path, relu_file: Path) -> None:
    relu_file.write_text(PLAIN)
    run = api.run(relu_file, cases=["relu/mine"], backend="cpu", out=tmp_path / "out", report=False)
    assert {r.status for r in run.results} == {"failed"} and "NVRTC refuses it" in run.results[0].reason
    relu_file.write_text(RELU.replace("title =", "tune = { UNROLL = [1, 2, 3, 4, 5, 6, 7, 8] }\n// title ="))
    found = api.check([relu_file], random_shapes=0)
    assert {r.config["UNROLL"] for r in found if r.compiled_for} == {1, 3, 5, 7}
    assert {r.status for r in found} == {"right"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (RELU, ""),
        (RELU.replace('extern "C" __global__', 'extern "C" {\n__global__') + "}\n", ""),
        (RELU.replace('extern "C" __global__', 'extern "C"\n__global__ __launch_bounds__(256)'), ""),
        (VECTOR.replace("#include", "#ifdef HOST\n#include").replace("<vector>", "<vector>\n#endif"), ""),
        (PLAIN, ":8: kernel 'mine' is not extern \"C\""),
        (PLAIN.replace("__global__", '// extern "C"\n__global__'), ":9: kernel 'mine' is not extern \"C\""),
        (VECTOR, ":8: <vector> is a header of the host, which NVRTC has not"),
    ],
)
def test_without_nvrtc_the_source_tells(
    tmp_path: Path, source: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(source)
    fault = source_fault(BuildRequest(path, ("mine",)))
    assert fault == "" if not words else f"{path}{words}" in fault

    def missing() -> None:
        raise EnvironmentFault(nvrtc.NOT_INSTALLED)

    monkeypatch.setattr(nvrtc, "library", missing)
    catalog = Catalog()
    case = Case(catalog.variant_file(path), {}, catalog.operator("relu").parse("(n=5)"))
    ((_, found),) = resources_of([case], "h200")
    assert found.refused == fault and found.missing == nvrtc.NOT_INSTALLED


@pytest.mark.parametrize("operator", Catalog().operator_names())
def test_no_shipped_kernel_is_accused(operator: str) -> None:
    for variant in Catalog().variants(operator):
        if not variant.is_library:
            assert source_fault(BuildRequest(variant.path, variant.kernels)) == ""
