"""Find a C++ compiler and define its flags."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from opbench.errors import EnvironmentFault
from opbench.paths import cache_folder, pip_install

INCLUDE = Path(__file__).parent / "include"
SHIM = INCLUDE / "cuda_cpu.hpp"
RUNTIME = Path(__file__).parent / "runtime" / "runtime.cpp"
OLDEST_GCC = 10
"""The first GCC with `__constinit`, without which every use of a `__shared__` array calls a wrapper."""

REMEDY = f"install one with: {pip_install('compiler')}, or with your distribution's g++ package, or set OPBENCH_CXX"


@dataclass(frozen=True)
class CompileMode:
    """One way to compile a module; the instrumented build differs from the fast build only in these flags."""

    name: str
    gcc: tuple[str, ...]
    clang: tuple[str, ...]
    traced: bool = False
    """Whether the compiler inserts a call of the runtime at every access, basic block and function."""


NO_UNROLLING = ("-fdisable-tree-cunrolli", "-fdisable-tree-cunroll", "-fdisable-rtl-loop2_unroll")
"""GCC's flags that disable loop unrolling, even for `#pragma unroll`."""
RUNTIME_FLAGS = (
    "-O1",
    "-freorder-blocks-algorithm=stc",
    "-falign-functions",
    "-falign-loops",
    "-falign-jumps",
    "-foptimize-sibling-calls",
)
"""GCC's flags for the runtime: as fast as with -O2, but compiled in half the time."""
LINE_TABLE_FLAGS = ("-g1",)
"""Debug information with line tables and inlined calls only."""
KEEP_ROW_LOOPS = ("-fno-aggressive-loop-optimizations",)
"""GCC's flag for a loop over all rows of an array through its first row, as in tile[0][i]. Without it, GCC assumes that
the index stays within one row and may remove the end of the loop."""
KEEP_MASKS = ("-fno-tree-ter",)
"""GCC's flag that keeps a mask of a float's bits in a branch: `if (c) x = __uint_as_float(__float_as_uint(x) & m)`.
Without it, the pass `combine` of GCC 12 removes the mask, and a kernel that rounds its numbers seems exact."""
NO_TAIL_CALLS = ("-fno-optimize-sibling-calls",)
"""Flags for kernels with asynchronous instructions: after a tail call, the return address would belong to no line of
the kernel. Other kernels keep tail calls, because every return after a switch of stacks is mispredicted."""
UNSEEN_COPIES = {"gcc": ("memcpy", "memmove", "memset", "memcmp"), "clang": ("memcmp",), "zig": ("memcmp",)}
"""Functions of libc that the compiler does not instrument; include/opbench_cpu/copies.hpp replaces them."""
FAST = CompileMode(
    "fast", gcc=("-O2", *LINE_TABLE_FLAGS, *KEEP_ROW_LOOPS, *KEEP_MASKS), clang=("-O2", *LINE_TABLE_FLAGS)
)
# Each flag prevents an observed problem: vectors split into scalars or merged into wider ones, loops turned into
# memcpy, or the end of a path placed before its beginning, which breaks the replay's order of code positions.
# -fdata-sections gives each `__shared__` array a section of its own, which elf.py widens by a gap.
TRACED = CompileMode(
    "traced",
    traced=True,
    gcc=(
        "-O2",
        *LINE_TABLE_FLAGS,
        *KEEP_ROW_LOOPS,
        *KEEP_MASKS,
        "-DOPB_TRACE",
        # Call the runtime's functions through the table of addresses, without a jump in between: a fifth of the time.
        "-fno-plt",
        "-fdata-sections",
        "-fsanitize=thread",
        "--param=tsan-distinguish-volatile=1",
        # Check indices of arrays whose size the compiler knows; local arrays are checked in no other way.
        "-fsanitize=bounds",
        # The same check for accesses through a pointer into a local variable.
        "-fsanitize=object-size",
        "-fsanitize-coverage=trace-pc",
        *(f"-fno-builtin-{name}" for name in UNSEEN_COPIES["gcc"]),
        "-fno-tree-sra",
        "-fno-ipa-sra",
        "-fno-tree-vectorize",
        "-fno-tree-slp-vectorize",
        "-fno-tree-loop-distribute-patterns",
        "-fno-reorder-blocks",
        "-fno-reorder-blocks-and-partition",
        "-fno-crossjumping",
        # A duplicated path has another code position: lanes in different copies would not reconverge.
        "-fno-thread-jumps",
        "-fno-tree-ch",
        # A store that is moved to the join of two paths would have the line of one path.
        "-fno-tree-sink",
        # These passes run after the calls are inserted, gain nothing and take a third of the compile time.
        "-fno-ivopts",
        "-fno-schedule-insns2",
        # Lanes reconverge by code position. Unrolled copies of a loop's body need not lie in execution order, so lanes
        # that diverge in one copy would reconverge too late.
        *NO_UNROLLING,
        # A load that is moved in front of its loop would execute even if the loop has no iteration.
        "-fno-tree-loop-im",
        "-fno-tree-pre",
        "-fno-code-hoisting",
    ),
    clang=(
        "-O1",
        *LINE_TABLE_FLAGS,
        "-DOPB_TRACE",
        "-fdata-sections",
        "-fsanitize=thread",
        "-fsanitize-coverage=trace-pc,bb,no-prune",
        *(
            part
            for option in (
                "-tsan-instrument-atomics=0",
                "-tsan-distinguish-volatile=1",
                "-tsan-instrument-read-before-write=1",
                "-disable-loop-idiom-memcpy",
                # Do not move accesses under a condition, out of a loop, or from both sides of a branch to their join.
                "-instcombine-code-sinking=0",
                "-jump-threading-threshold=0",
                "-disable-licm-promotion",
                "-simplifycfg-hoist-common=0",
                "-simplifycfg-sink-common=0",
                # Lay out basic blocks in path order: a loop's body before the code after the loop, no duplicated block,
                # and no loop rotated so that its header comes last; for this, jumps have cost 0.
                "-rotation-max-header-size=0",
                "-tail-dup-placement=0",
                "-force-precise-rotation-cost",
                "-misfetch-cost=0",
                "-jump-inst-cost=0",
            )
            for part in ("-mllvm", option)
        ),
        *(f"-fno-builtin-{name}" for name in UNSEEN_COPIES["clang"]),
        "-fno-unroll-loops",
        "-fno-vectorize",
        "-fno-slp-vectorize",
    ),
)

