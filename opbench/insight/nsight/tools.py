"""Find Nsight's tools, check the permission to read hardware counters, and explain the tools' failures."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.insight.nsight.commands import Tool
from opbench.insight.nsight.metrics import chip_of
from opbench.nvtx import tool_attached

FULL_NAMES = {"ncu": "Nsight Compute", "nsys": "Nsight Systems"}
TOOL_PATTERNS: dict[Tool, tuple[str, ...]] = {
    "ncu": ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda-*/bin/ncu"),
    "nsys": ("/usr/local/cuda/bin/nsys", "/opt/nvidia/nsight-systems/*/bin/nsys",
             "/opt/nvidia/nsight-systems/*/target-linux-*/nsys", "/usr/local/cuda-*/bin/nsys"),
}  # fmt: skip
WITHOUT_COUNTERS = (
    "opbench run needs no counters: it times with events and places each case on the roofline by its computed "
    "FLOPs and bytes"
)

CAPABILITY_ATTRIBUTES = (75, 76)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
CAP_SYS_ADMIN = 21
CAP_PERFMON = 38
PERFMON_DRIVER = 565
"""From this driver version on, CAP_PERFMON is enough to read counters."""


def locate(tool: Tool, root: Path = Path("/")) -> str | None:
    """Return the tool on PATH, else the newest one in the installers' folders, else None."""
    if path := shutil.which(tool):
        return path
    for pattern in TOOL_PATTERNS[tool]:
        matches = sorted(root.glob(pattern.lstrip("/")), key=_version_key)
        if matches:
            return str(matches[-1])
    return None


def _version_key(path: Path) -> list[int]:
    """Return the numbers in a path, which sort 2025.10 after 2025.9."""
    return [int(digits) for digits in re.findall(r"\d+", str(path))]


def find_tool(tool: Tool) -> str:
    """Return the tool's path; raise EnvironmentFault that says where to get it."""
    if path := locate(tool):
        return path
    raise EnvironmentFault(
        f"{tool} ({FULL_NAMES[tool]}) is neither on PATH nor in {', '.join(TOOL_PATTERNS[tool])}; "
        f"{where_to_get(tool)}; "
        f"{WITHOUT_COUNTERS}",
        kind="tool-missing",
        subject=tool,
    )


def where_to_get(tool: Tool) -> str:
    """Return where the tool comes from and how opbench finds it."""
    page = FULL_NAMES[tool].lower().replace(" ", "-")
    return (
        f"it comes with the CUDA toolkit, as the package {page} and from developer.nvidia.com/{page}; "
        f'then: export PATH="$PATH:FOLDER-OF-{tool.upper()}"'
    )


def require_no_profiler(environment: Mapping[str, str] | None = None) -> None:
    """Raise EnvironmentFault if this process itself runs under a profiler: only one can use the counters."""
    if variable := tool_attached(environment):
        raise EnvironmentFault(
            f"a profiler is already attached to this process ({variable} is set) and only one can own the counters; "
            f"run opbench profile without that profiler, or, if no profiler is running, with: env -u {variable} "
            "opbench profile …",
            kind="profiler-attached",
            subject=variable,
        )


@dataclass(frozen=True)
class Permission:
    """Whether this process may read hardware counters (None if unknown), and the evidence."""

    allowed: bool | None
    seen: str


def counter_permission(root: Path = Path("/")) -> Permission:
    """Read the driver's restriction and this process's capabilities."""
    params, status = _read_text(root / "proc/driver/nvidia/params"), _read_text(root / "proc/self/status")
    restricted = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", params, re.MULTILINE)
    mask = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    capabilities = int(mask[1], 16) if mask else 0
    driver = re.search(r"\b(\d{3,})\.\d+", _read_text(root / "proc/driver/nvidia/version"))
    if restricted is None:
        return Permission(None, "no NVIDIA driver found (/proc/driver/nvidia/params cannot be read)")
    if restricted[1] == "0":
        return Permission(True, "the driver lets every user read counters")
    if capabilities >> CAP_SYS_ADMIN & 1:
        return Permission(True, "the driver asks for an administrator, and this process has CAP_SYS_ADMIN")
    if capabilities >> CAP_PERFMON & 1 and driver is not None and int(driver[1]) >= PERFMON_DRIVER:
        return Permission(True, "the driver asks for an administrator, and this process has CAP_PERFMON")
    return Permission(False, "the driver lets only administrators read counters (RmProfilingAdminOnly: 1)")


