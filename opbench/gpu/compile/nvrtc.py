"""Compile a `.cu` file to a cubin with NVRTC; this needs no GPU and no driver, and is thread-safe."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from opbench import paths
from opbench.backend.base import KernelResources
from opbench.errors import CompileError, EnvironmentFault, Location, Unreadable, unknown_name
from opbench.gpu.compile import installed
from opbench.gpu.compile.unit import Unit, name_expressions, reduced_unit, unknown_kernel_error, whole_unit
from opbench.kernels.header_text import root_location
from opbench.kernels.launch import BuildRequest
from opbench.paths import MissingExtra
from opbench.source import device_part
from opbench.source.sources import Source, include_closure

OPTIONS = ("--std=c++17", "-default-device", "--generate-line-info", "--ptxas-options=-v")
"""Options of every compilation. As in nvcc there is no fast-math; division and square root round as IEEE 754 says."""


@dataclass(frozen=True)
class CompiledModule:
    """A compiled cubin in the cache, with resources and warnings from the compiler's log."""

    cubin: Path
    arch: str
    resources: Mapping[str, KernelResources]
    spill_bytes: Mapping[str, int]
    """Bytes of spilled registers per kernel."""
    warnings: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    """The mangled name in the cubin by the name in the request, for kernels whose two names differ."""

    @property
    def ptx(self) -> Path:
        """Return the path of the PTX from the same compilation."""
        return self.cubin.with_suffix(".ptx")


class Nvrtc:
    """A loaded NVRTC library with its version."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        library = ctypes.CDLL(str(path))
        self._library = library
        c_string, handle, size_pointer = ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
        c_strings, c_int_pointer = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_int)
        library.nvrtcVersion.argtypes = [c_int_pointer, c_int_pointer]
        library.nvrtcGetNumSupportedArchs.argtypes = [c_int_pointer]
        library.nvrtcGetSupportedArchs.argtypes = [c_int_pointer]
        library.nvrtcCreateProgram.argtypes = [
            ctypes.POINTER(handle),
            c_string,
            c_string,
            ctypes.c_int,
            c_strings,
            c_strings,
        ]
        library.nvrtcDestroyProgram.argtypes = [ctypes.POINTER(handle)]
        library.nvrtcCompileProgram.argtypes = [handle, ctypes.c_int, c_strings]
        library.nvrtcAddNameExpression.argtypes = [handle, c_string]
        library.nvrtcGetLoweredName.argtypes = [handle, c_string, ctypes.POINTER(c_string)]
        for name in ("ProgramLog", "CUBIN", "PTX"):
            getattr(library, f"nvrtcGet{name}Size").argtypes = [handle, size_pointer]
            getattr(library, f"nvrtcGet{name}").argtypes = [handle, ctypes.c_void_p]
        library.nvrtcGetErrorString.argtypes = [ctypes.c_int]
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def _check(self, code: int) -> None:
        """Raise EnvironmentFault for a result code other than 0."""
        if code:
            raise EnvironmentFault(
                f"NVRTC at {self.path.name} fails: {self._library.nvrtcGetErrorString(code).decode()}; see which "
                "NVRTC is used with: opbench doctor",
                kind="nvrtc-fails",
                subject=self.path,
                value=code,
            )

    def architectures(self) -> list[int]:
        """Return the architectures that this NVRTC supports, as compute capability times ten."""
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
    ) -> tuple[tuple[bytes, bytes] | None, str, dict[str, str]]:
        """Return the cubin and the PTX (None on a compile error), the log, and the mangled name of each expression.

        `headers` maps the name in an `#include` to the header's text.
        """
        program = ctypes.c_void_p()
        header_texts = headers or {}
        c_texts = (ctypes.c_char_p * len(header_texts))(*(text.encode() for text in header_texts.values()))
        c_names = (ctypes.c_char_p * len(header_texts))(*(key.encode() for key in header_texts))
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), source, os.fsencode(name), len(header_texts), c_texts, c_names
            ),
        )
        try:
            for expression in expressions:
                self._check(self._library.nvrtcAddNameExpression(program, expression.encode()))
            flags = [option.encode() for option in options]
            status = self._library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if status:
                return None, log, {}
            mangled_names: dict[str, str] = {}
            for expression in expressions:
                mangled = ctypes.c_char_p()
                self._check(self._library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(mangled)))
                mangled_names[expression] = (mangled.value or b"").decode()
            return (self._read(program, "CUBIN"), self._read(program, "PTX").rstrip(b"\0")), log, mangled_names
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, output_name: str) -> bytes:
        """Return an output of a program, such as "CUBIN" or "ProgramLog"."""
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{output_name}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._check(getattr(self._library, f"nvrtcGet{output_name}")(program, buffer))
        return buffer.raw[: size.value]


# Find NVRTC and its headers ---------------------------------------------------------------------------------------


def _candidate_libraries() -> list[str]:
    """Return the libraries to try, best first: wheels of CUDA 13 and 12, configured toolkits, the system's."""
    candidates: list[str] = []
    for root in installed.wheel_roots():
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            candidates += sorted((str(path) for path in root.glob(pattern)), reverse=True)
    for toolkit in installed.toolkits():
        candidates += [str(path) for path in sorted(toolkit.glob("lib64/libnvrtc.so"))]
    return [*candidates, "libnvrtc.so.13", "libnvrtc.so.12"]


