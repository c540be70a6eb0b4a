"""What a GPU's compiler or driver refuses and the host's does not see, and how a launch is to be watched."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from opbench.emulator.elf import SharedArray
from opbench.errors import LaunchError
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.source.names import plain_kernel
from opbench.source.sources import closure, without_comments

STATIC_SHARED_BYTES = 48 << 10
BOUNDS = re.compile(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)")
CONSTANT = r"(?:#\s*define\s+{0}\s+|\b(?:constexpr|const)\s+(?:static\s+)?\w+\s+{0}\s*=\s*)([^;\n]+)"
SPIN = re.compile(
    r"(?<!asm )(?<!__asm__ )\bvolatile\b|\batomic(?:CAS|Exch|Add|Or)\w*\s*\(|__nanosleep|atomic_ref"
    r"|ld\.(?:volatile|acquire|relaxed)"
)
"""Words without which no thread waits for another one in a loop."""


@functools.lru_cache(64)
def _text(source: Path, include: tuple[Path, ...], stamp: float) -> str:
    return "\n".join(without_comments(s.text) for s in closure(source, include))


def _code(request: BuildRequest) -> str:
    try:
        return _text(request.source, request.include, request.source.stat().st_mtime)
    except OSError:
        return ""


def waits_in_loops(request: BuildRequest) -> bool:
    """Whether threads of the module may wait for each other without a barrier."""
    return bool(SPIN.search(_code(request)))


def is_interpreted(request: BuildRequest) -> bool:
    """Whether instructions of the module's own are done lane by lane, which takes long."""
    return bool(re.search(r"\basm\b", _code(request)))


def thread_bound(request: BuildRequest, kernel: str) -> int | None:
    """The threads that the kernel's __launch_bounds__ allows, where it is a number once macros are in their places."""
    text = _code(request)
    for match in BOUNDS.finditer(text):
        behind = re.match(r"[^;{}()]*?(\w+)\s*\(", text[match.end() :])
        if behind and behind[1] == plain_kernel(kernel):
            first = re.split(r",(?![^()]*\))", match[1])[0]
            return _number(first, dict(request.macros), text)
    return None


def _number(expression: str, macros: dict[str, str], text: str, depth: int = 4) -> int | None:
    """A product, sum or difference of numbers and names of numbers; None for anything else."""
    for name in set(re.findall(r"\b[A-Za-z_]\w*", expression)):
        constant = re.search(CONSTANT.format(name), text)
        value = macros.get(name) or (constant[1] if constant else None)
        known = _number(value, macros, text, depth - 1) if value and depth else None
        if known is None:
            return None
        expression = re.sub(rf"\b{name}\b", str(known), expression)
    if not re.fullmatch(r"[\d\s+*/()-]+", expression):
        return None
    try:
        return int(eval(expression.replace("/", "//"), {"__builtins__": {}}))
    except (SyntaxError, ArithmeticError, TypeError):
        return None


def refuse_static_shared(launch: KernelLaunch, arrays: Sequence[SharedArray], most: int) -> None:
    """Raise LaunchError where a kernel's own `__shared__` arrays are too large, alone or with the dynamic one."""
    own = sum(array.bytes for array in arrays if array.owner == plain_kernel(launch.kernel))
    if own > STATIC_SHARED_BYTES:
        raise LaunchError(
            f"kernel {launch.kernel}: {own} bytes of static shared memory; the limit is {STATIC_SHARED_BYTES}, "
            "and more has to be dynamic: extern __shared__"
        )
    if own + launch.shared_bytes > most:
        raise LaunchError(
            f"kernel {launch.kernel}: {own} bytes of static and {launch.shared_bytes} of dynamic shared memory; "
            f"the limit of both is {most}"
        )
