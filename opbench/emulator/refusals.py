"""Check limits that nvcc or the CUDA driver enforces, and find properties of the source that affect a run."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from opbench.emulator.elf import SharedArray
from opbench.errors import LaunchError
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.source.names import plain_kernel
from opbench.source.sources import include_closure, without_comments

STATIC_SHARED_BYTES = 48 << 10
LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)")
NAMED_CONSTANT = r"(?:#\s*define\s+{0}\s+|\b(?:constexpr|const)\s+(?:static\s+)?\w+\s+{0}\s*=\s*)([^;\n]+)"
SPIN_WAIT = re.compile(
    r"volatile\b(?<!\wvolatile)(?<!asm volatile)(?<!__asm__ volatile)|atomic(?<!\watomic)(?:CAS|Exch|Add|Or)\w*\s*\("
    r"|__nanosleep|atomic_ref|ld\.(?:volatile|acquire|relaxed)"
)
"""Source text that any kernel with a spin-wait loop contains. Each word stands before its condition, so that the
search skips to the word's first letter."""


@functools.lru_cache(64)
def _cached_code(source: Path, include: tuple[Path, ...], stamp: float) -> str:
    """Return the text of a file and its headers without comments; `stamp` is the file's modification time."""
    return "\n".join(without_comments(s.text) for s in include_closure(source, include))


def _code(request: BuildRequest) -> str:
    """Return the text of a request's files without comments; "" if they cannot be read."""
    try:
        return _cached_code(request.source, request.include, request.source.stat().st_mtime)
    except OSError:
        return ""


def waits_in_loops(request: BuildRequest) -> bool:
    """Return whether threads of the module may wait for each other in a loop without a barrier."""
    return _contains_spin_wait(_code(request))


@functools.lru_cache(64)
def _contains_spin_wait(code: str) -> bool:
    """Return whether code contains an operation with which a thread can wait in a loop."""
    return bool(SPIN_WAIT.search(code))


def is_interpreted(request: BuildRequest) -> bool:
    """Return whether the module contains inline PTX, which is emulated lane by lane and slow."""
    return bool(re.search(r"\basm\b", _code(request)))


def thread_bound(request: BuildRequest, kernel: str) -> int | None:
    """Return the thread limit of the kernel's __launch_bounds__; None without one or if it is not a constant number.

    Of a kernel that branches of the preprocessor define several times, the largest limit holds.
    """
    text = _code(request)
    limits: list[int | None] = []
    for match in LAUNCH_BOUNDS.finditer(text):
        declaration = re.match(r"[^;{}()]*?(\w+)\s*\(", text[match.end() :])
        if declaration and declaration[1] == plain_kernel(kernel):
            max_threads_text = re.split(r",(?![^()]*\))", match[1])[0]
            limits.append(_constant_value(max_threads_text, dict(request.macros), text))
    known_limits = [limit for limit in limits if limit is not None]
    return max(known_limits) if known_limits and len(known_limits) == len(limits) else None


def _constant_value(expression: str, macros: dict[str, str], text: str, depth: int = 4) -> int | None:
    """Return the value of an arithmetic expression of integers and named constants; None for anything else."""
    for name in set(re.findall(r"\b[A-Za-z_]\w*", expression)):
        constants = {constant.strip() for constant in re.findall(NAMED_CONSTANT.format(name), text)}
        # Of several definitions in branches of the preprocessor it is not known which one holds.
        value = macros.get(name) or (constants.pop() if len(constants) == 1 else None)
        value_number = _constant_value(value, macros, text, depth - 1) if value and depth else None
        if value_number is None:
            return None
        expression = re.sub(rf"\b{name}\b", str(value_number), expression)
    if not re.fullmatch(r"[\d\s+*/()-]+", expression):
        return None
    try:
        return int(eval(expression.replace("/", "//"), {"__builtins__": {}}))
    except (SyntaxError, ArithmeticError, TypeError):
        return None


def refuse_static_shared(launch: KernelLaunch, arrays: Sequence[SharedArray], max_bytes: int) -> None:
    """Raise LaunchError if a kernel's static `__shared__` arrays are too large, alone or with the dynamic array."""
    static_bytes = sum(array.bytes for array in arrays if array.owner == plain_kernel(launch.kernel))
    if static_bytes > STATIC_SHARED_BYTES:
        raise LaunchError(
            f"kernel {launch.kernel}: {static_bytes} bytes of static shared memory; the limit is "
            f"{STATIC_SHARED_BYTES}, so use less, or declare the memory as extern __shared__ and write its bytes as "
            "shared in the launch",
            kind="launch-limit",
        )
    if static_bytes + launch.shared_bytes > max_bytes:
        raise LaunchError(
            f"kernel {launch.kernel}: {static_bytes} bytes of static and {launch.shared_bytes} of dynamic shared "
            f"memory; the limit of both together is {max_bytes}; use less shared memory per block",
            kind="launch-limit",
        )
