"""Call the CUDA driver's C functions through ctypes, with prototypes and error names.

A benchmark needs about forty driver calls. Calling them directly costs about a microsecond a launch, needs no
compiled dependency, and gives every error code to opbench directly.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any

from opbench.errors import EnvironmentFault, LaunchError

OUT_OF_MEMORY = 2
INVALID_VALUE = 1
INVALID_CONTEXT = 201

ERROR_MEANINGS = {
    1: "invalid value",
    2: "out of device memory",
    200: "invalid module",
    201: "no context in this thread",
    209: "no code for this GPU",
    218: "invalid PTX",
    700: "illegal address",
    701: "too many resources requested for launch",
    702: "launch timed out",
    710: "device-side assert",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "address in the wrong space",
    718: "invalid program counter",
    719: "launch failed",
}
"""Descriptions of the driver's error numbers for the author of a kernel."""

CONTEXT_LOST_CODES = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
"""Error codes after which no further call succeeds in this process."""

# enum values of cuda.h
STREAM_DEFAULT = 0
CAPTURE_RELAXED = 2
HOST_ALLOC_DEVICEMAP = 2
LIMIT_PERSISTING_L2_CACHE_SIZE = 6
FUNC_MAX_THREADS, FUNC_SHARED_BYTES, FUNC_LOCAL_BYTES, FUNC_REGISTERS = 0, 1, 3, 4
FUNC_MAX_DYNAMIC_SHARED_BYTES = 8

TENSOR_MAP_ARGUMENTS = (c_void_p, c_int, c_uint, c_void_p, c_void_p, c_void_p)
"""The argument types of a tensor map's storage, element type, rank, address, sizes and strides."""
TENSOR_MAP_MODES = (c_int, c_int, c_int, c_int)
"""The argument types of a tensor map's interleave, swizzle, L2 promotion and fill mode."""

PROTOTYPES: dict[str, tuple[type, ...]] = {
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid_v2": (c_char_p, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSetLimit": (c_int, c_size_t),
    "cuCtxResetPersistingL2Cache": (),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (*TENSOR_MAP_ARGUMENTS, c_void_p, c_void_p, *TENSOR_MAP_MODES),
    "cuTensorMapEncodeIm2col": (*TENSOR_MAP_ARGUMENTS, c_void_p, c_void_p, c_uint, c_uint, c_void_p, *TENSOR_MAP_MODES),
    "cuTensorMapReplaceAddress": (c_void_p, c_void_p),
    "cuArray3DCreate_v2": (POINTER(c_void_p), c_void_p),
    "cuArrayDestroy": (c_void_p,),
    "cuTexObjectCreate": (POINTER(c_uint64), c_void_p, c_void_p, c_void_p),
    "cuTexObjectDestroy": (c_uint64,),
    "cuSurfObjectCreate": (POINTER(c_uint64), c_void_p),
    "cuSurfObjectDestroy": (c_uint64,),
    "cuMemcpy2DAsync_v2": (c_void_p, c_void_p),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuMemsetD16Async": (c_uint64, c_ushort, c_size_t, c_void_p),
    "cuModuleGetGlobal_v2": (POINTER(c_uint64), POINTER(c_size_t), c_void_p, c_char_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), c_void_p, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphCreate": (POINTER(c_void_p), c_uint),
    "cuGraphAddChildGraphNode": (POINTER(c_void_p), c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_uint64),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
}
"""Argument types of every driver call that opbench makes; each call returns a CUresult."""

TEXTURE_CALLS = (
    "cuArray3DCreate_v2", "cuArrayDestroy", "cuTexObjectCreate", "cuTexObjectDestroy", "cuSurfObjectCreate",
    "cuSurfObjectDestroy", "cuMemcpy2DAsync_v2",
)  # fmt: skip
TENSOR_MAP_CALLS = ("cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuTensorMapReplaceAddress")
OPTIONAL_CALLS = frozenset({"cuFuncGetParamInfo", "cuLaunchKernelEx", *TENSOR_MAP_CALLS, *TEXTURE_CALLS})
"""Calls that only newer drivers have, such as cuFuncGetParamInfo (CUDA 12.4), or that few kernels need."""


class DriverError(LaunchError):
    """A failed call of the CUDA driver, with its error code."""

    def __init__(self, code: int, name: str, call: str, where: str = "") -> None:
        """`name` is the driver's name of `code`, `call` the function, `where` the kernel or file."""
        self.code = code
        meaning = ERROR_MEANINGS.get(code, name)
        location = f" in {where}" if where else ""
        consequence = "; the GPU context is lost, so start the command again" if code in CONTEXT_LOST_CODES else ""
        message = f"{meaning}{location} ({call}: CUDA error {code}, {name}){consequence}"
        super().__init__(message, kind="driver", subject=where, value=code)


class Driver:
    """The driver library with declared prototypes; `driver.call(name, …)` checks the result."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._library = ctypes.CDLL(library)
        for name, arguments in PROTOTYPES.items():
            function = getattr(self._library, name, None)
            if function is None:
                if name in OPTIONAL_CALLS:
                    continue
                raise EnvironmentFault(
                    f"the NVIDIA driver has no {name}; update the driver to one for CUDA 12 or newer",
                    kind="driver-too-old",
                    subject=name,
                )
            function.argtypes = arguments
            function.restype = c_int

    def unchecked(self, name: str) -> Callable[..., int]:
        """Return a driver function whose result code the caller checks, for calls whose cost matters."""
        function: Callable[..., int] = getattr(self._library, name)
        return function

    def without_conversion(self, name: str) -> Callable[..., int]:
        """Return a driver function that accepts only ctypes arguments, which makes calls a third cheaper."""
        function: Callable[..., int] = self._library[name]
        return function

    def has(self, name: str) -> bool:
        """Return whether this driver has an optional function."""
        return hasattr(self._library, name)

    def call(self, name: str, *arguments: object, where: str = "") -> None:
        """Call a driver function; raise DriverError unless it succeeds."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise self.error(code, name, where)

    def error(self, code: int, call: str, where: str = "") -> DriverError:
        """Return the error for a result code, with the driver's name for it."""
        error_name = c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(error_name))
        return DriverError(code, (error_name.value or b"unknown error").decode(), call, where)

    def get(self, name: str, result_type: Any, *arguments: object, where: str = "") -> Any:
        """Call a function whose first argument is a pointer for its result, and return the result."""
        result = result_type()
        self.call(name, ctypes.byref(result), *arguments, where=where)
        return result.value


@functools.cache
def why_missing() -> str | None:
    """Return why CUDA cannot be used here; None if it can. This creates no context.

    It calls cuInit. After that, a forked child cannot use CUDA, so workers must be spawned.
    """
    try:
        driver = Driver()
    except OSError:
        return "no CUDA device (libcuda.so.1 not found: no NVIDIA driver)"
    except EnvironmentFault as fault:
        return str(fault)
    try:
        driver.call("cuInit", 0)
        count = driver.get("cuDeviceGetCount", c_int)
    except DriverError as error:
        return f"no CUDA device ({error})"
    return None if count else "no CUDA device"