OVERFLOW_FLAG = "-fsanitize=signed-integer-overflow"
HUGE = replace(TRACED, name="huge", gcc=(*TRACED.gcc, OVERFLOW_FLAG), clang=(*TRACED.clang, OVERFLOW_FLAG))
"""The mode for problems too large for 32-bit indices: the runtime reports each signed integer overflow."""

COMMON_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    # Without errno, a square root is one instruction.
    "-fno-math-errno",
    # A large stack frame touches each of its pages, so that it cannot skip the guard page of the stack.
    "-fstack-clash-protection",
)
# Without -fno-gnu-unique two modules with the same template kernel share one `__shared__` array.
GCC_FLAGS = (
    "-fno-gnu-unique",
    "-fno-extern-tls-init",
    # Some distributions' g++ replaces copies by checking functions of libc, which are not instrumented.
    "-U_FORTIFY_SOURCE",
    "-fdiagnostics-color=never",
    "-fmax-errors=5",
    # nvcc refuses variable-length arrays.
    "-Werror=vla",
    # The shim defines __constant__ as an attribute that g++ does not know.
    "-Wno-attributes",
    # These warnings are stored next to the module, because they may explain a wrong result.
    "-Wuninitialized",
    "-Wmaybe-uninitialized",
)
CLANG_FLAGS = ("-fno-color-diagnostics", "-ferror-limit=5", "-w")
PATTERN_FLAG = "-ftrivial-auto-var-init=pattern"
"""Fills uninitialised local variables with a pattern, a large number, so that reading one shows (GCC 12, clang)."""
FIRST_GCC_WITH_PATTERN = 12

