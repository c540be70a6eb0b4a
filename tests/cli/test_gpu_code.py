"""What `opbench check` says of a kernel on the GPU, from NVRTC where it is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opbench import api
from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.resources import resources_of
from opbench.kernels.case import Case
from opbench.running.server import representative_modules
from support.common import CATALOG, RELU, Cli
from support.needs import needs_nvrtc

pytestmark = pytest.mark.usefixtures("forked_workers")

PLAIN = RELU.replace('extern "C" __global__', "__global__")
VECTOR = RELU.replace('extern "C"', '#include <vector>\nextern "C"')

REFUSED = RELU.replace("blockIdx.x *", "__builtin_popcount(0) + blockIdx.x *")


@needs_nvrtc
def test_a_kernel_that_nvrtc_refuses_is_not_right(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(REFUSED)
    done = cli("check", relu_file)
    assert done.returncode == 1, done.stdout
    assert re.search(r"relu/mine  \d+ failed, refused by NVRTC", done.stdout)
    assert "mine.cu:9: failed-case: right on the CPU, but NVRTC refuses it for sm_90: " in done.stdout
    assert done.stdout.count("refuses it for") == 1, "one message for all cases"


@needs_nvrtc
def test_a_right_kernel_says_what_it_compiles_for_unless_told_not_to(cli: Cli, relu_file: Path) -> None:
    done = cli("check", relu_file)
    assert done.returncode == 0 and re.fullmatch(r"relu/mine  \d+ right, compiles for sm_90", done.stdout.strip())
    for text in (PLAIN, VECTOR):
        relu_file.write_text(text)
        assert cli("check", relu_file).stdout == done.stdout
    left_out = cli("check", relu_file, "--cpu-only")
    assert left_out.returncode == 0 and re.fullmatch(r"relu/mine  \d+ right", left_out.stdout.strip())


@needs_nvrtc
def test_a_run_on_the_cpu_fails_it_too_and_a_check_tries_a_few_modules(tmp_path: Path, relu_file: Path) -> None:
    relu_file.write_text(REFUSED)
    run = api.run(relu_file, cases=["relu/mine"], backend="cpu", out=tmp_path / "out", report=False)
    assert {r.status for r in run.results} == {"failed"} and "NVRTC refuses it" in run.results[0].reason
    relu_file.write_text(RELU.replace("title =", "tune = { UNROLL = [1, 2, 3, 4, 5, 6, 7, 8] }\n// title ="))
    found = api.check([relu_file], random_shapes=0)
    assert {r.config["UNROLL"] for r in found if r.compiled_for} == {1, 3, 5, 7}
    assert {r.status for r in found} == {"right"}


def test_a_few_modules_show_each_value_of_each_tunable(relu_file: Path) -> None:
    """What a GPU's compiler refuses of one value alone is seen; no size is tried in its place."""
    tuned = "tune = { A = [1, 2], B = [1, 2, 3], C = [1, 2, 3, 4] }\n// define = { SIZE = 'n' }\n// title ="
    relu_file.write_text(RELU.replace("title =", tuned))
    catalog = CATALOG
    variant = catalog.variant_file(relu_file)
    cases = [Case(variant, c, p) for p in catalog.operator("relu").examples() for c in variant.configs]
    chosen = representative_modules(dict(enumerate(cases))).values()
    assert len({case.request() for case in chosen}) == 4
    for name, values in variant.tune.items():
        assert {case.config[name] for case in chosen} == set(values), name


def test_without_nvrtc_nothing_is_refused(relu_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(arch: str = "") -> None:
        raise nvrtc.not_installed_error()

    monkeypatch.setattr(nvrtc, "library", missing)
    catalog = CATALOG
    case = Case(catalog.variant_file(relu_file), {}, catalog.operator("relu").parse("(n=5)"))
    ((_, found),) = resources_of([case], "h200")
    assert found.compile_error is None and found.missing == str(nvrtc.not_installed_error())