@functools.cache
def libraries() -> tuple[Nvrtc, ...]:
    """Load the NVRTC of each installed major version, the newest first.

    Raises EnvironmentFault with the remedy when there is none.
    """
    load_errors: list[str] = []
    loaded_by_major: dict[int, Nvrtc] = {}
    for candidate in _candidate_libraries():
        try:
            loaded = Nvrtc(candidate)
        except (OSError, AttributeError) as error:
            if os.sep in candidate:  # a file that was found; a bare name may be not installed, which is no error
                load_errors.append(f"{candidate}: {error}")
            continue
        loaded_by_major.setdefault(loaded.version[0], loaded)
    if not loaded_by_major:
        raise not_installed_error(f" (tried {'; '.join(load_errors)})" if load_errors else "")
    return tuple(loaded_by_major[major] for major in sorted(loaded_by_major, reverse=True))


def not_installed_error(tried_places: str = "") -> MissingExtra:
    """Return the error for a machine without NVRTC; `tried_places` is a suffix that lists the places searched."""
    return MissingExtra("NVRTC is not installed", "nvrtc", tried_places)


def library(arch: str = "") -> Nvrtc:
    """Return the newest NVRTC that compiles for `arch`, such as "sm_61"; without `arch`, the newest one.

    CUDA 13 compiles for sm_75 and later, CUDA 12 for sm_50 and later. Raises EnvironmentFault when none does.
    """
    installed = libraries()
    if not arch:
        return installed[0]
    architecture_number = int(arch.removeprefix("sm_").rstrip("af"))
    usable = [library for library in installed if architecture_number in library.architectures()]
    if not usable:
        raise MissingExtra(_unsupported_architecture(arch), "nvrtc12")
    return usable[0]


def _unsupported_architecture(target: str) -> str:
    """Return a message with the architectures that the installed compilers support."""
    ranges = (
        "NVRTC {}.{} compiles for sm_{} to sm_{}".format(*library.version, *_oldest_and_newest(library))
        for library in libraries()
    )
    return f"no NVRTC here compiles for {target}: {', '.join(ranges)}"


def _oldest_and_newest(compiler: Nvrtc) -> tuple[int, int]:
    """Return the oldest and the newest architecture that a compiler supports."""
    numbers = compiler.architectures()
    return numbers[0], numbers[-1]


@functools.cache
def include_options(arch: str = "") -> tuple[str, ...]:
    """Return the -I options for the CUDA headers of the NVRTC that compiles for `arch`."""
    compiler = library(arch)
    library_root = compiler.path.resolve().parent.parent
    folders = [library_root / "include", library_root / "targets/x86_64-linux/include", library_root / "include/cccl"]
    for root in installed.wheel_roots():
        component_folders = [root / name / "include" for name in ("cuda_runtime", "cuda_nvcc", "cuda_cccl")]
        toolkit_folders = [root / f"cu{compiler.version[0]}" / "include"]
        # CUDA 12 has one wheel for each part, CUDA 13 one folder. A compiler reads headers of its version first.
        for include in (
            toolkit_folders + component_folders if compiler.version[0] > 12 else component_folders + toolkit_folders
        ):
            folders += [include, include / "cccl"]
    if not any((folder / "cuda_fp16.h").is_file() for folder in folders):
        folders += [toolkit / "include" / name for toolkit in installed.toolkits() for name in ("", "cccl")]
    existing = dict.fromkeys(folder for folder in folders if folder.is_dir())
    return tuple(f"-I{folder}" for folder in existing)