X86_EXTENSIONS = {"fma": "-mfma", "f16c": "-mf16c", "popcnt": "-mpopcnt", "bmi2": "-mbmi2"}


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: its command, its family (gcc, clang or zig) and its version line."""

    command: tuple[str, ...]
    family: str
    version: str

    def flags(self, build: CompileMode) -> tuple[str, ...]:
        """Return all code generation flags of a build."""
        if self.family == "gcc":
            pattern = () if self._major < FIRST_GCC_WITH_PATTERN else (PATTERN_FLAG,)
            return (*COMMON_FLAGS, *GCC_FLAGS, *machine_flags(self.family), *pattern, *build.gcc)
        pattern = () if build.traced else (PATTERN_FLAG,)
        # zig enables its own undefined-behaviour checks by default.
        return (
            *COMMON_FLAGS,
            "-fno-sanitize=undefined",
            *CLANG_FLAGS,
            *machine_flags(self.family),
            *pattern,
            *build.clang,
        )

    @property
    def _major(self) -> int:
        """Return GCC's major version; 0 if it is unknown."""
        number = re.search(r"\s(\d+)\.\d+", self.version)
        return int(number.group(1)) if number else 0

    def link_flags(self, build: CompileMode) -> tuple[str, ...]:
        """Return the flags to link a shared object.

        With clang and zig no library, because zig would compile its own.
        """
        # A sanitizer flag would link the sanitizer's runtime; the emulator's runtime takes its place.
        flags = tuple(flag for flag in self.flags(build) if not flag.startswith("-fsanitize"))
        return (*flags, "-shared") if self.family == "gcc" else (*flags, "-shared", "-nostdlib", "-Wl,--no-gc-sections")

    def preprocessed_language(self) -> tuple[str, ...]:
        """Return the language flags for preprocessed text; zig does not know `c++-cpp-output`."""
        return ("-x", "c++-cpp-output") if self.family == "gcc" else ("-x", "c++")

    def describe(self) -> str:
        """Return the compiler's name and version."""
        return self.version


@functools.cache
def machine_flags(family: str) -> tuple[str, ...]:
    """Return flags for the CPU's extensions; without them, fused multiply-add would be a library call."""
    if platform.machine() != "x86_64":
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags_line = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    cpu_features = set(flags_line.group(1).split()) if flags_line else set()
    extensions = tuple(flag for name, flag in X86_EXTENSIONS.items() if name in cpu_features)
    # By default zig compiles for the host's CPU, but machines with other CPUs may share the cache.
    return ("-mcpu=x86_64", *extensions) if family == "zig" else extensions


def compiler_environment(folder: Path) -> dict[str, str]:
    """Return environment variables for messages in English and for zig's cache folder."""
    zig_cache = str(folder / "zig")
    return {"ZIG_LOCAL_CACHE_DIR": zig_cache, **os.environ, "LC_ALL": "C", "ZIG_GLOBAL_CACHE_DIR": zig_cache}


def find_toolchain() -> Toolchain:
    """Return the first usable compiler of $OPBENCH_CXX, g++, clang++ and zig; raise EnvironmentFault without one."""
    requested_command = os.environ.get("OPBENCH_CXX")
    if requested_command:
        toolchain = _probe(tuple(shlex.split(requested_command)))
        if toolchain is None:
            raise EnvironmentFault(
                f"OPBENCH_CXX='{requested_command}' is no working g++ >= {OLDEST_GCC} or clang++; {REMEDY}",
                kind="no-compiler",
                subject="OPBENCH_CXX",
                value=requested_command,
            )
        return toolchain
    for command in _candidates():
        toolchain = _probe(command)
        if toolchain is not None:
            return toolchain
    raise EnvironmentFault(
        f"no C++ compiler was found (searched: g++ >= {OLDEST_GCC}, clang++, the ziglang package); {REMEDY}",
        kind="no-compiler",
    )


def _candidates() -> list[tuple[str, ...]]:
    """Return the commands of the compilers that are installed, in order of preference."""
    commands: list[tuple[str, ...]] = [(path,) for path in map(shutil.which, ("g++", "clang++")) if path]
    package = importlib.util.find_spec("ziglang")
    if package is not None and package.submodule_search_locations:
        # Calling the binary directly avoids a start of Python per compiler call.
        zig = Path(next(iter(package.submodule_search_locations))) / "zig"
        if zig.exists():
            commands.append((str(zig), "c++"))
    return commands


@functools.cache
def _probe(command: tuple[str, ...]) -> Toolchain | None:
    """Return the toolchain of a command; None if it does not run or is too old."""
    environment = compiler_environment(cache_folder("cpu"))
    try:
        finished = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if finished.returncode != 0 or not finished.stdout:
        return None
    version = finished.stdout.splitlines()[0].strip()
    if "clang" in finished.stdout:
        is_zig = any(Path(part).name == "ziglang" or Path(part).name.startswith("zig") for part in command)
        return Toolchain(command, "zig" if is_zig else "clang", version)
    number = re.search(r"\s(\d+)\.\d+", version)
    if number and int(number.group(1)) < OLDEST_GCC:
        return None
    return Toolchain(command, "gcc", version)
