"""Where the tools are found, who may read counters, and which remedy each failure gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.insight.nsight import tools
from support.checks.errors import refuses

CASE = "matmul/tiled[TILE=16](m=64,n=64,k=64)"


def fault(output: str, returncode: int = 1) -> OpbenchError | None:
    return tools.fault_of("ncu", CASE, returncode, output.splitlines(), "opbench check mine.cu")


def test_permission_gets_the_whole_ladder_and_what_works_without(permission_output: str) -> None:
    found = fault(permission_output)
    assert isinstance(found, EnvironmentFault) and found.exit_code == 3
    for step in ("ERR_NVGPUCTRPERM", "sudo -E", "NVreg_RestrictProfilingToAdminUsers=0", "update-initramfs -u",
                 "--cap-add=SYS_ADMIN", "opbench run"):  # fmt: skip
        assert step in str(found)


def test_permission_is_seen_even_when_the_tool_exits_with_0(permission_output: str) -> None:
    assert isinstance(fault(permission_output, 0), EnvironmentFault)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("==ERROR== An error was reported by the counter measurement library:\n==ERROR== Failed to initialize the "
         "profiler: LibraryNotLoaded. Check that a compatible driver library is loaded.", "nvidia-smi"),
        ("==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).\n"
         "==ERROR== The application returned an error code (1).", "LD_LIBRARY_PATH"),
        ("==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) "
         "is concurrently collecting profiling data.\n==ERROR== The application returned an error code (9).",
         "dcgmi profile --pause"),
        ("==ERROR== Failed to find metric regex:^bad_metric$", "bad_metric"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "ncu --version"),
        ("==WARNING== No kernels were profiled.", "pip install"),
    ],
)  # fmt: skip
def test_each_failure_has_its_remedy(message: str, remedy: str) -> None:
    found = fault(message, 0)
    assert isinstance(found, EnvironmentFault)
    assert remedy in str(found)


@pytest.mark.parametrize(
    ("code", "kind"), [(1, LaunchError), (2, UsageError), (3, EnvironmentFault), (139, LaunchError)]
)
def test_the_programs_own_failure_keeps_its_kind(code: int, kind: type[OpbenchError]) -> None:
    found = fault(
        f"{CASE}: wrong at out[0,3]: got 0.0, want 1.37\n==ERROR== The application returned an error code ({code})."
    )
    assert type(found) is kind
    assert "wrong at out[0,3]" in str(found) and "without it: opbench check mine.cu" in str(found)


def test_a_tool_that_dies_silently_is_still_a_failure() -> None:
    assert "it printed nothing" in str(fault("", 137))


def test_success_is_no_failure() -> None:
    assert fault('==PROF== Profiling "k" - 0: 0%....50%....100% - 8 passes\n==PROF== Report: x.ncu-rep', 0) is None


def test_a_tool_off_the_path_is_found_where_installers_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert tools.locate("ncu", tmp_path) is None
    for version in ("2025.9.0", "2025.10.1"):
        folder = tmp_path / "opt/nvidia/nsight-compute" / version
        folder.mkdir(parents=True)
        (folder / "ncu").touch()
    found = tools.locate("ncu", tmp_path)
    assert found is not None and "2025.10.1" in found


@pytest.mark.parametrize("tool", ["ncu", "nsys"])
def test_a_missing_tool_says_where_to_get_it(tool: tools.Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "locate", lambda tool: None)
    with refuses("tool-missing", tool, error=EnvironmentFault):
        tools.find_tool(tool)


def test_a_second_profiler_is_refused() -> None:
    with refuses("profiler-attached", "CUDA_INJECTION64_PATH", error=EnvironmentFault):
        tools.require_no_profiler({"CUDA_INJECTION64_PATH": "/tool.so"})
    tools.require_no_profiler({"HOME": "/"})


@pytest.mark.parametrize(
    ("restricted", "capabilities", "driver", "allowed"),
    [
        ("0", "0000000000000000", "550.54.15", True),
        ("1", "0000000000000000", "580.65.06", False),
        ("1", "000001ffffffffff", "550.54.15", True),
        ("1", "0000004000000000", "580.65.06", True),
        ("1", "0000004000000000", "550.54.15", False),
    ],
)
def test_who_may_read_counters(tmp_path: Path, restricted: str, capabilities: str, driver: str, allowed: bool) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/driver/nvidia/params").write_text(f"ResmanDebugLevel: 1\nRmProfilingAdminOnly: {restricted}\n")
    (tmp_path / "proc/driver/nvidia/version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module  {driver}  Release\n"
    )
    (tmp_path / "proc/self/status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    assert tools.counter_permission(tmp_path).allowed is allowed


class Gpu:
    """Stands for the driver's library."""

    def __init__(self, capability: tuple[int, int], code: int = 0) -> None:
        self.capability = dict(zip(tools.CAPABILITY_ATTRIBUTES, capability, strict=True))
        self.code = code

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuDeviceGetAttribute(self, number: Any, attribute: int, ordinal: int) -> int:
        number._obj.value = self.capability[attribute]
        return 0


@pytest.mark.parametrize(("gpu", "chip"), [(Gpu((9, 0)), "GH100"), (Gpu((99, 0)), ""), (Gpu((9, 0), code=100), "")])
def test_the_chip_of_this_machine(gpu: Gpu, chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.ctypes, "CDLL", lambda name: gpu)
    assert tools.current_chip() == chip


def test_without_a_driver_there_is_no_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(tools.ctypes, "CDLL", absent)
    assert tools.current_chip() == ""


def test_without_a_driver_nobody_knows(tmp_path: Path) -> None:
    assert tools.counter_permission(tmp_path).allowed is None
