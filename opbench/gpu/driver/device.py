"""One open GPU: its context, its stream, and the kernels that opbench itself needs."""

from __future__ import annotations

import ctypes
import functools
import os
import uuid
from ctypes import c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

from opbench.backend.base import Gpu
from opbench.errors import EnvironmentFault
from opbench.gpu.compile import nvrtc
from opbench.gpu.driver.driver import (
    HOST_ALLOC_DEVICEMAP,
    LIMIT_PERSISTING_L2_CACHE_SIZE,
    OUT_OF_MEMORY,
    STREAM_DEFAULT,
    Driver,
    DriverError,
    why_missing,
)
from opbench.gpu.driver.nvml import Nvml
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.kernels.launch import BuildRequest

OWN_KERNELS = BuildRequest(
    Path(__file__).with_name("kernels.cu"),
    (
        "opbench_compare_guards",
        "opbench_fingerprint",
        "opbench_fill",
        "opbench_drain",
        "opbench_hold",
        "opbench_nothing",
        "opbench_spin",
        "opbench_stamp",
        "opbench_cycles",
        "opbench_chase",
    ),
)
"""The kernels that opbench itself launches: to check guard bands, flush the L2 cache and block the stream."""

# CUdevice_attribute of cuda.h
MAX_THREADS_PER_BLOCK, MAX_BLOCK_X, MAX_GRID_X, SHARED_PER_BLOCK = 1, 2, 5, 8
SM_COUNT, ECC_ENABLED, L2_BYTES, THREADS_PER_SM = 16, 32, 38, 39
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
SHARED_PER_SM, REGISTERS_PER_SM, SHARED_PER_BLOCK_OPTIN = 81, 82, 97
BLOCKS_PER_SM, RESERVED_SHARED_PER_BLOCK = 106, 111


