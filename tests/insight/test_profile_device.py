"""What only a GPU with Nsight Compute can show: that the counters of a known kernel come out as computed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from opbench.errors import EnvironmentFault
from opbench.gpu.driver import why_missing
from opbench.insight.nsight import commands, tools
from opbench.insight.nsight.commands import ProfileTarget
from opbench.insight.nsight.tools import current_chip
from opbench.results.files import RunWriter, read_run
from opbench.running import profile
from opbench.running.profile import ProfileOptions, profile_case

_WHY_NOT = why_missing() or (None if tools.locate("ncu") else "no ncu") or (
    None if tools.counter_permission().allowed is not False else "no permission to read counters"
) or (
    None if importlib.util.find_spec("nvtx") else "no nvtx"
)  # fmt: skip
pytestmark = pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))

CASE = "axpy/plain[BLOCK=256](n=67108864)"
N = 1 << 26
KERNEL = """
extern "C" __global__ void axpy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(2.0f, x[i], y[i]);
}
"""
# As `profile-target` does: once to warm up, once within the range.
PROGRAM = """
import sys
from pathlib import Path
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.gpu.driver import CudaBackend
from opbench.nvtx import case_range
n, backend = {n}, CudaBackend()
buffers = {{name: backend.allocate(name, (n,), "f32") for name in "xy"}}
step = KernelLaunch("axpy", (n // 256, 1, 1), (256, 1, 1), 0, ("x", "y", n))
launch = backend.load(BuildRequest(Path({source!r}), ("axpy",))).bind([step], buffers)
launch()
backend.synchronize()
with case_range({case!r}, "axpy"):
    launch()
    backend.synchronize()
"""


@pytest.fixture
def target(tmp_path: Path) -> ProfileTarget:
    source = tmp_path / "axpy.cu"
    source.write_text(KERNEL)
    program = PROGRAM.format(n=N, source=str(source), case=CASE)
    return ProfileTarget(CASE, (sys.executable, "-c", program), chip=current_chip())


def test_the_counters_of_a_known_kernel(tmp_path: Path, target: ProfileTarget) -> None:
    writer = RunWriter(tmp_path / "run")
    writer.write("run", {"format": 1})
    line = profile_case(target, tmp_path / "run", ProfileOptions(), writer, print)
    writer.close()
    assert [k["kernel"] for k in line["kernels"]] == ["axpy"], "the launch outside of the range is not to be seen"
    assert line["fp32_flops"] == line["flops"] == 2 * N
    assert line["global_load_requests"] == 2 * N // 32 and line["global_store_requests"] == N // 32
    assert line["sectors_per_request_load"] == line["sectors_per_request_store"] == 4
    # Up to one L2 of stores may still be on its way to memory when the kernel ends.
    assert 0.9 * 12 * N - 128e6 < line["dram_bytes"] < 1.1 * 12 * N
    assert line["l2_bytes"] >= 0.99 * 12 * N
    assert 0.3 < line["achieved_occupancy"] <= 1
    assert 1e8 < line["sm_clock_hz"] < 4e9
    assert 1e10 < line["dram_bytes"] / line["time_s"] < 2e13
    assert line["shared_load_wavefronts"] == 0 and line["local_load_instructions"] == 0
    assert 0.9 < sum(line["stall_shares"].values()) <= 1.05
    assert line["missing"] == []
    assert line["kernels"][0]["metrics"]["launch__grid_size"] == N // 256
    assert CASE in read_run(tmp_path / "run").counters


def test_a_metric_that_the_chip_lacks_is_missing_or_refused(
    tmp_path: Path, target: ProfileTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nsight Compute 2025.3 leaves it out without a word; other releases fail."""
    for module in (commands, profile):
        monkeypatch.setattr(module, "metric_names", lambda chip, precision: ("no__such_metric.sum",))
    try:
        line = profile_case(target, tmp_path / "run", ProfileOptions(), None, print)
    except EnvironmentFault as fault:
        assert "no__such_metric" in str(fault)
    else:
        assert line["missing"] == ["no__such_metric.sum"] and line["time_s"] is None


def test_a_range_that_never_opens_is_explained(tmp_path: Path, target: ProfileTarget) -> None:
    other = ProfileTarget("axpy/other(n=1)", target.argv, chip=target.chip)
    with pytest.raises(EnvironmentFault) as raised:
        profile_case(other, tmp_path / "run", ProfileOptions(), None, print)
    assert raised.value.kind in ("no-report", "no-kernel"), raised.value
