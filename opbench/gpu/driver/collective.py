"""Sum buffers over several GPUs with NCCL, called through CuPy, with one process per GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import c_int
from typing import Protocol, cast

from opbench.backend.base import Buffer
from opbench.errors import EnvironmentFault
from opbench.gpu.driver.device import VISIBLE_DEVICES_VARIABLE
from opbench.gpu.driver.driver import Driver
from opbench.gpu.driver.memory import DeviceArray
from opbench.paths import MissingExtra

MULTICAST_VARIABLE = "NCCL_NVLS_ENABLE"
"""Variable for sums in the NVSwitch, whose results differ from call to call: opbench sets it to 0 by default."""

MAX_BLOCKS_VARIABLE = "NCCL_MAX_CTAS"
"""Environment variable for the greatest number of blocks of a sum."""
MAX_BLOCKS = 12
"""Default number of blocks of a sum; each block occupies one multiprocessor. AlexNet in bf16, whose backward pass
leaves these multiprocessors free: 2.52 ms with 12, 2.59 with 16, 2.60 with 8 and 3.68 with 4 (two H200s)."""


class _NcclCommunicator(Protocol):
    """The methods of CuPy's communicator that opbench uses."""

    def allReduce(self, source: int, target: int, count: int, kind: int, operation: int, stream: int) -> None:
        """Enqueue a sum over all ranks."""

    def destroy(self) -> None:
        """Close the communicator."""


class Nccl(Protocol):
    """The functions of `cupy.cuda.nccl` that opbench uses."""

    NCCL_FLOAT: int
    NCCL_SUM: int

    def get_unique_id(self) -> bytes:
        """Return a new identifier, which the first rank sends to the others."""

    def NcclCommunicator(self, ndev: int, commId: bytes, rank: int) -> _NcclCommunicator:
        """Open a rank of the communicator."""


def find_nccl() -> Nccl:
    """Return CuPy's NCCL; raise EnvironmentFault with a remedy if CuPy or NCCL is missing."""
    try:
        from cupy.cuda import nccl

        nccl.get_version()
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise MissingExtra(
            f"--gpus needs NCCL, and CuPy cannot load it ({type(error).__name__}: {error})",
            "nccl",
            ", or train on one GPU with --accumulate instead",
        ) from None
    return cast(Nccl, nccl)


class NcclGroup:
    """One rank of an NCCL communicator; its sums run on its GPU's stream, where a graph can capture them.

    With two ranks a sum does not depend on the order; with more, NCCL chooses the order, the same on all ranks.
    """

    def __init__(self, ranks: int, identity: bytes, rank: int, stream: int, nccl: Nccl | None = None) -> None:
        self._nccl, self._stream = nccl or find_nccl(), stream
        try:
            self._communicator: _NcclCommunicator | None = self._nccl.NcclCommunicator(ranks, identity, rank)
        except RuntimeError as error:
            raise EnvironmentFault(
                f"NCCL cannot join rank {rank} of {ranks}: {error}; for details, run the command again with "
                "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%p in front",
                kind="rank-not-joined",
                subject=rank,
                value=str(error),
                allowed=ranks,
            ) from None

    def all_reduce(self, buffer: Buffer) -> Callable[[], None]:
        """Return a launch that sums a buffer of float32 over all ranks, in place."""
        array, communicator = cast(DeviceArray, buffer), self._communicator
        assert communicator is not None
        pointer, count = array.pointer, array.nbytes // 4
        element_type, operation, stream = self._nccl.NCCL_FLOAT, self._nccl.NCCL_SUM, self._stream
        return lambda: communicator.allReduce(pointer, pointer, count, element_type, operation, stream)

    @property
    def sm_count(self) -> int:
        """Return the greatest number of multiprocessors that a sum occupies while other kernels run."""
        return int(os.environ.get(MAX_BLOCKS_VARIABLE, MAX_BLOCKS))

    def close(self) -> None:
        """Close the communicator; a second call does nothing."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.destroy()


def rank_environments(ranks: int) -> list[dict[str, str]]:
    """Return the environment variables of each rank, with one GPU each; raise EnvironmentFault without NCCL or GPUs.

    Set the variables before a rank's process starts, so that its libraries also see only that GPU.
    """
    driver = Driver()
    driver.call("cuInit", 0)
    count = int(driver.get("cuDeviceGetCount", c_int))
    if count < ranks:
        raise EnvironmentFault(
            f"--gpus {ranks}: this machine has {count} visible GPU{'s' * (count > 1)}; use --gpus {count}, or train "
            f"on one GPU with --accumulate {ranks}",
            kind="too-few-gpus",
            subject="--gpus",
            value=ranks,
            allowed=count,
        )
    find_nccl()
    visible = [name.strip() for name in os.environ.get(VISIBLE_DEVICES_VARIABLE, "").split(",") if name.strip()]
    devices = visible if len(visible) >= ranks else [str(index) for index in range(count)]
    nccl_settings = {
        MULTICAST_VARIABLE: os.environ.get(MULTICAST_VARIABLE, "0"),
        MAX_BLOCKS_VARIABLE: os.environ.get(MAX_BLOCKS_VARIABLE, str(MAX_BLOCKS)),
    }
    return [{VISIBLE_DEVICES_VARIABLE: name, **nccl_settings} for name in devices[:ranks]]
