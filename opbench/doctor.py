"""`opbench doctor`: what this machine has, what is missing, and the command that installs it. No probe raises."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from opbench import paths, units
from opbench._version import __version__
from opbench.cage.facts import available
from opbench.errors import EXIT_ENVIRONMENT, EXIT_OK
from opbench.insight.nsight import tools
from opbench.insight.nsight.commands import Tool
from opbench.nvtx import tool_attached
from opbench.records import JSON

if TYPE_CHECKING:
    from rich.console import Console

State = Literal["ok", "missing", "warning"]
OLDEST_GCC = 10
"""The oldest version of g++ for the cpu backend, whose headers use `__constinit`."""
MIN_FREE_BYTES = 1e9
PROBE_LIMIT_S = 20.0


@dataclass(frozen=True)
class Requirement:
    """A requirement of opbench on this machine, such as a GPU or a compiler: its state, and how to get it."""

    name: str
    state: State
    seen: str
    """A sentence on what the probe found."""
    remedy: str = ""
    """The command that installs or repairs the requirement; empty if nothing has to be done."""


def diagnose() -> list[Requirement]:
    """Probe everything that opbench can use on this machine."""
    probes: list[tuple[str, Callable[[], Requirement]]] = [
        ("Python", _python), ("opbench", _opbench), ("packages", _packages),
        ("GPU", _gpu), ("NVRTC", _nvrtc), ("variants", _variants), ("CuPy", _cupy), ("NVML", _nvml),
        ("host compiler", _compiler), ("cage", _cage),
        ("Nsight Compute", lambda: _profiler("ncu")), ("Nsight Systems", lambda: _profiler("nsys")),
        ("compute-sanitizer", _sanitizer),
        ("hardware counters", _counters), ("profiler attached", _profiler_attached),
        ("cache", _cache), ("disk", _disk), ("terminal", _terminal),
    ]  # fmt: skip
    rows = [_run_probe(name, probe) for name, probe in probes]
    return [*rows, *_backends({row.name: row for row in rows})]


def exit_code(rows: Sequence[Requirement]) -> int:
    """Return 0 if at least one backend works, else 3."""
    works = any(row.state == "ok" for row in rows if row.name.startswith("backend "))
    return EXIT_OK if works else EXIT_ENVIRONMENT


def to_json(rows: Sequence[Requirement]) -> list[dict[str, JSON]]:
    """Return the rows as JSON values."""
    return [asdict(row) for row in rows]


def print_report(rows: Sequence[Requirement], console: Console) -> None:
    """Print one entry per row, with each remedy below its row; a remedy is not wrapped, so that it can be pasted."""
    from rich.text import Text

    styles = {"ok": "green", "missing": "red", "warning": "yellow"}
    width = max(len(row.name) for row in rows)
    for row in rows:
        line = (
            Text(f"{row.name:{width}}  ")
            .append(f"{row.state:7}", styles[row.state])
            .append(f"  {units.wrap_last_column(row.seen, width + 11, console.width if console.is_terminal else 0)}")
        )
        console.print(line, soft_wrap=True)
        if row.remedy:
            console.print(Text(f"{'':{width + 9}}  → {row.remedy}", "bold"), soft_wrap=True)


def _run_probe(name: str, probe: Callable[[], Requirement]) -> Requirement:
    """Return the result of a probe; a warning if the probe raises an exception."""
    try:
        return probe()
    except Exception as error:  # a broken library must not hide what the other probes see
        return Requirement(name, "warning", f"could not be checked: {type(error).__name__}: {error}")


def _backends(rows: dict[str, Requirement]) -> list[Requirement]:
    """Return one requirement per backend: "ok" if the other requirements, `rows` by name, allow it to run."""
    needs_by_backend = {"cuda": ("GPU", "NVRTC"), "cpu": ("host compiler",)}
    purpose = {"cuda": "checks and times", "cpu": "checks and counts traffic, needs no GPU"}
    backends = []
    for backend, names in needs_by_backend.items():
        missing_needs = [rows[name] for name in names if rows[name].state == "missing"]
        if missing_needs:
            text = " and ".join(row.name for row in missing_needs)
            backends.append(Requirement(f"backend {backend}", "missing", f"needs {text}", missing_needs[0].remedy))
        else:
            backends.append(Requirement(f"backend {backend}", "ok", purpose[backend]))
    return backends


def _python() -> Requirement:
    return Requirement("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _opbench() -> Requirement:
    return Requirement("opbench", "ok", f"{__version__} at {paths.PACKAGE}")


def _packages() -> Requirement:
    """Return whether the Python packages that opbench's own metadata requires are installed."""
    installed, missing = [], []
    for requirement in _requirements():
        match = re.match(r"([A-Za-z0-9_.-]+)\s*(?:>=\s*([\d.]+))?", requirement)
        if match is None:
            continue
        name, minimum = match[1], match[2] or "0"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{name}>={minimum}")
            continue
        installed.append(f"{name} {version}")
        if _version_numbers(version) < _version_numbers(minimum):
            missing.append(f"{name}>={minimum}")
    if missing:
        install = f"{sys.executable} -m pip install " + " ".join(f"'{name}'" for name in missing)
        return Requirement(
            "packages", "missing", f"lacking {', '.join(missing)}; has {', '.join(installed) or 'none'}", install
        )
    return Requirement("packages", "ok", ", ".join(installed))