def _include_folders(arch: str) -> list[Path]:
    """Return the folders with the CUDA headers for the NVRTC that compiles for `arch`."""
    return [Path(option.removeprefix("-I")) for option in include_options(arch)]


def architecture(capability: tuple[int, int], request: BuildRequest) -> str:
    """Return the architecture to compile for: the device's own, with suffix 'a' if the variant needs that.

    For a device newer than NVRTC it is the newest older architecture of the device's family, whose code the device
    runs.
    """
    own_architecture = capability[0] * 10 + capability[1]
    supported = {arch for library in libraries() for arch in library.architectures()}
    usable = [arch for arch in supported if arch // 10 == capability[0] and arch <= own_architecture]
    if not usable:
        raise MissingExtra(_unsupported_architecture("compute capability {}.{}".format(*capability)), "nvrtc12")
    return f"sm_{max(usable)}" + ("a" if request.compute_capability.endswith("a") else "")


# The cache --------------------------------------------------------------------------------------------------------


def _cache_key(sources: Iterable[Source], options: Iterable[str], version: tuple[int, int]) -> str:
    """Return a hash of everything that affects the cubin, including file names, which line information contains."""
    digest = hashlib.sha256()
    contents = (content for source in sources for content in (source.content, str(source.path).encode()))
    for content in (*contents, repr(version).encode(), *(option.encode() for option in options)):
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:24]


def compile_cubin(request: BuildRequest, arch: str) -> CompiledModule:
    """Compile a request to a cubin, or reuse the cached one; raise CompileError with the compiler's messages.

    A file that has host code, or that does not compile as a whole, is reduced to what its kernels need.
    """
    try:
        sources = include_closure(request.source, request.include)
    except OSError as error:
        unreadable = Unreadable(request.source, error)
        raise CompileError(unreadable.message, cause=unreadable) from error
    if device_part.has_host_part(sources):
        return _compile_unit(request, arch, sources, reduced_unit(request, sources, _include_folders(arch)))
    try:
        return _compile_unit(request, arch, sources, whole_unit(sources))
    except CompileError as whole_error:
        unit = reduced_unit(request, sources, _include_folders(arch))
        try:
            return _compile_unit(request, arch, sources, unit)
        except CompileError as reduced_error:
            if missing_header := re.search(r'open source file "([^"]+)"', str(whole_error)):
                raise device_part.missing_header_error(reduced_error, (missing_header[1],), sources) from None
        raise  # the error of the whole file is easier to understand


def options_of(request: BuildRequest, arch: str) -> list[str]:
    """Return NVRTC's options for a request."""
    macros = [f"-D{key}={value}" for key, value in request.macros]
    request_folders = [f"-I{folder}" for folder in request.include]
    return [f"-arch={arch}", *OPTIONS, *macros, *request_folders, *include_options(arch)]


