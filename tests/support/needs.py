"""What a test may need of a machine, and why it is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opbench.errors import EnvironmentFault
from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.assembler import assembler


def _reason_missing(need: Callable[[], object]) -> str:
    """Why a need cannot be met here, else empty."""
    try:
        need()
    except EnvironmentFault as error:
        return str(error)
    return ""


NO_NVRTC = _reason_missing(nvrtc.library)
NO_PTXAS = _reason_missing(lambda: assembler("sm_90a"))
needs_nvrtc = pytest.mark.skipif(bool(NO_NVRTC), reason=NO_NVRTC)
needs_ptxas = pytest.mark.skipif(bool(NO_PTXAS), reason=NO_PTXAS)