def _requirements() -> list[str]:
    """Return the packages that opbench requires without extras, such as "numpy>=2"."""
    try:
        listed = importlib.metadata.requires("opbench") or []
    except importlib.metadata.PackageNotFoundError:
        # A source tree that is run without being installed.
        project = tomllib.loads((paths.PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
        listed = project["project"]["dependencies"]
    return [requirement for requirement in listed if "extra ==" not in requirement]


def _version_numbers(version: str) -> list[int]:
    """Return the first three numbers of a version."""
    return [int(digits) for digits in re.findall(r"\d+", version)[:3]]


def _gpu() -> Requirement:
    """Return the state of the driver and its devices, read through the driver's library; no CUDA package is needed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Requirement("GPU", "missing", "no NVIDIA driver (libcuda.so.1)",
                   "install NVIDIA's driver; in a container add --gpus all; without a GPU: --backend cpu")  # fmt: skip
    if code := driver.cuInit(0):
        return Requirement("GPU", "missing", f"the driver is installed, but cuInit fails with error {code}",
                   "see what nvidia-smi says; after an update of the driver: reboot")  # fmt: skip
    count, version = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    if not count.value:
        return Requirement("GPU", "missing", "the driver sees no GPU", "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L")
    names = ", ".join(
        f"{name} ({major}.{minor})" for name, (major, minor) in (_device(driver, n) for n in range(count.value))
    )
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Requirement("GPU", "ok", f"{names}; driver {_driver_version()}, CUDA {cuda}")


def _capabilities() -> list[tuple[int, int]]:
    """Return the distinct compute capabilities of the GPUs here; none without a working driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return sorted({_device(driver, ordinal)[1] for ordinal in range(count.value)})


def _device(driver: ctypes.CDLL, ordinal: int) -> tuple[str, tuple[int, int]]:
    """Return a device's name and compute capability."""
    name, major, minor = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetName(name, len(name), ordinal)
    for number, attribute in zip((major, minor), tools.CAPABILITY_ATTRIBUTES, strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, ordinal)
    return name.value.decode(errors="replace"), (major.value, minor.value)


def _driver_version() -> str:
    """Return the version of NVIDIA's driver, from the kernel or from nvidia-smi."""
    loaded = Path("/proc/driver/nvidia/version")
    match = re.search(r"\d{3,}\.\d+(\.\d+)?", loaded.read_text(errors="replace")) if loaded.exists() else None
    return match[0] if match else _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])


def _nvrtc() -> Requirement:
    """Return whether NVRTC is installed and compiles for the GPUs of this machine."""
    from opbench.errors import EnvironmentFault
    from opbench.gpu.compile import nvrtc
    from opbench.kernels.launch import BuildRequest

    try:
        libraries = nvrtc.libraries()
    except EnvironmentFault as fault:
        text = str(fault).partition(";")[0]
        return Requirement("NVRTC", "missing", text, f"{sys.executable} -m {paths.pip_install('cuda13')}")
    found_versions = []
    for library in libraries:
        architectures, version = library.architectures(), ".".join(map(str, library.version))
        found_versions.append(f"{version} for sm_{architectures[0]} to sm_{architectures[-1]} at {library.path}")
    for capability in _capabilities():
        try:
            nvrtc.architecture(capability, BuildRequest(source=libraries[0].path, kernels=()))
        except EnvironmentFault as fault:
            remedy = f"{sys.executable} -m {paths.pip_install('nvrtc12')}"
            return Requirement("NVRTC", "missing", str(fault).partition(";")[0], remedy)
    return Requirement("NVRTC", "ok", "; ".join(found_versions))


