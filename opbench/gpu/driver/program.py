"""A loaded module: the resources of its kernels, and launches with prepared arguments."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from opbench.backend.base import Buffer, KernelResources
from opbench.backend.symbols import plain_name
from opbench.errors import LaunchError, unknown_name, with_location
from opbench.gpu.compile.cubin import BadCubin, CubinVariable, read_cubin
from opbench.gpu.driver.driver import (
    FUNC_LOCAL_BYTES,
    FUNC_MAX_DYNAMIC_SHARED_BYTES,
    FUNC_MAX_THREADS,
    FUNC_REGISTERS,
    FUNC_SHARED_BYTES,
    INVALID_VALUE,
)
from opbench.gpu.driver.hopper import EncodedMap, is_extended, launch_config
from opbench.gpu.driver.memory import ModuleVariable, MovableArray
from opbench.gpu.driver.texture import Copy, TextureObject, create
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.scalar import Argument, Scalar, Struct, element_bytes, with_parameter_type
from opbench.kernels.tensor_map import TensorMap
from opbench.kernels.texture import Texture

if TYPE_CHECKING:
    from opbench.gpu.driver.device import Device
    from opbench.gpu.driver.memory import CudaBuffer


CValue = c_uint64 | c_float | c_int | EncodedMap | ctypes.Array[ctypes.c_char]
"""The C types of kernel arguments."""


class PreparedCall(NamedTuple):
    """One driver call with prepared arguments."""

    call: Callable[..., int]
    arguments: tuple[object, ...]
    kernel: str = ""
    """The kernel's name; empty for a step that clears a buffer."""
    referenced_objects: Sequence[object] = ()
    """Objects that the arguments point to; they must stay alive."""