class Device:
    """One GPU with its primary context, which CuPy and PyTorch share, and with a stream of opbench's own."""

    def __init__(self, ordinal: int = 0) -> None:
        require_gpu()
        self.driver = Driver()
        self.ordinal = ordinal
        self.last_kernels = ""
        """The names of the kernels of the last launch, for the message if a kernel fails."""
        try:
            self.handle = int(self.driver.get("cuDeviceGet", c_int, ordinal))
            self.capability = (self.attribute(CAPABILITY_MAJOR), self.attribute(CAPABILITY_MINOR))
            self.sm_count = self.attribute(SM_COUNT)
            self._check_versions()
            self.context = self.driver.get("cuDevicePrimaryCtxRetain", c_void_p, self.handle)
            self.driver.call("cuCtxSetCurrent", self.context)
            # A blocking stream is ordered with the legacy default stream, on which libraries may put work, so that
            # this work is timed, too.
            self.stream = c_void_p(self.driver.get("cuStreamCreate", c_void_p, STREAM_DEFAULT))
        except DriverError as error:
            raise EnvironmentFault(
                f"GPU {ordinal} cannot be used: {error}; see the state of the GPUs with: nvidia-smi",
                kind="no-gpu",
                subject=ordinal,
            ) from error
        # Lines that a kernel marked as persisting would survive an L2 flush (see NVIDIA/nvbench). Not every GPU has
        # this limit, so errors do not count.
        self.driver.unchecked("cuCtxSetLimit")(LIMIT_PERSISTING_L2_CACHE_SIZE, 0)
        self.scratch = self.reserve(64, "opbench itself")
        self._module = self.load_module(nvrtc.compile_cubin(OWN_KERNELS, self.architecture(OWN_KERNELS)).cubin)
        self._functions = {kernel: self.function(self._module, kernel) for kernel in OWN_KERNELS.kernels}

    def _check_versions(self) -> None:
        """Raise EnvironmentFault if the driver is older than the compiler: it could not load the cubins."""
        supported, compiler = self.cuda_version(), self.compiler().version
        if compiler[0] > supported[0]:
            raise EnvironmentFault(
                f"the driver supports CUDA {supported[0]}.{supported[1]}, but NVRTC belongs to CUDA {compiler[0]}; "
                "update the driver, or install the NVRTC for this driver with: pip install "
                f"'opbench[cuda{supported[0]}]'",
                kind="driver-too-old",
                value=supported,
                allowed=compiler,
            )

    # Properties --------------------------------------------------------------------------------------------------

    def attribute(self, attribute: int) -> int:
        """Return the value of a CUdevice_attribute."""
        return int(self.driver.get("cuDeviceGetAttribute", c_int, attribute, self.handle))

    def reserve(self, nbytes: int, purpose: str) -> int:
        """Return the address of new device memory; raise EnvironmentFault with the bytes needed and free.

        `purpose` says in the message what needs the memory.
        """
        try:
            return int(self.driver.get("cuMemAlloc_v2", c_uint64, nbytes))
        except DriverError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        raise EnvironmentFault(
            f"{purpose} needs {nbytes / 1e9:.2f} GB of GPU memory; {free.value / 1e9:.2f} of {total.value / 1e9:.2f} "
            "GB are free; choose a smaller problem, or end other programs on this GPU, which nvidia-smi lists",
            kind="gpu-memory",
            subject=purpose,
            value=nbytes,
            allowed=free.value,
        )

    def cuda_version(self) -> tuple[int, int]:
        """Return the newest CUDA version that the driver supports."""
        version_code = int(self.driver.get("cuDriverGetVersion", c_int))
        return version_code // 1000, version_code % 1000 // 10

    @functools.cached_property
    def name(self) -> str:
        """Return the device's name from the driver."""
        text = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", text, 256, self.handle)
        return text.value.decode(errors="replace")

    @functools.cached_property
    def uuid(self) -> str:
        """Return the device's UUID as nvidia-smi prints it."""
        return device_uuid(self.driver, self.handle)

    @functools.cached_property
    def memory_bytes(self) -> int:
        """Return the size of the device's memory in bytes."""
        return int(self.driver.get("cuDeviceTotalMem_v2", c_size_t, self.handle))

    @functools.cached_property
    def l2_bytes(self) -> int:
        """Return the size of the L2 cache in bytes."""
        return self.attribute(L2_BYTES)

    @functools.cached_property
    def limits(self) -> DeviceLimits:
        """Return the limits of occupancy and of a launch."""
        return DeviceLimits(
            name=self.name,
            sm_count=self.sm_count,
            threads_per_sm=self.attribute(THREADS_PER_SM),
            blocks_per_sm=self.attribute(BLOCKS_PER_SM),
            registers_per_sm=self.attribute(REGISTERS_PER_SM),
            shared_per_sm=self.attribute(SHARED_PER_SM),
            shared_per_block=self.attribute(SHARED_PER_BLOCK_OPTIN),
            reserved_shared_per_block=self.attribute(RESERVED_SHARED_PER_BLOCK),
            threads_per_block=self.attribute(MAX_THREADS_PER_BLOCK),
        )

    @functools.cached_property
    def block_limit(self) -> tuple[int, ...]:
        """Return the largest x, y and z of a block."""
        return tuple(self.attribute(MAX_BLOCK_X + axis) for axis in range(3))

    @functools.cached_property
    def grid_limit(self) -> tuple[int, ...]:
        """Return the largest x, y and z of a grid."""
        return tuple(self.attribute(MAX_GRID_X + axis) for axis in range(3))

    @functools.cached_property
    def shared_without_opt_in(self) -> int:
        """Return the bytes of shared memory that a block may use without opt-in (48 KiB)."""
        return self.attribute(SHARED_PER_BLOCK)

    def architecture(self, request: BuildRequest) -> str:
        """Return the architecture to compile a module for, such as "sm_90a"."""
        return nvrtc.architecture(self.capability, request)

    def compiler(self) -> nvrtc.Nvrtc:
        """Return the NVRTC that compiles for this device."""
        return nvrtc.library(self.architecture(OWN_KERNELS))

    # Launches ------------------------------------------------------------------------------------------------------

    def load_module(self, cubin: Path) -> c_void_p:
        """Load a cubin; return the driver's handle of the module."""
        return c_void_p(self.driver.get("cuModuleLoadData", c_void_p, cubin.read_bytes(), where=cubin.name))

    def function(self, module: c_void_p, kernel: str) -> c_void_p:
        """Return the driver's handle of a kernel of a module."""
        name = c_char_p(kernel.encode())
        return c_void_p(self.driver.get("cuModuleGetFunction", c_void_p, module, name, where=kernel))

    def launch(self, kernel: str, grid: int, block: int, args: tuple[ctypes._SimpleCData[int], ...] = ()) -> None:
        """Launch one of opbench's own kernels; `args` are ctypes values of the kernel's parameter types."""
        pointers = (c_void_p * max(1, len(args)))(*(ctypes.addressof(value) for value in args))
        function = self._functions[kernel]
        geometry = (grid, 1, 1, block, 1, 1, 0)
        self.driver.call("cuLaunchKernel", function, *geometry, self.stream, pointers, None, where=kernel)

    def wait(self) -> None:
        """Wait for all launches; raise DriverError with the names of the last launched kernels if one failed."""
        self.driver.call("cuStreamSynchronize", self.stream, where=self.last_kernels)


