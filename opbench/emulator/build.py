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
    CALLS,
    FAST,
    INCLUDE,
    PATTERN,
    QUICK,
    ROLLED,
    RUNTIME,
    SHIM,
    TRACED,
    UNSEEN_COPIES,
    CompileMode,
    Toolchain,
    compiler_environment,
    find_toolchain,
)
from opbench.errors import CompileError, EnvironmentFault, Location
from opbench.kernels.launch import BuildRequest
from opbench.paths import publish, write_atomically
from opbench.source import device_part, names, scan, sources, standard_names, tokens
from opbench.source.sources import include_closure, includes

UNINITIALISED_WARNING = re.compile(r"^(/[^:\n]+):(\d+):\d+: warning: (.*uninitialized) \[", re.MULTILINE)
"""A g++ warning about a local variable: file, line and message."""
MATRIX_CALL = re.compile(r"opb_ptx::(mma_|product)")
ASYNCHRONOUS_CALL = re.compile(
    r"::opb_ptx::(mbarrier|product|wgmma|load_|store_|cluster_|bar_|cp_async_bulk|setmaxnreg)"
)
MISSING_HEADER = re.compile(r"fatal error: '?([^\s:']+)'?:? (?:No such file or directory|file not found)")
UNDECLARED = re.compile(
    r"was not declared|has not been declared|does not name a type|undeclared identifier|unknown type"
)
NO_MEMORY = re.compile(
    r"virtual memory exhausted|out of memory allocating|std::bad_alloc|Cannot allocate memory|LLVM ERROR: out of memory"
    r"|Killed signal terminated program"
)
NEWEST_CAPABILITY = (9, 0)
"""The newest compute capability whose code the cpu backend executes."""
ARCHITECTURE_MACRO = "__CUDA_ARCH__"
CACHED_TEXTS = 64
"""The number of preprocessed texts that a builder caches; each has about 100 kB."""
SETTLED_NS = 2_100_000_000
"""The age from which a modification time tells a later edit apart; file systems count in steps of up to 2 s."""


State: TypeAlias = "tuple[tuple[str, int, int, int], ...]"
"""Path, time of the last modification and of the last change of its entry in ns, and size of files and folders."""


@dataclass(frozen=True)
class KnownModule:
    """Hold a module that was looked up, and the state of the files and folders that decide what it is."""

    path: Path
    state: State
    """Path, modification time in ns and size of each source file, each of their folders and each folder of headers."""


@dataclass(frozen=True)
class Preprocessed:
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
def file_lock(final: Path) -> Iterator[None]:
    """Lock a file while other processes must not build it; do nothing on file systems without locks."""
    with (final.parent / f".{final.name}.lock").open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Create a temporary folder on the cache's file system, so that files can be moved to the cache atomically."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder, ignore_cleanup_errors=True) as name:
        yield Path(name)


@functools.cache
def shim_version() -> str:
    """Return a hash of the emulator's headers, runtime and text passes, and of the path of their folder."""
    folder = Path(__file__).parent
    own = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    read = [
        *own,
        *(Path(str(module.__file__)) for module in (device_part, names, scan, sources, standard_names, tokens)),
    ]
    return digest(str(Path(__file__).parent), *(part for path in read for part in (path.name, path.read_bytes())))


