"""What Nsight Compute prints, for several tests."""

from __future__ import annotations

import pytest

PERMISSION = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see https://developer.nvidia.com/\
ERR_NVGPUCTRPERM
==PROF== Disconnected from process 4711
==ERROR== An error occurred while trying to profile.
==WARNING== No kernels were profiled."""


@pytest.fixture
def permission_output() -> str:
    """Its words when it may not read the counters."""
    return PERMISSION
