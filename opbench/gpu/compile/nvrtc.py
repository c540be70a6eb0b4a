"""Compile a `.cu` to a cubin with NVRTC: needs no GPU and no driver, and is safe from several threads."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from opbench import paths
from opbench.backend.base import KernelResources
from opbench.errors import CompileError, EnvironmentFault, Location, unknown
from opbench.gpu.compile.unit import Unit, name_expressions, reduced, unknown_kernel, whole
from opbench.kernels.header_text import root_location
from opbench.kernels.launch import BuildRequest
from opbench.paths import pip_install
from opbench.source import device_part
from opbench.source.sources import Source, closure

NOT_INSTALLED = f"NVRTC is not installed; {pip_install('cuda13')}"

OPTIONS = ("--std=c++17", "-default-device", "--generate-line-info", "--ptxas-options=-v")
"""No fast-math: NVRTC's defaults (IEEE division and square root, denormals kept, multiply-add fused) are nvcc's."""


@dataclass(frozen=True)
class Compiled:
    """A cubin in the cache with what the compiler said of it."""

    cubin: Path
    arch: str
    resources: Mapping[str, KernelResources]
    spill_bytes: Mapping[str, int]
    """Per kernel, bytes of registers stored to local memory for want of registers; 0 is what one wants."""
    warnings: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    """What kernels are called in the cubin that the request calls otherwise: templates, and what is in C++'s names."""


class Nvrtc:
    """One loaded NVRTC library."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        library = ctypes.CDLL(str(path))
        self._library = library
        text, handle, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
        texts, number = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_int)
        library.nvrtcVersion.argtypes = [number, number]
        library.nvrtcGetNumSupportedArchs.argtypes = [number]
        library.nvrtcGetSupportedArchs.argtypes = [number]
        library.nvrtcCreateProgram.argtypes = [ctypes.POINTER(handle), text, text, ctypes.c_int, texts, texts]
        library.nvrtcDestroyProgram.argtypes = [ctypes.POINTER(handle)]
        library.nvrtcCompileProgram.argtypes = [handle, ctypes.c_int, texts]
        library.nvrtcAddNameExpression.argtypes = [handle, text]
        library.nvrtcGetLoweredName.argtypes = [handle, text, ctypes.POINTER(text)]
        for name in ("ProgramLog", "CUBIN"):
            getattr(library, f"nvrtcGet{name}Size").argtypes = [handle, size]
            getattr(library, f"nvrtcGet{name}").argtypes = [handle, ctypes.c_void_p]
        library.nvrtcGetErrorString.argtypes = [ctypes.c_int]
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def _check(self, code: int) -> None:
        if code:
            raise EnvironmentFault(f"NVRTC at {self.path.name}: {self._library.nvrtcGetErrorString(code).decode()}")

    def architectures(self) -> list[int]:
        """Compute capabilities, times ten, that it can compile for."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(numbers))
        return sorted(numbers)

    def compile(
        self,
        source: bytes,
        name: str,
        options: Iterable[str],
        headers: Mapping[str, str] | None = None,
        expressions: Sequence[str] = (),
    ) -> tuple[bytes | None, str, dict[str, str]]:
        """The cubin, or None when the source does not compile, the compiler's log, and what each expression is called.

        `headers` are texts by the name under which they are included.
        """
        program = ctypes.c_void_p()
        given = headers or {}
        texts = (ctypes.c_char_p * len(given))(*(text.encode() for text in given.values()))
        names = (ctypes.c_char_p * len(given))(*(key.encode() for key in given))
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), source, os.fsencode(name), len(given), texts, names
            ),
        )
        try:
            for expression in expressions:
                self._check(self._library.nvrtcAddNameExpression(program, expression.encode()))
            flags = [option.encode() for option in options]
            code = self._library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if code:
                return None, log, {}
            lowered: dict[str, str] = {}
            for expression in expressions:
                found = ctypes.c_char_p()
                self._check(self._library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(found)))
                lowered[expression] = (found.value or b"").decode()
            return self._read(program, "CUBIN"), log, lowered
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw[: size.value]