class KernelBuilder:
    """Compile modules with one toolchain into one cache folder; threads and processes may share the folder."""

    remembers = True
    """Whether a module that was looked up is taken again without reading its files, if none of them has changed."""

    def __init__(
        self, toolchain: Toolchain, folder: Path, build: CompileMode, capability: tuple[int, int] = NEWEST_CAPABILITY
    ) -> None:
        self.toolchain = toolchain
        self.folder = folder
        self.build = build
        self.capability = capability
        """The compute capability from which `__CUDA_ARCH__` is derived."""
        self._preprocessed: dict[tuple[str, bool], Preprocessed] = {}
        """Cached by manifest and `reduced`, because a build often follows the check whether a build is possible."""
        self._known: dict[BuildRequest, KnownModule] = {}
        """A check looks up its module before each run of it; hashing all sources takes longer than a small run."""

    def module(self, request: BuildRequest) -> Path:
        """Return the shared object of a request, compiled unless it is in the cache; raise CompileError."""
        known, began_ns = self._known.get(request), time.time_ns()
        if known and known.path.exists() and _state(place for place, *_ in known.state) == known.state:
            return known.path
        manifest = self._manifest(request)
        if (path := _read_manifest(manifest)) is not None:
            if self.remembers:
                self._remember(request, manifest, path, began_ns)
            return path
        require_names(request)
        require_device_functions(request)
        require_definitions(request)
        if has_host_part_in(request):
            return self._made(request, manifest, True)
        try:
            return self._made(request, manifest, False)
        except CompileError as first:
            # The error may be in a kernel that the request does not use: compile again without that kernel.
            if not can_be_reduced(request):
                raise
            try:
                return self._made(request, manifest, True)
            except CompileError as second:
                if missing := MISSING_HEADER.search(str(first)):
                    sources = include_closure(request.source, request.include)
                    raise device_part.missing_header_error(second, (missing[1],), sources) from None
            raise

    def _remember(self, request: BuildRequest, manifest: Path, path: Path, began_ns: int) -> None:
        """Skip the next lookup of a module as long as no file is edited, and none is added that could hide another.

        `began_ns` is the time before the files were read.
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
        state = _state(sorted(files | folders))
        # An edit within one step of the clock after the last one would leave the same time.
        if all(modified_ns + SETTLED_NS < began_ns for _, modified_ns, *_ in state):
            self._known[request] = KnownModule(path, state)

    def _made(self, request: BuildRequest, manifest: Path, reduced: bool) -> Path:
        """Compile the whole file or, if `reduced`, only the declarations that the request's kernels need."""
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
        final = self.folder / f"{request.source.stem}-{self.build.name}-{key}.so"
        if not final.exists():
            try:
                self._compile(request, text, final)
            except CompileError as error:
                # A missing header may have declared the undeclared name.
                if preprocessed.empty and UNDECLARED.search(str(error)):
                    sources = include_closure(request.source, request.include)
                    raise device_part.missing_header_error(error, preprocessed.empty, sources) from None
                raise
        files = {str(path): digest(path.read_bytes()) for path in preprocessed.files}
        write_atomically(manifest, json.dumps({"object": final.name, "files": files}).encode())
        return final

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

    def _without_ptx(self, request: BuildRequest, reduced: bool, manifest: Path) -> Preprocessed:
        """Return the preprocessed request with inline PTX replaced by function calls.

        The next build reuses the result.
        """
        key = (manifest.name, reduced)
        if key not in self._preprocessed:
            unit = self.preprocess(request, reduced)
            require_capability(unit.text, self.capability)
            self._preprocessed[key] = replace(unit, text=replace_ptx(unit.text))
            for old in list(self._preprocessed)[:-CACHED_TEXTS]:
                self._preprocessed.pop(old, None)
        return self._preprocessed[key]

    def preprocess(self, request: BuildRequest, reduced: bool | None = None) -> Preprocessed:
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
                _wrapper(self._with_architecture(request), reduced_file.source, reduced_file.implied, folder)
            )
            own = [part for folder in request.include for part in ("-I", str(folder.absolute()))]
            system = ["-isystem", str(folder / "headers"), "-isystem", str(INCLUDE)]
            include = [*self._parsed_shim, *system, *own, *reduced_file.flags]
            command = ["-E", *self.toolchain.flags(self.build), *include, "-o", str(output), str(wrapper)]
            self._run(command, request)
            # The key must not depend on the random name of the scratch folder.
            text = output.read_text().replace(str(wrapper), wrapper.name)
            for written, original in reduced_file.originals.items():
                text = text.replace(str(written), str(original.absolute()))
            text = macros.without_switches(text, folder)
            missing = tuple(
                name
                for name in reduced_file.empty
                if device_part.is_by_path(name) or f"{reduced_file.flags[-1]}/{name}" in text
            )
            return Preprocessed(text, tuple(_user_files(text)), missing)

    def architecture(self, request: BuildRequest) -> str:
        """Return the value of `__CUDA_ARCH__`, such as "900"; a definition in the request takes precedence."""
        return dict(self._with_architecture(request).macros)[ARCHITECTURE_MACRO]

    def _with_architecture(self, request: BuildRequest) -> BuildRequest:
        if ARCHITECTURE_MACRO in dict(request.macros):
            return request
        major, minor = self.capability
        return replace(request, macros=((ARCHITECTURE_MACRO, f"{major}{minor}0"), *request.macros))

    @functools.cached_property
    def _hidden_macros(self) -> list[str]:
        """Return the names of the host compiler's macros that kernels must not see."""
        answer = self._call([*self.toolchain.flags(self.build), "-dM", "-E", "-x", "c++", os.devnull])
        return macros.hidden_names(answer.stdout)

    @functools.cached_property
    def _parsed_shim(self) -> tuple[str, ...]:
        """Return the flags that load the emulator's headers in precompiled form, which halves the time of most builds.

        The preprocessed text then refers to the precompiled header instead of containing the shim's lines. If
        the header does not fit, for example because a request defines a macro of the shim, g++ reads the shim
        itself.
        """
        if self.toolchain.family != "gcc":
            return ()
        folder = self.folder / f"shim-{self.build.name}-{self._key('')}"
        parsed = folder / f"{SHIM.name}.gch"
        folder.mkdir(exist_ok=True)
        flags = [*self.toolchain.flags(self.build), "-isystem", str(INCLUDE), "-x", "c++-header"]
        if self._call_once(parsed, [*flags, str(SHIM)]):
            return ()
        return ("-fpch-preprocess", "-isystem", str(folder))

    def parse_shim(self) -> None:
        """Precompile the emulator's headers unless they are in the cache."""
        _ = self._parsed_shim

    def runtime(self) -> Path:
        """Return the runtime library, compiled once per machine and compiler; raise EnvironmentFault."""
        final = self.folder / f"runtime-{self._key('')}.so"
        flags = [flag for flag in self.toolchain.link_flags(self.build) if flag != PATTERN]
        flags += QUICK if self.toolchain.family == "gcc" else ()
        if message := self._call_once(final, [*flags, str(RUNTIME)]):
            raise EnvironmentFault(
                f"{self.toolchain.describe()} cannot compile the cpu backend's runtime; "
                f"OPBENCH_CXX names another compiler\n{shortened(message)}"
            )
        return final

    def _call_once(self, final: Path, arguments: Sequence[str]) -> str:
        """Build a missing file in one process at a time; return the compiler's messages if that fails, else ""."""
        if final.exists():
            return ""
        with file_lock(final), scratch(self.folder) as folder:
            if final.exists():
                return ""
            answer = self._call(["-o", str(folder / final.name), *arguments])
            if answer.returncode != 0:
                return answer.stderr or f"exit code {answer.returncode}"
            publish(folder / final.name, final)
        return ""

    def _manifest(self, request: BuildRequest) -> Path:
        """Return the path of the JSON file that maps a request to its object, so that a second compile runs nothing."""
        try:
            sources = include_closure(request.source, request.include)
        except OSError as problem:
            raise CompileError(f"{request.source}: cannot be read: {problem.strerror}") from None
        files = (part for source in sources for part in (str(source.path.absolute()), source.content))
        macros = self._with_architecture(request).macros
        key = self._key(*files, repr((request.roots, len(request.kernels), macros)))
        return self.folder / f"{request.source.stem}-{self.build.name}-{key}.json"

    def _key(self, *parts: str | bytes) -> str:
        """Return a hash of everything that affects compiled files, including the CPU's extensions."""
        return digest(*parts, shim_version(), self.toolchain.version, *self.toolchain.flags(self.build))

    def _compile(self, request: BuildRequest, text: str, final: Path) -> None:
        flags = self.toolchain.flags(self.build)
        if self.toolchain.family == "gcc" and MATRIX_CALL.search(text):
            # Unrolling a loop around an emulated instruction gains no speed and takes most of the compile time.
            flags = (*flags, *ROLLED)
        if ASYNCHRONOUS_CALL.search(text):
            flags = (*flags, *CALLS)
        with scratch(self.folder) as folder:
            unit, compiled = folder / "unit.ii", folder / "unit.o"
            if self.toolchain.family != "gcc":
                unit = folder / "unit.cpp"
            unit.write_text(text)
            language = self.toolchain.preprocessed_language()
            compiler_output = self._run(
                [*flags, *self._parsed_shim[:1], *language, "-c", "-o", str(compiled), str(unit)], request
            )
            self._require_allowed(compiled, request)
            if self.build.traced:
                elf.widen_arrays(compiled)
            shared, made = folder / "shared.s", folder / final.name
            names = elf.undefined_thread_locals(compiled)
            shared.write_text(_dynamic_shared(names))
            # Most modules need no library, and searching libraries takes most of the link time.
            needed = () if elf.needs_libraries(compiled, names) else ("-nostdlib",)
            link = (*self.toolchain.link_flags(self.build), *needed)
            self._run([*link, "-o", str(made), str(compiled), str(shared)], request)
            write_atomically(constants_of(final), json.dumps(constant_variables(text)).encode())
            if compiler_warnings := UNINITIALISED_WARNING.findall(compiler_output):
                write_atomically(warnings_of(final), json.dumps(compiler_warnings).encode())
            publish(made, final)

    def _require_allowed(self, compiled: Path, request: BuildRequest) -> None:
        """Raise CompileError for an object file that may not be loaded; this class accepts every object file."""

    def _compile_kernel(self, arguments: Sequence[str], request: BuildRequest) -> subprocess.CompletedProcess[str]:
        """Call the compiler on the text of a kernel."""
        return self._call(arguments)

    def _run(self, arguments: Sequence[str], request: BuildRequest) -> str:
        answer = self._compile_kernel(arguments, request)
        if answer.returncode != 0 and NO_MEMORY.search(answer.stderr):
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
        environment = compiler_environment(self.folder)
        command = [*self.toolchain.command, *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, errors="replace", env=environment, check=False
            )
        except OSError as problem:
            raise EnvironmentFault(f"{self.toolchain.command[0]} does not run: {problem.strerror}") from None


