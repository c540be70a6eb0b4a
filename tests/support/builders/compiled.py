"""Cubins of many requests at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from opbench.errors import CompileError
from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.unit import name_expressions, whole_unit
from opbench.kernels.launch import BuildRequest
from opbench.source.sources import include_closure

SYNTAX_ONLY = "-fdevice-syntax-only"
"""NVRTC's option to end behind the front end."""
LITTLE_OPTIMISED = "--Ofast-compile=mid"
"""NVRTC's option for a third of the time, in which ptxas still assembles every instruction."""
OPTIONS_SINCE = (12, 9)
"""The oldest NVRTC for which these options were tried."""


def compile_all(
    requests: Iterable[BuildRequest], arch: str, workers: int = 0
) -> dict[BuildRequest, nvrtc.CompiledModule | CompileError]:
    """Compile many requests in parallel; an error becomes the result of its own request only."""

    def attempt(request: BuildRequest) -> nvrtc.CompiledModule | CompileError:
        try:
            return nvrtc.compile_cubin(request, arch)
        except CompileError as error:
            return error

    wanted = list(dict.fromkeys(requests))
    nvrtc.include_options(arch)  # fill the cache once, not in every thread
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return dict(zip(wanted, pool.map(attempt, wanted), strict=True))


def compile_errors(requests: Iterable[BuildRequest], arch: str, option: str) -> list[str]:
    """Return NVRTC's errors in requests of whole files, compiled with one more option if NVRTC is new enough.

    The cache of cubins is neither read nor written.
    """
    compiler, errors = nvrtc.library(arch), []
    added = [option] if compiler.version >= OPTIONS_SINCE else []
    for request in dict.fromkeys(requests):
        sources = include_closure(request.source, request.include)
        unit, expressions = whole_unit(sources), name_expressions(request, sources)
        options = [*nvrtc.options_of(request, arch), *added]
        code, log, _ = compiler.compile(unit.text, str(request.source), options, unit.headers, expressions)
        errors += [] if code else [log]
    return errors
