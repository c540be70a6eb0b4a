"""Cubins of many requests at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from opbench.errors import CompileError
from opbench.gpu.compile import nvrtc
from opbench.kernels.launch import BuildRequest


def compile_all(
    requests: Iterable[BuildRequest], arch: str, workers: int = 0
) -> dict[BuildRequest, nvrtc.Compiled | CompileError]:
    """Compile many requests in parallel; an error becomes the result of its own request only."""

    def attempt(request: BuildRequest) -> nvrtc.Compiled | CompileError:
        try:
            return nvrtc.compile_cubin(request, arch)
        except CompileError as error:
            return error

    wanted = list(dict.fromkeys(requests))
    nvrtc.include_options(arch)  # fill the cache once, not in every thread
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return dict(zip(wanted, pool.map(attempt, wanted), strict=True))