def prepare(folder: Path) -> None:
    """Compile the runtime library and the emulator's headers unless they are in the cache folder."""
    folder.mkdir(parents=True, exist_ok=True)
    toolchain = find_toolchain()
    with ThreadPoolExecutor(2) as pool:
        runtime = pool.submit(KernelBuilder(toolchain, folder, FAST).runtime)
        pool.submit(KernelBuilder(toolchain, folder, TRACED).parse_shim)
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


def _wrapper(request: BuildRequest, source: Path, implied: Sequence[str], folder: Path) -> str:
    own = [f"#define {name} {value}" for name, value in request.macros]  # a shim parameter may have such a name
    standard = [f"#include <{name}>" for name in implied]
    hide, show = (f'#include "{folder}/{switch}.hpp"' for switch in ("hide", "show"))
    lines = ["#include <cuda_cpu.hpp>", *standard, hide, *own, f'#include "{source}"', show, "OPB_MODULE"]
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
        known = json.loads(manifest.read_text())
        unchanged = all(digest(Path(path).read_bytes()) == key for path, key in known["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    final = manifest.parent / str(known["object"])
    return final if unchanged and final.exists() else None


def _state(places: Iterable[str]) -> State:
    """Return the state of files and folders; zeros for one that cannot be read."""
    result = []
    for place in places:
        try:
            status = os.stat(place)  # noqa: PTH116 (a Path for each would take longer than the call)
        except OSError:
            result.append((place, 0, 0, 0))
            continue
        result.append((place, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
    return tuple(result)


def _user_files(text: str) -> list[Path]:
    """Return the user's files that preprocessed text contains."""
    names = dict.fromkeys(
        match.group(2) for match in LINE_MARKER.finditer(text) if SYSTEM_HEADER not in match.group(3).split()
    )
    return [path for path in map(Path, names) if path.is_absolute() and path.is_file()]