# Where NVRTC and its headers are ----------------------------------------------------------------------------------


def wheel_roots() -> list[Path]:
    """Folders of the `nvidia` namespace package, where NVIDIA's wheels put their files."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def toolkits() -> list[Path]:
    """CUDA toolkits that the user names or that lie where the installer puts them."""
    named = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return [Path(place) for place in named if place]


def _candidates() -> list[str]:
    """Libraries to try, the best first: CUDA 13 wheels, CUDA 12 wheels, a toolkit named by the user, the system's."""
    found: list[str] = []
    for root in wheel_roots():
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            found += sorted((str(path) for path in root.glob(pattern)), reverse=True)
    for toolkit in toolkits():
        found += [str(path) for path in sorted(toolkit.glob("lib64/libnvrtc.so"))]
    return [*found, "libnvrtc.so.13", "libnvrtc.so.12"]


@functools.cache
def libraries() -> tuple[Nvrtc, ...]:
    """Load one NVRTC of each major version that is installed, the newest first.

    Raises EnvironmentFault with the remedy when there is none.
    """
    problems: list[str] = []
    found: dict[int, Nvrtc] = {}
    for candidate in _candidates():
        try:
            loaded = Nvrtc(candidate)
        except (OSError, AttributeError) as error:
            if os.sep in candidate:  # a file that is there; a bare name only asks the loader
                problems.append(f"{candidate}: {error}")
            continue
        found.setdefault(loaded.version[0], loaded)
    if not found:
        raise EnvironmentFault(NOT_INSTALLED + (f" (tried {'; '.join(problems)})" if problems else ""))
    return tuple(found[major] for major in sorted(found, reverse=True))


def library(arch: str = "") -> Nvrtc:
    """Return the newest NVRTC that compiles for `arch` ("sm_61"), or the newest of all where none is named.

    CUDA 13 compiles for sm_75 and later, CUDA 12 for sm_50 and later. Raises EnvironmentFault when none does.
    """
    installed = libraries()
    if not arch:
        return installed[0]
    number = int(arch.removeprefix("sm_").rstrip("af"))
    able = [one for one in installed if number in one.architectures()]
    if not able:
        raise EnvironmentFault(f"{_too_narrow(arch)}; {pip_install('nvrtc12')}")
    return able[0]


def _too_narrow(wanted: str) -> str:
    """Say what the installed compilers can do instead."""
    ranges = ("NVRTC {}.{} compiles for sm_{} to sm_{}".format(*one.version, *_ends(one)) for one in libraries())
    return f"no NVRTC here compiles for {wanted}: {', '.join(ranges)}"


def _ends(one: Nvrtc) -> tuple[int, int]:
    numbers = one.architectures()
    return numbers[0], numbers[-1]


@functools.cache
def include_options(arch: str = "") -> tuple[str, ...]:
    """-I options for cuda_fp16.h, mma.h and cooperative_groups.h of the NVRTC that compiles for `arch`."""
    compiler = library(arch)
    near = compiler.path.resolve().parent.parent
    folders = [near / "include", near / "targets/x86_64-linux/include", near / "include/cccl"]
    for root in wheel_roots():
        parts = [root / name / "include" for name in ("cuda_runtime", "cuda_nvcc", "cuda_cccl")]
        whole_wheels = [root / f"cu{compiler.version[0]}" / "include"]
        # CUDA 12 comes as a wheel a part, CUDA 13 as one folder: each compiler reads its own headers first.
        for include in whole_wheels + parts if compiler.version[0] > 12 else parts + whole_wheels:
            folders += [include, include / "cccl"]
    if not any((folder / "cuda_fp16.h").is_file() for folder in folders):
        folders += [toolkit / "include" / name for toolkit in toolkits() for name in ("", "cccl")]
    kept = dict.fromkeys(folder for folder in folders if folder.is_dir())
    return tuple(f"-I{folder}" for folder in kept)


