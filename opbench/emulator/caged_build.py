"""Compile untrusted kernels: check the text by rules, and run the compiler in a cage."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from opbench.cage.confine import Confinement, Limits
from opbench.cage.fork_server import ForkServer
from opbench.cage.program import run_program
from opbench.emulator import elf
from opbench.emulator.build import NEWEST_CAPABILITY, OUT_OF_MEMORY_ERROR, KernelBuilder, PreprocessedText
from opbench.emulator.toolchain import INCLUDE, CompileMode, Toolchain
from opbench.emulator.untrusted import (
    require_device_code,
    require_device_object,
    require_own_files,
    require_plain_names,
)
from opbench.errors import CompileError, EnvironmentFault
from opbench.kernels.launch import BuildRequest
from opbench.source.sources import include_closure

SYSTEM_FOLDERS = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
"""Folders with compilers and their libraries, which the compiler may read and execute."""
SYSTEM_FILES = ("/etc/ld.so.cache", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo")
FOLDER_FLAGS = ("-isystem", "-idirafter")
"""Flags of the builder whose folders hold no files of the user."""
COMPILE_LIMIT_S = 120.0
COMPILE_LIMITS = Limits(cpu_s=90, memory_bytes=4 << 30, file_bytes=128 << 20, open_files=256)
MODULES_FOLDER = "untrusted"
"""The folder below the cache for untrusted modules; other builds never use it."""


class CagedBuilder(KernelBuilder):
    """Compile untrusted modules; the runtime and the precompiled headers come from a trusted builder."""

    skips_unchanged_files = False  # Each reuse of a module checks its files again.

    def __init__(
        self,
        server: ForkServer,
        toolchain: Toolchain,
        folder: Path,
        build: CompileMode,
        capability: tuple[int, int] = NEWEST_CAPABILITY,
    ) -> None:
        if toolchain.family == "zig":
            raise EnvironmentFault(
                "--untrusted needs g++ or clang++, but only zig is installed, which writes into its own cache; "
                "install one with your distribution's g++ package, or name one with OPBENCH_CXX",
                kind="no-compiler",
                subject="--untrusted",
            )
        modules = folder / MODULES_FOLDER
        modules.mkdir(parents=True, exist_ok=True)
        super().__init__(toolchain, modules, build, capability)
        self._server = server
        self._trusted = KernelBuilder(toolchain, folder, build, capability)

    @functools.cached_property
    def _precompiled_header_flags(self) -> tuple[str, ...]:
        return self._trusted._precompiled_header_flags

    def _manifest(self, request: BuildRequest) -> Path:
        """Return the manifest's path after checking the request's files: every build and every reuse begins here."""
        manifest = super()._manifest(request)
        require_plain_names(request)
        require_own_files(request, include_closure(request.source, request.include))
        return manifest

    def _without_ptx(self, request: BuildRequest, reduced: bool, manifest: Path) -> PreprocessedText:
        """Return the preprocessed request without inline PTX after checking that it contains only device code."""
        unit = super()._without_ptx(request, reduced, manifest)
        require_device_code(
            unit.text, [source.path.absolute() for source in include_closure(request.source, request.include)]
        )
        return unit

    def _require_allowed(self, compiled: Path, request: BuildRequest) -> None:
        """Raise CompileError if an object file would run code on the host or call host functions."""
        require_device_object(compiled, elf.undefined_thread_locals(compiled), request.source)

    def _compile_kernel(self, arguments: Sequence[str], request: BuildRequest) -> subprocess.CompletedProcess[str]:
        """Run the compiler in a cage: it can read only the kernel's files and write only its temporary folder."""
        scratch = Path(arguments[arguments.index("-o") + 1]).parent
        compiler_name, *compiler_arguments = self.toolchain.command
        program = shutil.which(compiler_name) or compiler_name
        command = [program, *compiler_arguments, *arguments]
        readable_paths = [source.path for source in include_closure(request.source, request.include)]
        flags = (*arguments, *self._precompiled_header_flags)
        readable_paths += [Path(folder) for flag, folder in itertools.pairwise(flags) if flag in FOLDER_FLAGS]
        confinement = Confinement(
            (*readable_paths, INCLUDE, *map(Path, SYSTEM_FILES)),
            (scratch, Path("/dev/null")),
            (*map(Path, SYSTEM_FOLDERS), _installation(Path(program))),
            COMPILE_LIMITS,
        )
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": str(scratch)}
        finished = run_program(self._server, confinement, command, environment, COMPILE_LIMIT_S)
        # g++ ends with 1 where the system killed the compiler proper, which it starts.
        if (
            finished.code is None
            or finished.code < 0
            or (finished.code > 0 and OUT_OF_MEMORY_ERROR.search(finished.messages))
        ):
            raise CompileError(
                f"{request.source}: the compiler reached one of the limits for untrusted kernels: "
                f"{COMPILE_LIMIT_S:g} s, {COMPILE_LIMITS.memory_bytes >> 30} GiB of memory, files of "
                f"{COMPILE_LIMITS.file_bytes >> 20} MiB; unroll less, instantiate fewer templates, or split the file",
                kind="compile-limit",
                subject=request.source,
            )
        return subprocess.CompletedProcess(command, finished.code, "", finished.messages)


def _installation(program: Path) -> Path:
    """Return the folder with a compiler's own files, such as /opt/gcc for /opt/gcc/bin/g++; never the home folder."""
    folder = program.resolve().parent
    return folder if folder.parent in (Path.home(), *Path.home().parents) else folder.parent
