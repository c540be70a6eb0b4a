"""Compile a `.cu` file to a shared object in the cache: preprocess, rewrite, compile, link."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from opbench.emulator import elf, macros
from opbench.emulator.abi import CANARY_BYTES, MAX_DYNAMIC_BYTES
from opbench.emulator.device_source import (
    DeviceSource,
    can_be_reduced,
    has_host_part_in,
    require_definitions,
    require_device_functions,
    require_names,
    write_device_source,
)
from opbench.emulator.diagnostics import diagnosis, shortened
from opbench.emulator.features import require_capability
from opbench.emulator.lines import WRAPPER
from opbench.emulator.ptx import (
    LINE_MARKER,
    SYSTEM_HEADER,
    UnsupportedInstruction,
    constant_variables,
    relax_initialisation,
    replace_built_in_copies,
    replace_noinline,
    replace_ptx,
    replace_unroll,
)
from opbench.emulator.toolchain import (
    FAST,
    INCLUDE,
    NO_TAIL_CALLS,
    NO_UNROLLING,
    PATTERN_FLAG,
    RUNTIME,
    RUNTIME_FLAGS,
    SHIM,
    TRACED,
    UNSEEN_COPIES,
    CompileMode,
    Toolchain,
    compiler_environment,
    find_toolchain,
)
from opbench.errors import CompileError, EnvironmentFault, Location, Unreadable
from opbench.kernels.launch import BuildRequest
from opbench.paths import move_into_place, write_atomically
from opbench.source import device_part, names, scan, sources, standard_names, tokens
from opbench.source.sources import include_closure, includes

UNINITIALISED_WARNING = re.compile(r"^(/[^:\n]+):(\d+):\d+: warning: (.*uninitialized) \[", re.MULTILINE)
"""A g++ warning about a local variable: file, line and message."""
MATRIX_CALL = re.compile(r"opb_ptx::(mma_|product)")
ASYNCHRONOUS_CALL = re.compile(
    r"::opb_ptx::(mbarrier|product|wgmma|load_|store_|cluster_|bar_|cp_async_bulk|setmaxnreg)"
)
MISSING_HEADER = re.compile(r"fatal error: '?([^\s:']+)'?:? (?:No such file or directory|file not found)")
UNDECLARED_ERROR = re.compile(
    r"was not declared|has not been declared|does not name a type|undeclared identifier|unknown type"
)
OUT_OF_MEMORY_ERROR = re.compile(
    r"virtual memory exhausted|out of memory allocating|std::bad_alloc|Cannot allocate memory|LLVM ERROR: out of memory"
    r"|Killed signal terminated program"
)
NEWEST_CAPABILITY = (9, 0)
"""The newest compute capability whose code the cpu backend executes."""
ARCHITECTURE_MACRO = "__CUDA_ARCH__"
CACHED_TEXTS = 64
"""The number of preprocessed texts that a builder caches; each has about 100 kB."""
TIMESTAMP_STEP_NS = 2_100_000_000
"""The longest step of modification times: file systems count in steps of up to 2 s, so a later edit may share one."""


FileStates: TypeAlias = "tuple[tuple[str, int, int, int], ...]"
"""For files and folders: path, time of last modification and of last status change in ns, and size in bytes."""


@dataclass(frozen=True)
class LookedUpModule:
    """A module in the cache, with the state of all files and folders that determined it when it was looked up."""

    path: Path
    state: FileStates
    """The states of the source files, of their folders and of the folders of headers."""


@dataclass(frozen=True)
class PreprocessedText:
    """The preprocessed text of a module, and the user's files that it includes."""

    text: str
    files: tuple[Path, ...]
    empty: tuple[str, ...] = ()
    """Headers that were not found and were replaced by empty files."""