class CudaProgram:
    """A module that is loaded on the device, with the resources of its kernels."""

    def __init__(
        self, device: Device, cubin: Path, kernels: Sequence[str], mangled_names: Mapping[str, str] | None = None
    ) -> None:
        self._device = device
        self._module = device.load_module(cubin)
        self._names = mangled_names or {}
        self._functions = {kernel: device.function(self._module, self._names.get(kernel, kernel)) for kernel in kernels}
        self.resources: Mapping[str, KernelResources] = {
            kernel: self._resources(function) for kernel, function in self._functions.items()
        }
        self._dynamic_shared = dict.fromkeys(kernels, 0)
        self.machine_code_sha256 = ""
        self.uses_device_heap = False
        self._variables: Sequence[CubinVariable] = ()
        with contextlib.suppress(BadCubin):  # The cubin is from a newer compiler.
            parsed = read_cubin(cubin.read_bytes())
            self.machine_code_sha256, self._variables = parsed.machine_code_sha256, parsed.variables
            self.uses_device_heap = parsed.uses_device_heap

    def variables(self) -> dict[str, Buffer]:
        """Return the module's `__device__` and `__constant__` variables by name, as bytes in device memory."""
        buffers: dict[str, Buffer] = {}
        for variable in self._variables:
            address, size = c_uint64(), c_size_t()
            name = c_char_p(variable.name.encode())
            get_global = self._device.driver.unchecked("cuModuleGetGlobal_v2")
            # The driver can omit a variable that no kernel reads; skip it.
            if not get_global(byref(address), byref(size), self._module, name):
                plain = plain_name(variable.name)
                buffers[plain if plain not in buffers else variable.name] = ModuleVariable(
                    self._device, variable.name, (variable.nbytes,), np.dtype(np.uint8), address.value
                )
        return buffers

    def _resources(self, function: c_void_p) -> KernelResources:
        """Return the registers and memory of a kernel, and load its code, which would slow down the first launch."""
        registers, shared, local, threads = (
            int(self._device.driver.get("cuFuncGetAttribute", c_int, attribute, function))
            for attribute in (FUNC_REGISTERS, FUNC_SHARED_BYTES, FUNC_LOCAL_BYTES, FUNC_MAX_THREADS)
        )
        return KernelResources(registers, shared, local, threads)

    def bind(self, launches: Sequence[KernelLaunch], buffers: Mapping[str, Buffer]) -> Callable[[], None]:
        """Return a function that enqueues all launches in order; raise LaunchError for a launch that cannot run."""
        steps = self.steps(launches, buffers, self._device.stream)
        device = self._device
        names = ", ".join(dict.fromkeys(step.kernel for step in steps if step.kernel))

        def enqueue() -> None:
            device.last_kernels = names
            for call, arguments, kernel, _ in steps:
                if code := call(*arguments):
                    raise device.driver.error(code, "launch", kernel)

        return enqueue

    def steps(
        self,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        stream: c_void_p,
        *,
        extended: bool = False,
    ) -> list[PreparedCall]:
        """Return the driver calls of all launches in order, on a stream; raise LaunchError for one that cannot run.

        With `extended`, use cuLaunchKernelEx if the driver has it: it takes 4 arguments instead of 11, and each
        argument takes about 40 ns from Python.
        """
        return [step for launch in launches for step in self._steps(launch, buffers, stream, extended)]

    def _steps(
        self, launch: KernelLaunch, buffers: Mapping[str, Buffer], stream: c_void_p, extended: bool
    ) -> list[PreparedCall]:
        """Return the driver calls of one launch; errors get the launch's location."""
        with with_location(launch.location):
            return self._calls(launch, buffers, stream, extended)

    def _calls(
        self, launch: KernelLaunch, buffers: Mapping[str, Buffer], stream: c_void_p, extended: bool
    ) -> list[PreparedCall]:
        """Return the driver calls of one launch; a kernel with textures has copies before and after."""
        if not launch.kernel:
            fill = self._zero_step if launch.zero else self._constant_step
            return [fill(launch, buffers, stream)]
        kernel = self._kernel_step(launch, buffers, stream, extended)
        textures = [value for value in kernel.referenced_objects if isinstance(value, TextureObject)]

        def copy_steps(copies: Iterable[Copy]) -> list[PreparedCall]:
            raw = self._device.driver.unchecked  # Only drivers with textures have the function.
            return [
                PreparedCall(
                    raw("cuMemcpy2DAsync_v2"), (c_void_p(ctypes.addressof(copy)), stream), referenced_objects=(copy,)
                )
                for copy in copies
            ]

        before = copy_steps(copy for texture in textures for copy in texture.before)
        after = copy_steps(copy for texture in textures for copy in texture.after)
        return [*before, kernel, *after]

    def _constant_step(self, launch: KernelLaunch, buffers: Mapping[str, Buffer], stream: c_void_p) -> PreparedCall:
        """Return a driver call that copies data into a `__constant__` variable."""
        address, size = c_uint64(), c_size_t()
        name = self._names.get(f"&{launch.constant}", launch.constant)
        self._device.driver.call(
            "cuModuleGetGlobal_v2",
            byref(address),
            byref(size),
            self._module,
            ctypes.c_char_p(name.encode()),
            where=name,
        )
        source = cast("CudaBuffer", _buffer_named(launch.tensor, buffers)) if launch.tensor else None
        content_bytes = source.nbytes if source else len(launch.content)
        if content_bytes > size.value:
            raise LaunchError(
                f"constants.{launch.constant}: {content_bytes} bytes are passed, but the variable has {size.value}; "
                "pass at most as many numbers as the variable has elements, in its type",
                kind="constant-too-large",
            )
        if source:
            copy_arguments = (address, source.argument(), c_size_t(content_bytes), stream)
            return PreparedCall(self._device.driver.unchecked("cuMemcpyDtoDAsync_v2"), copy_arguments)
        content = ctypes.create_string_buffer(launch.content, content_bytes)
        arguments = (address, c_void_p(ctypes.addressof(content)), c_size_t(content_bytes), stream)
        return PreparedCall(
            self._device.driver.unchecked("cuMemcpyHtoDAsync_v2"), arguments, referenced_objects=(content,)
        )

    def _zero_step(self, launch: KernelLaunch, buffers: Mapping[str, Buffer], stream: c_void_p) -> PreparedCall:
        """Return a driver call that fills a buffer with one value."""
        buffer = cast("CudaBuffer", _buffer_named(launch.zero, buffers))
        address = buffer.argument()
        if not launch.value:
            return PreparedCall(
                self._device.driver.unchecked("cuMemsetD8Async"),
                (address, ctypes.c_ubyte(0), c_size_t(buffer.nbytes), stream),
            )
        element = element_bytes(buffer.dtype, launch.value)
        if len(element) == 8 and element[:4] != element[4:]:
            raise LaunchError(
                f"fill = '{launch.zero}': the driver cannot fill 8-byte elements with {launch.value}; use zero, or "
                "fill the buffer in a kernel",
                kind="not-allowed",
                subject=launch.zero,
                value=launch.value,
                allowed=0,
            )
        function_name, element_type = {
            1: ("cuMemsetD8Async", ctypes.c_ubyte),
            2: ("cuMemsetD16Async", ctypes.c_ushort),
        }.get(len(element), ("cuMemsetD32Async", c_uint))
        element_width = min(len(element), 4)
        pattern = element_type(int.from_bytes(element[:element_width], "little"))
        return PreparedCall(
            self._device.driver.unchecked(function_name),
            (address, pattern, c_size_t(buffer.nbytes // element_width), stream),
        )

    def _kernel_step(
        self, launch: KernelLaunch, buffers: Mapping[str, Buffer], stream: c_void_p, extended: bool
    ) -> PreparedCall:
        """Return the driver call that launches a kernel; raise LaunchError for a launch that cannot run."""
        if launch.kernel not in self._functions:
            raise LaunchError(unknown_name("kernel", launch.kernel, self._functions))
        self._check_geometry(launch)
        function = self._functions[launch.kernel]
        values_by_name: dict[str, CValue] = {
            tensor.name: self._encode_tensor_map(tensor, launch, buffers) for tensor in launch.tensor_maps
        }
        values_by_name |= {texture.name: self._texture_object(texture, launch, buffers) for texture in launch.textures}
        sizes = self._parameter_sizes(launch, function)
        widths = sizes if sizes and len(sizes) == len(launch.args) else [0] * len(launch.args)
        values: list[CValue] = [
            values_by_name[arg]
            if isinstance(arg, str) and arg in values_by_name
            else _c_value(arg, launch, buffers, width)
            for arg, width in zip(launch.args, widths, strict=True)
        ]
        self._check_parameters(launch, sizes, values)
        self._allow_shared(launch, function)
        pointers = (c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        uses_extended = extended and not launch.cooperative and self._device.driver.has("cuLaunchKernelEx")
        if uses_extended or is_extended(launch, self._device.capability):
            launch_description = launch_config(launch, stream, self._device.capability)
            driver_call = self._device.driver.unchecked("cuLaunchKernelEx")
            return PreparedCall(driver_call, (launch_description, function, pointers, None), launch.kernel, values)
        geometry = [c_uint(size) for size in (*launch.grid, *launch.block, launch.shared_bytes)]
        if launch.cooperative:
            driver_call = self._device.driver.unchecked("cuLaunchCooperativeKernel")
            return PreparedCall(driver_call, (function, *geometry, stream, pointers), launch.kernel, values)
        # cuLaunchKernel copies the arguments as it is called, so one array serves every launch.
        arguments = (function, *geometry, stream, pointers, None)
        return PreparedCall(self._device.driver.unchecked("cuLaunchKernel"), arguments, launch.kernel, values)

    def _encode_tensor_map(self, tensor: TensorMap, launch: KernelLaunch, buffers: Mapping[str, Buffer]) -> EncodedMap:
        """Return a tensor map for these buffers; it contains an address, so each set of buffers needs its own."""
        buffer = cast("CudaBuffer", _buffer_named(tensor.tensor, buffers))
        with _with_kernel_name(launch):
            return buffer.encoded(tensor)

    def _texture_object(self, texture: Texture, launch: KernelLaunch, buffers: Mapping[str, Buffer]) -> TextureObject:
        """Return a texture or surface object for these buffers."""
        buffer = cast("CudaBuffer", _buffer_named(texture.tensor, buffers))
        with _with_kernel_name(launch):
            return create(self._device.driver, texture, buffer.pointer, buffer.nbytes)

    def _check_geometry(self, launch: KernelLaunch) -> None:
        """Raise LaunchError with the reason for a geometry that the driver rejects as 'invalid value'."""
        name, device, resources = launch.kernel, self._device, self.resources[launch.kernel]
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if threads > device.limits.threads_per_block:
            raise LaunchError(
                f"{name}: a block of {threads} threads is too large; use at most {device.limits.threads_per_block} "
                "threads",
                kind="launch-limit",
                subject="block",
                value=threads,
                allowed=device.limits.threads_per_block,
            )
        shapes = (("grid", launch.grid, device.grid_limit), ("block", launch.block, device.block_limit))
        for dimension, sizes, limits in shapes:
            for axis, size, limit in zip("xyz", sizes, limits, strict=True):
                if not 1 <= size <= limit:
                    raise LaunchError(
                        f"{name}: {dimension}.{axis} = {size} is not allowed; choose 1 to {limit}",
                        kind="launch-limit",
                        subject=f"{dimension}.{axis}",
                        value=size,
                        allowed=limit,
                    )
        if threads > resources.max_threads_per_block:
            raise LaunchError(
                f"{name}: a block of {threads} threads is too large; this kernel can run with at most "
                f"{resources.max_threads_per_block}, because of its {resources.registers} registers per thread or its "
                "__launch_bounds__; use a smaller block or fewer registers",
                kind="launch-limit",
                subject="block",
                value=threads,
                allowed=resources.max_threads_per_block,
            )
        limit = device.limits.shared_per_block
        if launch.shared_bytes < 0 or resources.shared_bytes + launch.shared_bytes > limit:
            raise LaunchError(
                f"{name}: {resources.shared_bytes} + {launch.shared_bytes} bytes of static + dynamic shared memory "
                f"per block; the limit is {limit}, so use less shared memory",
                kind="launch-limit",
                subject="shared",
                value=resources.shared_bytes + launch.shared_bytes,
                allowed=limit,
            )

    def _parameter_sizes(self, launch: KernelLaunch, function: c_void_p) -> list[int] | None:
        """Return the sizes of the kernel's parameters; None if the driver does not report them."""
        driver = self._device.driver
        sizes: list[int] = []
        if not driver.has("cuFuncGetParamInfo"):
            return None
        offset, size = c_size_t(), c_size_t()
        while not (code := driver.unchecked("cuFuncGetParamInfo")(function, len(sizes), byref(offset), byref(size))):
            sizes.append(size.value)
        if code != INVALID_VALUE:
            raise driver.error(code, "cuFuncGetParamInfo", launch.kernel)
        return sizes

    def _check_parameters(self, launch: KernelLaunch, sizes: list[int] | None, values: Sequence[CValue]) -> None:
        """Raise LaunchError if arguments and parameters differ in number or size.

        Otherwise the driver would read past the end of the argument array.
        """
        argument_sizes = [ctypes.sizeof(value) for value in values]
        if sizes is not None and argument_sizes != sizes:
            raise LaunchError(
                f"{launch.kernel} takes {len(sizes)} arguments of {_list_sizes(sizes)} bytes; the launch passes "
                f"{len(argument_sizes)} of {_list_sizes(argument_sizes)} (pointers 8, int and float 4, tensor maps "
                "128); write one entry of the right size in args for each parameter",
                kind="argument-count",
                subject=launch.kernel,
                value=tuple(argument_sizes),
                allowed=tuple(sizes),
            )

    def _allow_shared(self, launch: KernelLaunch, function: c_void_p) -> None:
        """Allow the kernel more dynamic shared memory than the default; never lower an earlier limit."""
        total = launch.shared_bytes + self.resources[launch.kernel].shared_bytes
        if total <= self._device.shared_without_opt_in or launch.shared_bytes <= self._dynamic_shared[launch.kernel]:
            return
        self._device.driver.call(
            "cuFuncSetAttribute", function, FUNC_MAX_DYNAMIC_SHARED_BYTES, launch.shared_bytes, where=launch.kernel
        )
        self._dynamic_shared[launch.kernel] = launch.shared_bytes


def _list_sizes(sizes: Sequence[int]) -> str:
    """Return sizes as text with commas; "no" for an empty list."""
    return ", ".join(map(str, sizes)) or "no"


@contextlib.contextmanager
def _with_kernel_name(launch: KernelLaunch) -> Iterator[None]:
    """Add the kernel's name to a LaunchError raised inside the `with` block."""
    try:
        yield
    except LaunchError as error:
        raise LaunchError(f"{launch.kernel}: {error.message}", error.location, cause=error) from None


def _buffer_named(name: str, buffers: Mapping[str, Buffer]) -> Buffer:
    """Return a buffer by name; raise LaunchError for an unknown name."""
    if name not in buffers:
        raise LaunchError(unknown_name("buffer", name, buffers))
    return buffers[name]


def _bind_structure(struct: Struct, launch: KernelLaunch, buffers: Mapping[str, Buffer]) -> CValue:
    """Return the bytes of a struct argument, with the addresses of the buffers in its fields."""

    def address_of(name: str) -> int:
        device_buffer = cast("CudaBuffer", _buffer_named(name, buffers))
        if isinstance(device_buffer, MovableArray):
            raise LaunchError(
                f"{launch.kernel}: '{name}' is a field of a struct, so the kernel cannot run on arrays at other "
                f"addresses; pass '{name}' as a separate argument",
                kind="fixed-address",
                subject=launch.kernel,
                value=name,
            )
        return device_buffer.pointer

    with _with_kernel_name(launch):
        packed = struct.packed(address_of)
    return ctypes.create_string_buffer(packed, len(packed))


def _c_value(arg: Argument, launch: KernelLaunch, buffers: Mapping[str, Buffer], parameter_bytes: int) -> CValue:
    """Return the C value of one argument; `parameter_bytes` is the size of the kernel's parameter, 0 if not known."""
    if isinstance(arg, Struct):
        return _bind_structure(arg, launch, buffers)
    if not isinstance(arg, (str, Scalar)):
        arg = with_parameter_type(arg, parameter_bytes)
    if isinstance(arg, Scalar):
        packed = arg.packed()
        return ctypes.create_string_buffer(packed, len(packed))
    if isinstance(arg, str):
        buffer = cast("CudaBuffer", _buffer_named(arg, buffers))
        return buffer.argument()
    if isinstance(arg, float):
        return c_float(arg)
    if not -(2**31) <= arg < 2**31:
        raise LaunchError(
            f"{launch.kernel}: argument {arg} does not fit into a C int; pass its factors as separate arguments, or "
            'give a wider type, such as { i64 = "n" }',
            kind="argument-type",
            subject=launch.kernel,
            value=arg,
        )
    return c_int(arg)
