"""NVTX ranges of a run, and the names and colours that profilers and reports share; free when no tool is attached."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import nvtx

NVTX_DOMAIN = "opbench"
SWITCH_VARIABLE = "OPBENCH_NVTX"
"""The environment variable: 1 turns ranges on without a profiler, 0 turns them off with one."""

TOOL_VARIABLES = ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
TOOL_PREFIXES = ("NV_NSIGHT_", "NV_COMPUTE_PROFILER_")
"""Prefixes of the environment variables that Nsight Compute, Nsight Systems and CUPTI set in a profiled program."""

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
"""Colours of Okabe and Ito without black, distinguishable with every kind of colour vision."""

Phase = Literal["build", "check", "measure", "profile"]
Range = contextlib.AbstractContextManager[object]

MAX_NAME_LENGTH = 120
# Case names whose range name keeps all information: config keys are upper case and axes are lower case, so the end of
# the config stays visible; a key contains no "-", so the first "-" ends the key.
_LOSSLESS_CASE_NAME = re.compile(
    r"[A-Za-z0-9_-]+/[A-Za-z0-9_-]+"
    r"(\[[A-Z][A-Z0-9_]*=[A-Za-z0-9_-]+(,[A-Z][A-Z0-9_]*=[A-Za-z0-9_-]+)*\])?"
    r"\(([a-z][A-Za-z0-9_]*=[A-Za-z0-9_-]+(,[a-z][A-Za-z0-9_]*=[A-Za-z0-9_-]+)*)?\)"
)
_NO_RANGE: Range = contextlib.nullcontext()


def safe_name(case_name: str) -> str:
    """Return a case's name as a range name that needs no escape in any tool's filter, such as
    "matmul.tiled.TILE-16.m-64".

    A name that would lose information or exceed 120 characters ends in a hash of the full name, so distinct cases keep
    distinct names. Filters of Nsight give `@ , [ ] / * + $` and the backslash a meaning, and the CSV of ncu gives one
    to `:`.
    """
    parts = re.split(r"[/\[\](),]+", case_name)
    escaped_parts = [re.sub(r"[^A-Za-z0-9_]", "-", part) for part in parts]
    name = ".".join(part for part in escaped_parts if part)
    if _LOSSLESS_CASE_NAME.fullmatch(case_name) and len(name) <= MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256(case_name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    shortened = name[: MAX_NAME_LENGTH - len(digest) - 1].rstrip(".")
    return f"{shortened}.{digest}" if shortened else digest


def colour(operator: str) -> str:
    """Return the colour of an operator as "#RRGGBB", the same in every run, tool and report."""
    return PALETTE[int.from_bytes(hashlib.sha256(operator.encode()).digest()[:4]) % len(PALETTE)]


def tool_attached(environment: Mapping[str, str] | None = None) -> str | None:
    """Return the environment variable that shows a profiler to be attached to this process, else None."""
    environment = os.environ if environment is None else environment
    keys = (key for key in environment if key in TOOL_VARIABLES or key.startswith(TOOL_PREFIXES))
    return next((key for key in sorted(keys) if environment[key]), None)


def case_range(case_name: str, operator: str) -> Range:
    """Return the NVTX range for the launches of a case; profiler commands filter on its name."""
    domain = _domain()
    return _NO_RANGE if domain is None else _PushPop(domain, safe_name(case_name), colour(operator), "case")


def phase_range(phase: Phase) -> Range:
    """Return the range around one phase of a case."""
    domain = _domain()
    return _NO_RANGE if domain is None else _PushPop(domain, phase, "#999999", phase)


class _PushPop:
    """A context manager that opens an NVTX range in the current thread, and closes the range at its end."""

    def __init__(self, domain: nvtx.Domain, message: str, rgb: str, category: str) -> None:
        self._domain = domain
        # With no tool behind the library this is None, and pushing None does nothing.
        self._attributes = domain.get_event_attributes(message=message, color=_argb(rgb), category=category)

    def __enter__(self) -> None:
        self._domain.push_range(self._attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._domain.pop_range()


def _argb(rgb: str) -> int:
    """Return a colour "#RRGGBB" as an opaque ARGB integer; for text, nvtx would import matplotlib."""
    return 0xFF000000 | int(rgb[1:], 16)


@functools.cache
def _domain() -> nvtx.Domain | None:
    """Return the NVTX domain, or None without a profiler.

    Decided at the first range, because nvtx caches its answer.
    """
    switch = os.environ.get(SWITCH_VARIABLE, "")
    if switch == "0" or (not switch and tool_attached() is None):
        return None
    try:
        import nvtx
    except ImportError:
        warnings.warn(
            "a profiler is attached, but its report will not name the cases, because the package nvtx is missing; "
            "install the package with: pip install nvtx",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    return nvtx.get_domain(NVTX_DOMAIN)