def digest(*parts: str | bytes) -> str:
    """Return one hash of several texts; ("ab", "c") and ("a", "bc") have different hashes."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:20]


@contextlib.contextmanager
def file_lock(final_path: Path) -> Iterator[None]:
    """Lock a file while other processes must not build it; do nothing on file systems without locks."""
    with (final_path.parent / f".{final_path.name}.lock").open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Create a temporary folder on the cache's file system, so that files can be moved to the cache atomically."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder, ignore_cleanup_errors=True) as name:
        yield Path(name)


@functools.cache
def emulator_hash() -> str:
    """Return a hash of the emulator's headers, runtime and text passes, and of the path of their folder."""
    folder = Path(__file__).parent
    emulator_files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    all_files = [
        *emulator_files,
        *(Path(str(module.__file__)) for module in (device_part, names, scan, sources, standard_names, tokens)),
    ]
    return digest(str(Path(__file__).parent), *(part for path in all_files for part in (path.name, path.read_bytes())))


class KernelBuilder:
    """Compile modules with one toolchain into one cache folder; threads and processes may share the folder."""

    skips_unchanged_files = True
    """Whether a second lookup of a module skips reading its files if their states are unchanged."""

    def __init__(
        self, toolchain: Toolchain, folder: Path, build: CompileMode, capability: tuple[int, int] = NEWEST_CAPABILITY
    ) -> None:
        self.toolchain = toolchain
        self.folder = folder
        self.build = build
        self.capability = capability
        """The compute capability from which `__CUDA_ARCH__` is derived."""
        self._preprocessed: dict[tuple[str, bool], PreprocessedText] = {}
        """Cached by manifest and `reduced`, because a build often follows the check whether a build is possible."""
        self._looked_up: dict[BuildRequest, LookedUpModule] = {}
        """Modules by request. A check looks up its module before each run; hashing files takes longer than a run."""

    def module(self, request: BuildRequest) -> Path:
        """Return the shared object of a request, compiled unless it is in the cache; raise CompileError."""
        looked_up, began_ns = self._looked_up.get(request), time.time_ns()
        if (
            looked_up
            and looked_up.path.exists()
            and _file_states(place for place, *_ in looked_up.state) == looked_up.state
        ):
            return looked_up.path
        manifest = self._manifest(request)
        if (path := _read_manifest(manifest)) is not None:
            if self.skips_unchanged_files:
                self._record_lookup(request, manifest, path, began_ns)
            return path
        require_names(request)
        require_device_functions(request)
        require_definitions(request)
        if has_host_part_in(request):
            return self._build(request, manifest, True)
        try:
            return self._build(request, manifest, False)
        except CompileError as whole_file_error:
            # The error may be in a kernel that the request does not use: compile again without that kernel.
            if not can_be_reduced(request):
                raise
            try:
                return self._build(request, manifest, True)
            except CompileError as reduced_error:
                if missing := MISSING_HEADER.search(str(whole_file_error)):
                    sources = include_closure(request.source, request.include)
                    raise device_part.missing_header_error(reduced_error, (missing[1],), sources) from None
            raise

    def _record_lookup(self, request: BuildRequest, manifest: Path, path: Path, began_ns: int) -> None:
        """Record a found module with the states of all files and folders that determine it.

        The module is recorded only if no file can have been edited since it was read; `began_ns` is the time before the
        first file was read.
        """
        try:
            files = {*json.loads(manifest.read_text())["files"]}
            sources = include_closure(request.source, request.include)
        except (OSError, ValueError):
            return  # a file was removed in the meantime
        files |= {str(source.path.absolute()) for source in sources}
        folders = {*map(os.path.dirname, files), *(str(folder.absolute()) for folder in request.include)}
        for source in sources:  # for "sub/a.cuh" also the folders `sub` that do not have it yet
            searched = [folder.absolute() for folder in (source.path.parent, *request.include)]
            names = [name[1:-1] for _, name in includes(source.text)]
            folders |= {str((folder / name).parent) for folder in searched for name in names}
        state = _file_states(sorted(files | folders))
        # Two edits within one step of the file system's clock would have the same time.
        if all(modified_ns + TIMESTAMP_STEP_NS < began_ns for _, modified_ns, *_ in state):
            self._looked_up[request] = LookedUpModule(path, state)

    def _build(self, request: BuildRequest, manifest: Path, reduced: bool) -> Path:
        """Return the shared object of a request, compiled unless it is in the cache; write its manifest.

        `reduced` compiles only the declarations that the request's kernels need.
        """
        try:
            preprocessed = self._without_ptx(request, reduced, manifest)
        except UnsupportedInstruction as problem:
            raise CompileError(problem.message, Location(Path(problem.file), problem.line)) from None
        text = replace_noinline(preprocessed.text)
        if self.toolchain.family == "gcc":
            text = replace_unroll(text, dict(request.macros))
        elif self.build.traced:
            text = relax_initialisation(text)
        if self.build.traced:
            text = replace_built_in_copies(text, UNSEEN_COPIES[self.toolchain.family])
        # The key must not depend on the path of the cache.
        key = self._key(text.replace(str(self.folder), ""))
        module_path = self.folder / f"{request.source.stem}-{self.build.name}-{key}.so"
        if not module_path.exists():
            try:
                self._compile(request, text, module_path)
            except CompileError as error:
                # The undeclared name may be declared in a missing header.
                if preprocessed.empty and UNDECLARED_ERROR.search(str(error)):
                    sources = include_closure(request.source, request.include)
                    raise device_part.missing_header_error(error, preprocessed.empty, sources) from None
                raise
        files = {str(path): digest(path.read_bytes()) for path in preprocessed.files}
        write_atomically(manifest, json.dumps({"object": module_path.name, "files": files}).encode())
        return module_path

    def require_instructions(self, request: BuildRequest) -> None:
        """Raise UnsupportedInstruction if the kernels use inline PTX that the backend or the requested GPU lacks."""
        manifest = self._manifest(request)
        if _read_manifest(manifest) is not None:
            return
        try:
            self._without_ptx(request, has_host_part_in(request), manifest)
        except UnsupportedInstruction:
            if not can_be_reduced(request):
                raise
            self._without_ptx(request, True, manifest)

    def _without_ptx(self, request: BuildRequest, reduced: bool, manifest: Path) -> PreprocessedText:
        """Return the preprocessed request with inline PTX replaced by function calls.

        The next build reuses the result.
        """
        key = (manifest.name, reduced)
        if key not in self._preprocessed:
            preprocessed = self.preprocess(request, reduced)
            require_capability(preprocessed.text, self.capability)
            self._preprocessed[key] = replace(preprocessed, text=replace_ptx(preprocessed.text))
            for old_key in list(self._preprocessed)[:-CACHED_TEXTS]:
                self._preprocessed.pop(old_key, None)
        return self._preprocessed[key]

    def preprocess(self, request: BuildRequest, reduced: bool | None = None) -> PreprocessedText:
        """Preprocess the request's wrapper; raise CompileError.

        `reduced` keeps only the declarations that the kernels need; None does so if the file has host code.
        """
        if reduced is None:
            reduced = has_host_part_in(request)
        with scratch(self.folder) as folder:
            wrapper, output = folder / WRAPPER, folder / "wrapper.ii"
            reduced_file = write_device_source(request, folder) if reduced else DeviceSource(request.source.absolute())
            files = list(reduced_file.originals) or [
                source.path for source in include_closure(request.source, request.include)
            ]
            macros.write_switches(folder, self._hidden_macros)
            macros.write_stand_ins(folder, files)
            wrapper.write_text(
                _wrapper(self._with_architecture(request), reduced_file.source, reduced_file.implied_headers, folder)
            )
            include_flags = [part for folder in request.include for part in ("-I", str(folder.absolute()))]
            system_flags = ["-isystem", str(folder / "headers"), "-isystem", str(INCLUDE)]
            include = [*self._precompiled_header_flags, *system_flags, *include_flags, *reduced_file.flags]
            command = ["-E", *self.toolchain.flags(self.build), *include, "-o", str(output), str(wrapper)]
            self._run(command, request)
            # The key must not depend on the random name of the scratch folder.
            text = output.read_text().replace(str(wrapper), wrapper.name)
            for written_path, original in reduced_file.originals.items():
                text = text.replace(str(written_path), str(original.absolute()))
            text = macros.without_switches(text, folder)
            missing_headers = tuple(
                name
                for name in reduced_file.empty
                if device_part.is_path_include(name) or f"{reduced_file.flags[-1]}/{name}" in text
            )
            return PreprocessedText(text, tuple(_user_files(text)), missing_headers)

    def architecture(self, request: BuildRequest) -> str:
        """Return the value of `__CUDA_ARCH__`, such as "900"; a definition in the request takes precedence."""
        return dict(self._with_architecture(request).macros)[ARCHITECTURE_MACRO]

    def _with_architecture(self, request: BuildRequest) -> BuildRequest:
        """Return the request with a definition of `__CUDA_ARCH__`, unless it has one."""
        if ARCHITECTURE_MACRO in dict(request.macros):
            return request
        major, minor = self.capability
        return replace(request, macros=((ARCHITECTURE_MACRO, f"{major}{minor}0"), *request.macros))

    @functools.cached_property
    def _hidden_macros(self) -> list[str]:
        """Return the names of the host compiler's macros that kernels must not see; the cache folder keeps them."""
        path = self.folder / f"hidden-macros-{self.build.name}-{self._key('')}.json"
        with contextlib.suppress(OSError, ValueError):
            return list(json.loads(path.read_text()))
        answer = self._call([*self.toolchain.flags(self.build), "-dM", "-E", "-x", "c++", os.devnull])
        hidden = macros.hidden_names(answer.stdout)
        if answer.returncode == 0:
            write_atomically(path, json.dumps(hidden).encode())
        return hidden

    @functools.cached_property
    def _precompiled_header_flags(self) -> tuple[str, ...]:
        """Return the flags that load the emulator's headers in precompiled form, which halves the time of most builds.

        The preprocessed text then refers to the precompiled header and does not contain its lines. If the precompiled
        header does not fit, for example because a request defines a macro of the headers, g++ reads the headers
        themselves.
        """
        if self.toolchain.family != "gcc":
            return ()
        folder = self.folder / f"shim-{self.build.name}-{self._key('')}"
        precompiled_header = folder / f"{SHIM.name}.gch"
        folder.mkdir(exist_ok=True)
        flags = [*self.toolchain.flags(self.build), "-isystem", str(INCLUDE), "-x", "c++-header"]
        if self._call_once(precompiled_header, [*flags, str(SHIM)]):
            return ()
        return ("-fpch-preprocess", "-isystem", str(folder))

    def precompile_headers(self) -> None:
        """Precompile the emulator's headers unless they are in the cache."""
        _ = self._precompiled_header_flags

    def runtime(self) -> Path:
        """Return the runtime library, compiled once per machine and compiler; raise EnvironmentFault."""
        final_path = self.folder / f"runtime-{self._key('')}.so"
        flags = [flag for flag in self.toolchain.link_flags(self.build) if flag != PATTERN_FLAG]
        flags += RUNTIME_FLAGS if self.toolchain.family == "gcc" else ()
        if message := self._call_once(final_path, [*flags, str(RUNTIME)]):
            raise EnvironmentFault(
                f"{self.toolchain.describe()} cannot compile the cpu backend's runtime; name another compiler with "
                f"the environment variable OPBENCH_CXX, such as OPBENCH_CXX=clang++\n{shortened(message)}",
                kind="runtime-not-built",
                subject="OPBENCH_CXX",
            )
        return final_path

    def _call_once(self, final_path: Path, arguments: Sequence[str]) -> str:
        """Build a missing file in one process at a time; return the compiler's messages if that fails, else ""."""
        if final_path.exists():
            return ""
        with file_lock(final_path), scratch(self.folder) as folder:
            if final_path.exists():
                return ""
            answer = self._call(["-o", str(folder / final_path.name), *arguments])
            if answer.returncode != 0:
                return answer.stderr or f"exit code {answer.returncode}"
            move_into_place(folder / final_path.name, final_path)
        return ""

    def _manifest(self, request: BuildRequest) -> Path:
        """Return the path of the JSON file that maps a request to its object, so that a second compile runs nothing."""
        try:
            sources = include_closure(request.source, request.include)
        except OSError as problem:
            unreadable = Unreadable(request.source, problem)
            raise CompileError(unreadable.message, cause=unreadable) from None
        files = (part for source in sources for part in (str(source.path.absolute()), source.content))
        macros = self._with_architecture(request).macros
        key = self._key(*files, repr((request.roots, len(request.kernels), macros)))
        return self.folder / f"{request.source.stem}-{self.build.name}-{key}.json"

    def _key(self, *parts: str | bytes) -> str:
        """Return a hash of everything that affects compiled files, including the CPU's extensions."""
        return digest(*parts, emulator_hash(), self.toolchain.version, *self.toolchain.flags(self.build))

    def _compile(self, request: BuildRequest, text: str, module_path: Path) -> None:
        """Compile preprocessed text to a shared object in the cache, with files for its constants and the warnings."""
        flags = self.toolchain.flags(self.build)
        if self.toolchain.family == "gcc" and MATRIX_CALL.search(text):
            # Unrolling a loop around an emulated instruction gains no speed and takes most of the compile time.
            flags = (*flags, *NO_UNROLLING)
        if ASYNCHRONOUS_CALL.search(text):
            flags = (*flags, *NO_TAIL_CALLS)
        with scratch(self.folder) as folder:
            source_file, object_file = folder / "unit.ii", folder / "unit.o"
            if self.toolchain.family != "gcc":
                source_file = folder / "unit.cpp"
            source_file.write_text(text)
            language = self.toolchain.preprocessed_language()
            compiler_output = self._run(
                [
                    *flags,
                    *self._precompiled_header_flags[:1],
                    *language,
                    "-c",
                    "-o",
                    str(object_file),
                    str(source_file),
                ],
                request,
            )
            self._require_allowed(object_file, request)
            if self.build.traced:
                elf.widen_arrays(object_file)
            assembly_file, shared_object = folder / "shared.s", folder / module_path.name
            names = elf.undefined_thread_locals(object_file)
            assembly_file.write_text(_dynamic_shared(names))
            # Most modules need no library, and searching libraries takes most of the link time.
            library_flags = () if elf.needs_libraries(object_file, names) else ("-nostdlib",)
            link_flags = (*self.toolchain.link_flags(self.build), *library_flags)
            self._run([*link_flags, "-o", str(shared_object), str(object_file), str(assembly_file)], request)
            write_atomically(constants_of(module_path), json.dumps(constant_variables(text)).encode())
            if compiler_warnings := UNINITIALISED_WARNING.findall(compiler_output):
                write_atomically(warnings_of(module_path), json.dumps(compiler_warnings).encode())
            move_into_place(shared_object, module_path)

    def _require_allowed(self, compiled: Path, request: BuildRequest) -> None:
        """Raise CompileError for an object file that may not be loaded; this class accepts every object file."""

    def _compile_kernel(self, arguments: Sequence[str], request: BuildRequest) -> subprocess.CompletedProcess[str]:
        """Call the compiler on the text of a kernel."""
        return self._call(arguments)

    def _run(self, arguments: Sequence[str], request: BuildRequest) -> str:
        """Call the compiler for a kernel and return its messages; raise CompileError or EnvironmentFault."""
        answer = self._compile_kernel(arguments, request)
        if answer.returncode != 0 and OUT_OF_MEMORY_ERROR.search(answer.stderr):
            raise EnvironmentFault(
                f"not enough memory: {self.toolchain.command[0]} needs more to compile {request.source}; end other "
                f"programs, or raise the limit (ulimit -v)\n{shortened(answer.stderr)}",
                kind="memory-short",
                subject=request.source,
            )
        if answer.returncode != 0:
            raise diagnosis(answer.stderr, request)
        return answer.stderr

    def _call(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run the compiler with arguments; raise EnvironmentFault if the compiler does not start."""
        environment = compiler_environment(self.folder)
        command = [*self.toolchain.command, *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, errors="replace", env=environment, check=False
            )
        except OSError as problem:
            raise EnvironmentFault(
                f"{self.toolchain.command[0]} cannot be started: {problem.strerror}; name another compiler with the "
                "environment variable OPBENCH_CXX, such as OPBENCH_CXX=g++",
                kind="cannot-start",
                subject="OPBENCH_CXX",
                value=problem.errno,
            ) from None


def prepare(folder: Path) -> None:
    """Compile the runtime library and the emulator's headers unless they are in the cache folder."""
    folder.mkdir(parents=True, exist_ok=True)
    toolchain = find_toolchain()
    with ThreadPoolExecutor(2) as pool:
        runtime = pool.submit(KernelBuilder(toolchain, folder, FAST).runtime)
        pool.submit(KernelBuilder(toolchain, folder, TRACED).precompile_headers)
        runtime.result()


def warnings_of(module: Path) -> Path:
    """Return the path of the file with the compiler's warnings about a module's local variables."""
    return module.with_suffix(".compiler_warnings")


def constants_of(module: Path) -> Path:
    """Return the path of the file with the names of a module's `__constant__` variables."""
    return module.with_suffix(".constants")


def entry_symbol(index: int) -> str:
    """Return the name of the exported function that calls the request's kernel with this index."""
    return f"opb_entry_{index}"


def constant_symbol(index: int) -> str:
    """Return the name of the exported function that returns the address of a constant."""
    return f"opb_constant_{index}"


def _wrapper(request: BuildRequest, source: Path, implied_headers: Sequence[str], folder: Path) -> str:
    """Return the C++ source that includes the kernel's file and defines an exported function for each kernel."""
    macro_lines = [f"#define {name} {value}" for name, value in request.macros]  # a shim parameter may have such a name
    standard = [f"#include <{name}>" for name in implied_headers]
    hide, show = (f'#include "{folder}/{switch}.hpp"' for switch in ("hide", "show"))
    lines = ["#include <cuda_cpu.hpp>", *standard, hide, *macro_lines, f'#include "{source}"', show, "OPB_MODULE"]
    lines += [f"OPB_ENTRY({entry_symbol(index)}, {kernel})" for index, kernel in enumerate(request.kernels)]
    lines += [f"OPB_CONSTANT({constant_symbol(index)}, {name})" for index, name in enumerate(request.constants)]
    return "\n".join(lines) + "\n"


def _dynamic_shared(names: Sequence[str]) -> str:
    """Return assembly code that defines all `extern __shared__` arrays of a module as one thread-local array."""
    lines = ['.section .tbss,"awT",@nobits', ".balign 1024"]
    for name in sorted({*names, "opb_dynamic"}):
        lines += [f".globl {name}", f".hidden {name}", f".type {name},@object", f"{name}:"]
    lines += [f".zero {MAX_DYNAMIC_BYTES + CANARY_BYTES}", '.section .note.GNU-stack,"",@progbits']
    return "\n".join(lines) + "\n"


def _read_manifest(manifest: Path) -> Path | None:
    """Return the object file that a manifest names; None if it is missing or a source file has changed."""
    try:
        content = json.loads(manifest.read_text())
        unchanged = all(
            digest(Path(path).read_bytes()) == file_digest for path, file_digest in content["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return None
    object_path = manifest.parent / str(content["object"])
    return object_path if unchanged and object_path.exists() else None


def _file_states(paths: Iterable[str]) -> FileStates:
    """Return the state of files and folders; zeros for one that cannot be read."""
    result = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 (a Path for each would take longer than the call)
        except OSError:
            result.append((path, 0, 0, 0))
            continue
        result.append((path, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
    return tuple(result)


def _user_files(text: str) -> list[Path]:
    """Return the user's files that preprocessed text contains."""
    file_names = dict.fromkeys(
        match.group(2) for match in LINE_MARKER.finditer(text) if SYSTEM_HEADER not in match.group(3).split()
    )
    return [path for path in map(Path, file_names) if path.is_absolute() and path.is_file()]