def _variants() -> Requirement:
    """Return how many shipped variants the GPUs here can run, and which compute capabilities the variants need."""
    from opbench.gpu.limits.capability import OLDEST_CAPABILITY
    from opbench.kernels.capability import missing_capability
    from opbench.kernels.folders import Catalog

    catalog = Catalog()
    capabilities = [
        v.compute_capability for name in catalog.operator_names() for v in catalog.variants(name) if not v.is_library
    ]
    counts = Counter(capabilities)
    capability_counts = ", ".join(f"{counts[name]} need {name}" for name in sorted(counts) if name)
    oldest = "{}.{}".format(*OLDEST_CAPABILITY)
    total = (
        f"{len(capabilities)} CUDA variants: {counts['']} run from compute capability {oldest} on, {capability_counts}"
    )
    runnable_counts = [
        f"{sum(not missing_capability(capability, required) for required in capabilities)} run "
        f"on compute capability {capability[0]}.{capability[1]}"
        for capability in _capabilities()
    ]
    return Requirement("variants", "ok", "; ".join([total, *runnable_counts]))


def _cupy() -> Requirement:
    """Return whether CuPy is installed, without importing it: an import takes seconds and memory on the device."""
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            return Requirement("CuPy", "ok", f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Requirement("CuPy", "missing", "not installed; only variants that call a library need it",
               f"{sys.executable} -m {paths.pip_install('cuda13')}  # or [cuda12] for a driver below 580")  # fmt: skip


def _nvml() -> Requirement:
    """Return whether NVML can be used, which reads clocks and throttling."""
    if importlib.util.find_spec("pynvml") is None:
        return Requirement("NVML", "missing", "no package nvidia-ml-py, so runs record no clocks and no throttling",
                   f"{sys.executable} -m pip install nvidia-ml-py")  # fmt: skip
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return Requirement("NVML", "missing", "no libnvidia-ml.so.1 here; it comes with NVIDIA's driver",
                   "in a container add: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility")  # fmt: skip
    return Requirement("NVML", "ok", f"nvidia-ml-py {importlib.metadata.version('nvidia-ml-py')}")


def _compiler() -> Requirement:
    """Return the first C++ compiler that the cpu backend can use."""
    found_compilers = []
    usable = False
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            version = _first_line([path, "-dumpfullversion", "-dumpversion"] if name == "g++" else [path, "--version"])
            version_numbers = _version_numbers(version)
            is_too_old = name == "g++" and bool(version_numbers) and version_numbers[0] < OLDEST_GCC
            found_compilers.append(
                f"{name} {'.'.join(map(str, version_numbers)) or version}{' (too old)' if is_too_old else ''}"
            )
            usable = usable or not is_too_old
    if importlib.util.find_spec("ziglang") is not None:
        found_compilers.append(f"ziglang {importlib.metadata.version('ziglang')}")
        usable = True
    if usable:
        return Requirement("host compiler", "ok", ", ".join(found_compilers))
    remedy = f"sudo apt-get install g++, or without root: {sys.executable} -m {paths.pip_install('compiler')}"
    text = f"only {', '.join(found_compilers)}" if found_compilers else "no g++, no clang++, no ziglang"
    return Requirement("host compiler", "missing", f"{text}; g++ {OLDEST_GCC} or newer is needed", remedy)


def _cage() -> Requirement:
    """Return whether this system can confine untrusted kernels to a cage."""
    facts = available()
    if facts.missing_feature:
        remedy = "check untrusted kernels on another machine, or in a virtual machine of their own"
        return Requirement("cage", "warning", f"--untrusted is not possible: {facts.missing_feature}", remedy)
    namespaces = ", namespaces" if facts.user_namespaces else "; no user namespaces, which it does not need"
    return Requirement("cage", "ok", f"--untrusted: Landlock {facts.landlock_version}, seccomp{namespaces}")


def _profiler(tool: Tool) -> Requirement:
    """Return whether a profiler of Nsight is installed, with its version."""
    name = tools.FULL_NAMES[tool]
    if (path := tools.locate(tool)) is None:
        return Requirement(name, "missing", f"no {tool} on PATH nor where installers put it", tools.where_to_get(tool))
    version = re.search(r"[Vv]ersion\s+([\d.]+)", _program_output([path, "--version"]))
    if version is None:
        return Requirement(name, "warning", f"{path} does not report its version", f"{path} --version")
    return Requirement(name, "ok", f"{version[1]} at {path}")


def _sanitizer() -> Requirement:
    """Return where compute-sanitizer is; only opbench's own tests on a GPU use it."""
    from opbench.gpu.compile.installed import compute_sanitizer

    if (path := compute_sanitizer()) is None:
        text = "not in a wheel, on PATH or in a toolkit; tests on a GPU compare its findings with opbench's"
        return Requirement(
            "compute-sanitizer", "missing", text, f"{sys.executable} -m {paths.pip_install('sanitizer')}"
        )
    version = re.search(r"[Vv]ersion\s+([\d.]+)", _program_output([str(path), "--version"]))
    if version is None:
        return Requirement("compute-sanitizer", "warning", f"{path} does not report its version", f"{path} --version")
    return Requirement("compute-sanitizer", "ok", f"{version[1]} at {path}")


def _counters() -> Requirement:
    """Return whether the user may read hardware counters."""
    permission = tools.counter_permission()
    if permission.allowed is None:
        return Requirement("hardware counters", "warning", permission.seen)
    if permission.allowed:
        return Requirement("hardware counters", "ok", permission.seen)
    return Requirement("hardware counters", "missing", permission.seen, "\n  ".join(tools.PERMISSION_LADDER))


def _profiler_attached() -> Requirement:
    """Return a warning if a profiler is attached, because it changes times."""
    if variable := tool_attached():
        return Requirement(
            "profiler attached",
            "warning",
            f"{variable} is set: times on this machine are not reliable",
            f"unset {variable}",
        )
    return Requirement("profiler attached", "ok", "none")


def _cache() -> Requirement:
    """Return the folder of the cache and its size."""
    folder = paths.cache_folder("")
    seen = f"{folder}, {units.si(_bytes_below(folder), 'B')}"
    if folder.is_relative_to(tempfile.gettempdir()) and "OPBENCH_CACHE" not in os.environ:
        return Requirement(
            "cache",
            "warning",
            f"{seen}; the cache is lost when the temporary folder is deleted",
            "export OPBENCH_CACHE=FOLDER",
        )
    return Requirement("cache", "ok", seen)


def _bytes_below(folder: Path) -> int:
    """Return the size of the files below a folder, without files that another process removes meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = Path(parent, name).lstat()
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


def _disk() -> Requirement:
    """Return the free space in the current folder."""
    free = shutil.disk_usage(Path.cwd()).free
    seen = f"{units.si(free, 'B')} free in {Path.cwd()}"
    if free < MIN_FREE_BYTES:
        return Requirement("disk", "warning", seen, "free some space, or write elsewhere with --out DIR")
    return Requirement("disk", "ok", seen)


def _terminal() -> Requirement:
    """Return the width and the encoding of the terminal."""
    encoding = (sys.stdout.encoding or "ascii").lower()
    columns = shutil.get_terminal_size().columns
    seen = f"{columns} columns, {encoding}" if sys.stdout.isatty() else f"no terminal (output is piped), {encoding}"
    if "utf" not in encoding:
        return Requirement("terminal", "warning", seen, "export PYTHONUTF8=1")
    return Requirement("terminal", "ok", seen)


def _program_output(argv: Sequence[str]) -> str:
    """Return what a program prints on both streams; empty if the program cannot run."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=PROBE_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _first_line(argv: Sequence[str]) -> str:
    """Return the first line that a program prints."""
    return next(iter(_program_output(argv).strip().splitlines()), "of unknown version")