def _read_text(path: Path) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def current_chip() -> str:
    """Return the chip of the first GPU, such as "GH100"; "" without a known GPU. It creates no CUDA context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        capability = [ctypes.c_int(), ctypes.c_int()]
        failed = driver.cuInit(0) or any(
            driver.cuDeviceGetAttribute(ctypes.byref(component), attribute, 0)
            for component, attribute in zip(capability, CAPABILITY_ATTRIBUTES, strict=True)
        )
    except (OSError, AttributeError):
        return ""
    return "" if failed else chip_of("{}.{}".format(*(component.value for component in capability)))


PERMISSION_LADDER = (
    "as root: sudo -E env PATH=\"$PATH\" opbench profile …",
    "for good, on the host: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/opbench-counters.conf && sudo update-initramfs -u, then reboot",
    "in a container: start it with --cap-add=SYS_ADMIN (the host must allow it)",
    "in WSL or on Windows: NVIDIA Control Panel, Developer, allow access to the GPU performance counters to all users",
)  # fmt: skip
"""Ways to get the permission, the quickest first."""


def permission_fault(tool: Tool, experiment_command: str = "") -> EnvironmentFault:
    """Return an error that lists every way to get the permission to read counters, and what works without it.

    `experiment_command` finds the limit of the case without counters.
    """
    remedies = "".join(f"\n  {remedy}" for remedy in PERMISSION_LADDER)
    experiment_text = f"\nwhat limits the kernel, without counters: {experiment_command}" if experiment_command else ""
    return EnvironmentFault(
        f"{tool} may not read this GPU's hardware counters (ERR_NVGPUCTRPERM); any one of these helps:{remedies}\n"
        f"without counters: {WITHOUT_COUNTERS}{experiment_text}",
        kind="no-permission",
        subject=tool,
    )


_KNOWN_FAULTS: tuple[tuple[str, str], ...] = (
    (
        r"LibraryNotLoaded",
        "{tool} could not load the driver's profiling library (LibraryNotLoaded): it does not fit the driver, or this "
        "is a sandbox that hides the library (gVisor does); compare `{tool} --version` with nvidia-smi and install the "
        "{name} of that CUDA release; " + WITHOUT_COUNTERS,
    ),
    (
        r"stub libcuda|failed to connect to the CUDA driver",
        "{tool} found no working CUDA driver: {line}; take folders named stubs out of LD_LIBRARY_PATH, then: "
        "opbench doctor",
    ),
    (
        r"driver resource was unavailable|InterprocessLock|lock file",
        "another profiler owns this GPU's counters (another {tool}, or DCGM): {line}; end it, or pause DCGM with: "
        "dcgmi profile --pause (afterwards: dcgmi profile --resume)",
    ),
    (
        r"Failed to find metric",
        "{tool} does not know a metric that was asked for: {line}; this {name} does not fit the GPU, see `{tool} "
        "--version`; " + WITHOUT_COUNTERS,
    ),
    (
        r"[Nn]ot compatible with|[Uu]nsupported GPU|not supported on (?:this )?device",
        "{tool} does not support this GPU or driver: {line}; compare `{tool} --version` with nvidia-smi",
    ),
    (
        r"No space left on device",
        "{tool} ran out of disk space; choose another folder with --out DIR, or free some (df -h)",
    ),
)


def fault_of(
    tool: Tool, case: str, returncode: int, output: Sequence[str], check_command: str = "", experiment_command: str = ""
) -> OpbenchError | None:
    """Return the error that the tool's messages describe; None if there is none.

    `check_command` checks the case without the tool, `experiment_command` finds its limit without counters. A failure
    of the profiled program becomes the error of its exit code.
    """
    text = "\n".join(output)
    if re.search(r"ERR_NVGPUCTRPERM|InsufficientPrivileges|INSUFFICIENT_PRIVILEGES", text):
        return permission_fault(tool, experiment_command)
    for pattern, remedy in _KNOWN_FAULTS:
        if match := re.search(pattern, text):
            message_line = (
                text[text.rfind("\n", 0, match.start()) + 1 :].splitlines()[0].removeprefix("==ERROR== ").strip()
            )
            return EnvironmentFault(
                remedy.format(tool=tool, name=FULL_NAMES[tool], line=message_line),
                kind="tool-fault",
                subject=tool,
                value=message_line,
            )
    exit_code = re.search(r"application returned an error code \((\d+)\)", text)
    if exit_code or returncode:
        return _target_fault(tool, case, int(exit_code[1]) if exit_code else returncode, output, check_command)
    if "No kernels were profiled" in text:
        return EnvironmentFault(
            f"{case}: {tool} saw no kernel within the case's range; is nvtx installed for this Python? (pip install "
            "nvtx; see: opbench doctor)",
            kind="no-kernel",
            subject=case,
        )
    return None


def _target_fault(tool: Tool, case: str, exit_code: int, output: Sequence[str], check_command: str) -> OpbenchError:
    """Return the error of a profiled program that failed, by its exit code and last messages."""
    program_output = [line for line in output if line.strip() and not line.startswith("==")]
    message = "; ".join(line.strip() for line in program_output[-3:]) or (
        output[-1].strip() if output else "it printed nothing"
    )
    error_class = {2: UsageError, 3: EnvironmentFault}.get(exit_code, LaunchError)
    check_text = f"; without it: {check_command}" if check_command else ""
    return error_class(
        f"{case}: under {tool} it ended with code {exit_code}: {message}{check_text}",
        kind="program-failed",
        subject=case,
        value=exit_code,
    )
