"""Find a C++ compiler, and hold every flag that it is called with."""

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
"""The first with `__constinit`, without which every use of a `__shared__` array calls a wrapper."""

REMEDY = f"install one with: {pip_install('compiler')}, or your distribution's g++ package; OPBENCH_CXX names another"


@dataclass(frozen=True)
class CompileMode:
    """One way to compile a module: a traced build differs from the fast one in these flags only."""

    name: str
    gcc: tuple[str, ...]
    clang: tuple[str, ...]
    traced: bool = False
    """Whether the compiler inserts calls at every access, basic block and function, which our runtime answers."""


ROLLED = ("-fdisable-tree-cunrolli", "-fdisable-tree-cunroll", "-fdisable-rtl-loop2_unroll")
"""GCC's flags that leave every loop a loop, whatever `#pragma unroll` asks."""
QUICK = (
    "-O1",
    "-freorder-blocks-algorithm=stc",
    "-falign-functions",
    "-falign-loops",
    "-falign-jumps",
    "-foptimize-sibling-calls",
)
"""Of GCC's -O2 what the runtime gains from: it is as quick, and compiled in half the time."""
LINES = ("-g1",)
"""Line tables and inlined calls only."""
ROWS = ("-fno-aggressive-loop-optimizations",)
"""Of GCC: a loop over all rows of an array through its first, tile[0][i], else has no end, as each row has one."""
CALLS = ("-fno-optimize-sibling-calls",)
"""For kernels with asynchronous work: a jump in place of a call would return to where no line of theirs is. Others keep
the jumps, as every return after a switch of stacks is mispredicted."""
UNSEEN_COPIES = {"gcc": ("memcpy", "memmove", "memset", "memcmp"), "clang": ("memcmp",), "zig": ("memcmp",)}
"""Functions of libc that a compiler's instrumentation does not see; include/opbench_cpu/copies.hpp has others."""
FAST = CompileMode("fast", gcc=("-O2", *LINES, *ROWS), clang=("-O2", *LINES))
# What each flag prevents was seen: vectors split into scalars or merged into wider ones, loops turned into memcpy, and
# code laid out so that a path's end comes before its beginning, which breaks the replay's order of positions.
# -fdata-sections gives each `__shared__` array a section of its own, which elf.py widens by a gap.
TRACED = CompileMode(
    "traced",
    traced=True,
    gcc=(
        "-O2",
        *LINES,
        *ROWS,
        "-DOPB_TRACE",
        "-fdata-sections",
        "-fsanitize=thread",
        "--param=tsan-distinguish-volatile=1",
        # Indices of arrays whose size the compiler knows: local ones are nobody else's business.
        "-fsanitize=bounds",
        # The same through a pointer into a local variable.
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
        # A copy of a path is another position: lanes that go through different copies never meet there.
        "-fno-thread-jumps",
        "-fno-tree-ch",
        # A store moved to where paths join would carry one path's line.
        "-fno-tree-sink",
        # These come after the calls are in place, gain nothing between them and take a third of the compiler's time.
        "-fno-ivopts",
        "-fno-schedule-insns2",
        # Copies of a loop's body are not laid out in the order of execution: lanes that part in one meet too late.
        *ROLLED,
        # A load before the loop that it stands in would happen even where the loop does not run.
        "-fno-tree-loop-im",
        "-fno-tree-pre",
        "-fno-code-hoisting",
    ),
    clang=(
        "-O1",
        *LINES,
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
                # Accesses that move under a condition, out of a loop, or from both sides of a branch to their join.
                "-instcombine-code-sinking=0",
                "-jump-threading-threshold=0",
                "-disable-licm-promotion",
                "-simplifycfg-hoist-common=0",
                "-simplifycfg-sink-common=0",
                # Blocks in the order of paths: a loop's body before what follows it, no block twice, and no loop turned
                # so that its header comes last, to which end jumps cost nothing.
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

OVERFLOW = "-fsanitize=signed-integer-overflow"
HUGE = replace(TRACED, name="huge", gcc=(*TRACED.gcc, OVERFLOW), clang=(*TRACED.clang, OVERFLOW))
"""For problems beyond what 32 bits can index: a sum or product that does not fit is told where it happens."""

COMMON = (
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    # A square root is one instruction when it need not set errno.
    "-fno-math-errno",
    # A frame of many pages touches each, so that it cannot step over the page that guards the stack.
    "-fstack-clash-protection",
)
# Without -fno-gnu-unique two modules with the same template kernel share one `__shared__` array.
GCC_ONLY = (
    "-fno-gnu-unique",
    "-fno-extern-tls-init",
    # Some distributions' g++ checks the sizes of copies by functions of libc in place of ours.
    "-U_FORTIFY_SOURCE",
    "-fdiagnostics-color=never",
    "-fmax-errors=5",
    # What a GPU's compiler refuses.
    "-Werror=vla",
    # __constant__ is an attribute of the shim's own.
    "-Wno-attributes",
    # Stored next to the module: they explain a wrong result.
    "-Wuninitialized",
    "-Wmaybe-uninitialized",
)
CLANG_ONLY = ("-fno-color-diagnostics", "-ferror-limit=5", "-w")
PATTERN = "-ftrivial-auto-var-init=pattern"
"""A local variable that is read before it is written holds a large number. GCC 12, clang."""
PATTERN_GCC = 12

X86_EXTENSIONS = {"fma": "-mfma", "f16c": "-mf16c", "popcnt": "-mpopcnt", "bmi2": "-mbmi2"}


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler and how to speak to it."""

    command: tuple[str, ...]
    family: str
    version: str

    def flags(self, build: CompileMode) -> tuple[str, ...]:
        """Every code generation flag of a build."""
        if self.family == "gcc":
            pattern = () if self._major < PATTERN_GCC else (PATTERN,)
            return (*COMMON, *GCC_ONLY, *machine_flags(self.family), *pattern, *build.gcc)
        pattern = () if build.traced else (PATTERN,)
        # zig switches checks of its own on.
        return (*COMMON, "-fno-sanitize=undefined", *CLANG_ONLY, *machine_flags(self.family), *pattern, *build.clang)

    @property
    def _major(self) -> int:
        number = re.search(r"\s(\d+)\.\d+", self.version)
        return int(number.group(1)) if number else 0

    def link_flags(self, build: CompileMode) -> tuple[str, ...]:
        """How a shared object is linked: clang needs no library, and zig would build its C++ library first (66 s)."""
        # A sanitizer's flag would link its runtime in; ours answers instead.
        flags = tuple(flag for flag in self.flags(build) if not flag.startswith("-fsanitize"))
        return (*flags, "-shared") if self.family == "gcc" else (*flags, "-shared", "-nostdlib", "-Wl,--no-gc-sections")

    def preprocessed_language(self) -> tuple[str, ...]:
        """Preprocessed text is plain C++ to zig, which knows no `c++-cpp-output`."""
        return ("-x", "c++-cpp-output") if self.family == "gcc" else ("-x", "c++")

    def describe(self) -> str:
        """The compiler's name and version."""
        return self.version


@functools.cache
def machine_flags(family: str) -> tuple[str, ...]:
    """What the CPU can do: above all a fused multiply-add, which otherwise is a library call."""
    if platform.machine() != "x86_64":
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    line = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    known = set(line.group(1).split()) if line else set()
    extensions = tuple(flag for name, flag in X86_EXTENSIONS.items() if name in known)
    # zig targets the machine that it runs on unless told otherwise; the cache may be shared between machines.
    return ("-mcpu=x86_64", *extensions) if family == "zig" else extensions


def compiler_environment(folder: Path) -> dict[str, str]:
    """Return variables for English messages and for zig's cache, which it needs even to print its version."""
    kept = str(folder / "zig")
    return {"ZIG_LOCAL_CACHE_DIR": kept, **os.environ, "LC_ALL": "C", "ZIG_GLOBAL_CACHE_DIR": kept}


def find_toolchain() -> Toolchain:
    """The first usable compiler: $OPBENCH_CXX, g++, clang++, zig."""
    chosen = os.environ.get("OPBENCH_CXX")
    if chosen:
        usable = _probe(tuple(shlex.split(chosen)))
        if usable is None:
            raise EnvironmentFault(f"OPBENCH_CXX='{chosen}' is no working g++ >= {OLDEST_GCC} or clang++; {REMEDY}")
        return usable
    for command in _candidates():
        usable = _probe(command)
        if usable is not None:
            return usable
    raise EnvironmentFault(f"no C++ compiler (looked for g++ >= {OLDEST_GCC}, clang++, the ziglang package); {REMEDY}")


def _candidates() -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = [(path,) for path in map(shutil.which, ("g++", "clang++")) if path]
    package = importlib.util.find_spec("ziglang")
    if package is not None and package.submodule_search_locations:
        # Calling the binary spares a start of Python for each step.
        zig = Path(next(iter(package.submodule_search_locations))) / "zig"
        if zig.exists():
            commands.append((str(zig), "c++"))
    return commands


@functools.cache
def _probe(command: tuple[str, ...]) -> Toolchain | None:
    environment = compiler_environment(cache_folder("cpu"))
    try:
        answer = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if answer.returncode != 0 or not answer.stdout:
        return None
    version = answer.stdout.splitlines()[0].strip()
    if "clang" in answer.stdout:
        is_zig = any(Path(part).name == "ziglang" or Path(part).name.startswith("zig") for part in command)
        return Toolchain(command, "zig" if is_zig else "clang", version)
    number = re.search(r"\s(\d+)\.\d+", version)
    if number and int(number.group(1)) < OLDEST_GCC:
        return None
    return Toolchain(command, "gcc", version)