def device_uuid(driver: Driver, device: int) -> str:
    """Return a device's UUID as nvidia-smi prints it, without creating a context."""
    raw = ctypes.create_string_buffer(16)
    driver.call("cuDeviceGetUuid_v2", raw, device)
    return f"GPU-{uuid.UUID(bytes=raw.raw)}"


VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpus() -> list[Gpu]:
    """Return the visible GPUs, each with the environment that makes it the only visible one; create no context."""
    require_gpu()
    driver = Driver()
    driver.call("cuInit", 0)
    count = int(driver.get("cuDeviceGetCount", c_int))
    visible = [name.strip() for name in os.environ.get(VISIBLE_DEVICES_VARIABLE, "").split(",") if name.strip()]
    found_gpus = []
    for index in range(count):
        handle = int(driver.get("cuDeviceGet", c_int, index))
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, 256, handle)
        own_name = visible[index] if len(visible) >= count else str(index)
        gpu_name = name.value.decode(errors="replace")
        found_gpus.append(Gpu(index, device_uuid(driver, handle), gpu_name, {VISIBLE_DEVICES_VARIABLE: own_name}))
    return found_gpus


def require_gpu() -> None:
    """Raise EnvironmentFault with the reason if CUDA cannot be used here."""
    if reason := why_missing():
        raise EnvironmentFault(
            f"{reason}; add --backend cpu to check kernels without a GPU and without times, or see what is missing "
            "with: opbench doctor",
            kind="needs-gpu",
        )


def device_key(ordinal: int = 0) -> str:
    """Return a key of a GPU and its driver version, for files of measurements; create no context."""
    require_gpu()
    driver = Driver()
    identity = device_uuid(driver, int(driver.get("cuDeviceGet", c_int, ordinal)))
    version = Nvml(identity).driver() or driver.get("cuDriverGetVersion", c_int)
    return f"{identity}-driver-{version}"


class MappedWords:
    """A few integers in pinned host memory that kernels can read and write."""

    def __init__(self, device: Device, word_type: type[c_int] | type[c_uint64], count: int) -> None:
        size = ctypes.sizeof(word_type) * count
        self._address = c_void_p(device.driver.get("cuMemHostAlloc", c_void_p, size, HOST_ALLOC_DEVICEMAP))
        self.device_pointer = int(
            device.driver.get("cuMemHostGetDevicePointer_v2", c_uint64, self._address, 0),
        )
        self.values: ctypes.Array[c_int] | ctypes.Array[c_uint64] = (word_type * count).from_address(
            self._address.value or 0
        )
        for index in range(count):
            self.values[index] = 0
