"""What a test may need of a machine, and why it is not there."""

from __future__ import annotations

import pytest

from opbench.errors import EnvironmentFault
from opbench.gpu.compile import nvrtc


def _no_nvrtc() -> str:
    """Why nothing can be compiled for a GPU here, else empty."""
    try:
        nvrtc.library()
    except EnvironmentFault as error:
        return str(error)
    return ""


NO_NVRTC = _no_nvrtc()
needs_nvrtc = pytest.mark.skipif(bool(NO_NVRTC), reason=NO_NVRTC)