def _folders(arch: str) -> list[Path]:
    return [Path(option.removeprefix("-I")) for option in include_options(arch)]


def architecture(capability: tuple[int, int], request: BuildRequest) -> str:
    """The architecture to compile for: the device's own, with its 'a' features when the variant asks for them.

    A device newer than NVRTC runs the code of the nearest older member of its family.
    """
    wanted = capability[0] * 10 + capability[1]
    numbers = {arch for one in libraries() for arch in one.architectures()}
    known = [arch for arch in numbers if arch // 10 == capability[0] and arch <= wanted]
    if not known:
        raise EnvironmentFault(
            f"{_too_narrow('compute capability {}.{}'.format(*capability))}; {pip_install('nvrtc12')}"
        )
    return f"sm_{max(known)}" + ("a" if request.compute_capability.endswith("a") else "")


# The cache --------------------------------------------------------------------------------------------------------


def _key(sources: Iterable[Source], options: Iterable[str], version: tuple[int, int]) -> str:
    """Hash of everything that decides the cubin; names of files count because line information records them."""
    digest = hashlib.sha256()
    texts = (part for source in sources for part in (source.content, str(source.path).encode()))
    for part in (*texts, repr(version).encode(), *(option.encode() for option in options)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]


def compile_cubin(request: BuildRequest, arch: str) -> Compiled:
    """Compile, or find in the cache; raises CompileError with the compiler's own lines.

    A file with a host's part, or that does not compile as a whole, is cut down to what its kernels need.
    """
    try:
        sources = closure(request.source, request.include)
    except OSError as error:
        raise CompileError(f"{request.source}: cannot be read: {error.strerror}") from error
    if device_part.has_host_part(sources):
        return _compiled(request, arch, sources, reduced(request, sources, _folders(arch)))
    try:
        return _compiled(request, arch, sources, whole(sources))
    except CompileError as first:
        unit = reduced(request, sources, _folders(arch))
        try:
            return _compiled(request, arch, sources, unit)
        except CompileError as second:
            if missing := re.search(r'open source file "([^"]+)"', str(first)):
                raise device_part.without_header(second, (missing[1],), sources) from None
        raise  # what the whole file does not compile for is the plainer word


def _compiled(request: BuildRequest, arch: str, sources: Sequence[Source], unit: Unit) -> Compiled:
    name, compiler = str(request.source), library(arch)
    macros = [f"-D{key}={value}" for key, value in request.macros]
    own = [f"-I{folder}" for folder in request.include]
    options = [f"-arch={arch}", *OPTIONS, *macros, *own, *include_options(arch)]
    if unit.is_reduced:
        options.append(f"-I{request.source.absolute().parent}")
    expressions = name_expressions(request, sources)
    extra = [unit.key, *expressions] if unit.key or expressions else []
    cubin = (
        paths.cache_folder("cubin")
        / f"{request.source.stem}-{arch}-{_key(sources, [*options, *extra], compiler.version)}.cubin"
    )
    notes = cubin.with_suffix(".json")
    compiled = _from_cache(cubin, notes, arch)
    if compiled is None:
        code, log, names = compiler.compile(unit.text, name, options, unit.headers, expressions)
        if code is None:
            raise unknown_kernel(log, request, sources) or _compile_error(log)
        compiled = Compiled(cubin, arch, *parse_log(log), {key: value for key, value in names.items() if key != value})
        record = {"source": name, "options": options, **asdict(compiled), "cubin": cubin.name}
        # The notes first: a cubin that is there then always has its notes.
        paths.write_atomically(notes, json.dumps(record, indent=1).encode())
        paths.write_atomically(cubin, code)
    if remarks := [line for line in compiled.warnings if _SERIALISED.search(line)]:
        raise CompileError(f"{name}: ptxas did not build what is written: {remarks[0]}")
    # Names come from the cubin itself: compiled in parallel, NVRTC 13.0 loses parts of ptxas's log.
    present = kernel_names(cubin.read_bytes())
    for kernel in request.kernels:
        if compiled.names.get(kernel, kernel) not in present:
            hint = 'is it extern "C" __global__?'
            location = root_location(sources[0].path, sources[0].text, kernel)
            raise CompileError(unknown("kernel", kernel, present, hint), location)
    return compiled


def kernel_names(cubin: bytes) -> set[str]:
    """The kernels of a cubin: each has a section `.text.NAME`."""
    return {match.decode() for match in re.findall(rb"\.text\.([A-Za-z_]\w*)(?=\0)", cubin)}


def _from_cache(cubin: Path, notes: Path, arch: str) -> Compiled | None:
    """What an earlier run compiled, unless it is missing or damaged."""
    try:
        record = json.loads(notes.read_text())
        if cubin.stat().st_size == 0:
            return None
        resources = {kernel: KernelResources(**values) for kernel, values in record["resources"].items()}
        warnings, names = tuple(record["warnings"]), record.get("names", {})
        return Compiled(cubin, arch, resources, record["spill_bytes"], warnings, names)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def compile_all(
    requests: Iterable[BuildRequest], arch: str, workers: int = 0
) -> dict[BuildRequest, Compiled | CompileError]:
    """Compile many in parallel; a failure costs its own request only."""

    def attempt(request: BuildRequest) -> Compiled | CompileError:
        try:
            return compile_cubin(request, arch)
        except CompileError as error:
            return error

    wanted = list(dict.fromkeys(requests))
    include_options(arch)  # found once, not by every thread
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return dict(zip(wanted, pool.map(attempt, wanted), strict=True))


# What the compiler said -------------------------------------------------------------------------------------------

_DIAGNOSTIC = re.compile(r"^(?P<file>\S[^\n()]*)\((?P<line>\d+)\): ", re.MULTILINE)
"""How NVRTC begins what it says of a line."""
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_ADVISORY = re.compile(r"warning|Potential Performance Loss|ignored to maintain|\(C75\d\d\)", re.IGNORECASE)
_SERIALISED = re.compile(r"\((C7508|C751[4-9])\)")
"""ptxas's remarks that it ignored setmaxnreg, or put waits between wgmma where the kernel has none."""


def parse_log(log: str) -> tuple[dict[str, KernelResources], dict[str, int], tuple[str, ...]]:
    """Resources and spills per kernel, and warnings, from the log of `ptxas -v`."""
    resources: dict[str, KernelResources] = {}
    spills: dict[str, int] = {}
    warnings: list[str] = []
    kernel, local, spilled = "", 0, 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            kernel, local, spilled = entry[1], 0, 0
        elif (stack := _STACK.search(line)) and kernel:
            local, spilled = int(stack[1]), int(stack[2])
        elif (used := _USED.search(line)) and kernel:
            shared = _SHARED.search(line)
            registers = int(used[1])
            static = int(shared[1]) if shared else 0
            resources[kernel] = KernelResources(registers, static, local, max_threads(registers))
            spills[kernel] = spilled
            kernel = ""
        elif _ADVISORY.search(line):
            warnings.append(line.strip())
    return resources, spills, tuple(warnings)


def max_threads(registers: int) -> int:
    """Threads of the largest block that the register file of 64 K holds (256 registers are the unit, per warp)."""
    per_warp = max(256, -(-registers * 32 // 256) * 256)
    return min(1024, 65536 // per_warp * 32)


def _errors(log: str) -> str:
    """The log without the chatter of ptxas about kernels that did compile."""
    lines = [line for line in log.splitlines() if not line.startswith("ptxas info")]
    return "\n".join(lines).strip() or log or "NVRTC gave no reason"


def _compile_error(log: str) -> CompileError:
    """Return what the compiler said, with the location of its first error; further ones as `file:line`."""
    text = _errors(log)
    first = _DIAGNOSTIC.match(text)
    location = Location(Path(first["file"]), int(first["line"])) if first else None
    return CompileError(_DIAGNOSTIC.sub(r"\g<file>:\g<line>: ", text[first.end() if first else 0 :]), location)