def _compile_unit(request: BuildRequest, arch: str, sources: Sequence[Source], unit: Unit) -> CompiledModule:
    """Compile a source text to a cubin, or reuse the cached one; raise CompileError."""
    name, compiler = str(request.source), library(arch)
    options = options_of(request, arch)
    if unit.is_reduced:
        options.append(f"-I{request.source.absolute().parent}")
    expressions = name_expressions(request, sources)
    key_parts = [unit.key, *expressions] if unit.key or expressions else []
    cubin = (
        paths.cache_folder("cubin")
        / f"{request.source.stem}-{arch}-{_cache_key(sources, [*options, *key_parts], compiler.version)}.cubin"
    )
    record_path = cubin.with_suffix(".json")
    compiled = _from_cache(cubin, record_path, arch)
    if compiled is None:
        code, log, names = compiler.compile(unit.text, name, options, unit.headers, expressions)
        if code is None:
            raise unknown_kernel_error(log, request, sources) or _compile_error(log)
        compiled = CompiledModule(
            cubin, arch, *parse_log(log), {key: value for key, value in names.items() if key != value}
        )
        record = {"source": name, "options": options, **asdict(compiled), "cubin": cubin.name}
        # Write the cubin last, so that every cubin in the cache has its record and its PTX.
        paths.write_atomically(record_path, json.dumps(record, indent=1).encode())
        paths.write_atomically(compiled.ptx, code[1])
        paths.write_atomically(cubin, code[0])
    if remarks := [line for line in compiled.warnings if _SERIALISED.search(line)]:
        raise CompileError(
            f"{name}: ptxas could not compile the kernel as written: {remarks[0]}; change the code that this warning "
            "names"
        )
    # Names come from the cubin itself: compiled in parallel, NVRTC 13.0 loses parts of ptxas's log.
    cubin_kernels = kernel_names(cubin.read_bytes())
    for kernel in request.kernels:
        if compiled.names.get(kernel, kernel) not in cubin_kernels:
            hint = 'is it extern "C" __global__?'
            location = root_location(sources[0].path, sources[0].text, kernel)
            raise CompileError(unknown_name("kernel", kernel, cubin_kernels, hint), location)
    return compiled


def kernel_names(cubin: bytes) -> set[str]:
    """Return the names of a cubin's kernels: each has a section `.text.NAME`."""
    return {match.decode() for match in re.findall(rb"\.text\.([A-Za-z_]\w*)(?=\0)", cubin)}


def _from_cache(cubin: Path, record_path: Path, arch: str) -> CompiledModule | None:
    """Return the cubin of an earlier compilation; None if it is missing or damaged."""
    try:
        record = json.loads(record_path.read_text())
        if cubin.stat().st_size == 0 or not cubin.with_suffix(".ptx").exists():
            return None
        resources = {kernel: KernelResources(**values) for kernel, values in record["resources"].items()}
        warnings, names = tuple(record["warnings"]), record.get("names", {})
        return CompiledModule(cubin, arch, resources, record["spill_bytes"], warnings, names)
    except (OSError, ValueError, KeyError, TypeError):
        return None


# The compiler's log -----------------------------------------------------------------------------------------------

_DIAGNOSTIC = re.compile(r"^(?P<file>\S[^\n()]*)\((?P<line>\d+)\): ", re.MULTILINE)
"""The start of an NVRTC message about a source line."""
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_ADVISORY = re.compile(r"warning|Potential Performance Loss|ignored to maintain|\(C75\d\d\)", re.IGNORECASE)
_SERIALISED = re.compile(r"\((C7508|C751[4-9])\)")
"""Warnings of ptxas that it ignored setmaxnreg, or inserted waits between wgmma instructions."""


def parse_log(log: str) -> tuple[dict[str, KernelResources], dict[str, int], tuple[str, ...]]:
    """Return registers, memory and spills of each kernel, and warnings, from the log of `ptxas -v`."""
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
            resources[kernel] = KernelResources(registers, static, local, max_threads_per_block(registers))
            spills[kernel] = spilled
            kernel = ""
        elif _ADVISORY.search(line):
            warnings.append(line.strip())
    return resources, spills, tuple(warnings)


def max_threads_per_block(registers: int) -> int:
    """Return the largest block size for a number of registers per thread.

    A register file has 64 K registers, allocated in units of 256 per warp.
    """
    per_warp = max(256, -(-registers * 32 // 256) * 256)
    return min(1024, 65536 // per_warp * 32)


def _errors(log: str) -> str:
    """Return the compiler's log without the lines about kernels that compiled."""
    lines = [line for line in log.splitlines() if not line.startswith("ptxas info")]
    return "\n".join(lines).strip() or log or "NVRTC reports no error message"


def _compile_error(log: str) -> CompileError:
    """Return the compiler's errors as one CompileError, located at the first one."""
    text = _errors(log)
    first = _DIAGNOSTIC.match(text)
    location = Location(Path(first["file"]), int(first["line"])) if first else None
    return CompileError(_DIAGNOSTIC.sub(r"\g<file>:\g<line>: ", text[first.end() if first else 0 :]), location)
