"""Device memory between guard bands, which reveal writes outside of a tensor."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from ctypes import byref, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

from opbench.errors import UsageError
from opbench.gpu.driver.hopper import EncodedMap, encode
from opbench.kernels.tensor_map import TensorMap

if TYPE_CHECKING:
    from opbench.gpu.driver.device import Device

GUARD_BYTES = 256 * 1024
"""Size of a guard band before and after each tensor: more than one row or tile, and a multiple of every alignment."""

NO_CHANGE = 0xFFFFFFFF
"""The distance that `opbench_compare_guards` reports for an unchanged guard band."""
FINGERPRINT_SECRET = secrets.randbits(64)
"""A random number that this process's fingerprints include, so that kernels cannot foresee them."""


class DeviceArray:
    """A tensor in device memory that another object allocated, such as a network's arena."""

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype, pointer: int = 0) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._device = device
        self._pointer = pointer

    @property
    def pointer(self) -> int:
        """Return the address of the first element on the device."""
        return self._pointer

    def argument(self) -> c_uint64:
        """Return the address as a kernel argument."""
        return c_uint64(self.pointer)

    def encoded(self, tensor: TensorMap) -> EncodedMap:
        """Return the encoded form of a tensor map of this tensor."""
        return encode(self._device.driver, tensor, self.pointer, self.nbytes)

    def write(self, array: np.ndarray) -> None:
        """Copy a C-contiguous host array of the same shape and dtype to the device."""
        if array.shape != self.shape or array.dtype != self.dtype or not array.flags.c_contiguous:
            raise UsageError(
                f"buffer '{self.name}' needs a C-contiguous array {self.shape} of {self.dtype}, but the array is "
                f"{array.shape} of {array.dtype}; convert the array with numpy.ascontiguousarray",
                kind="other-array",
                subject=self.name,
                value=array.shape,
                allowed=self.shape,
            )
        self._device.driver.call(
            "cuMemcpyHtoDAsync_v2", self.pointer, c_void_p(array.ctypes.data), self.nbytes, self._device.stream
        )
        self._device.wait()

    def read(self) -> np.ndarray:
        """Wait for all earlier launches and return a copy of the content."""
        array = np.empty(self.shape, self.dtype)
        self._device.driver.call(
            "cuMemcpyDtoHAsync_v2", c_void_p(array.ctypes.data), self.pointer, self.nbytes, self._device.stream
        )
        self._device.wait()
        return array

    def poison(self) -> None:
        """Fill the content with 0xFF bytes, which are NaN in every float format."""
        self._device.driver.call("cuMemsetD8Async", self.pointer, 0xFF, self.nbytes, self._device.stream)

    def poison_part(self, offset: int, nbytes: int) -> None:
        """Fill some bytes of the content, from an offset on, with 0xFF."""
        self._device.driver.call("cuMemsetD8Async", self.pointer + offset, 0xFF, nbytes, self._device.stream)

    def copy_from(self, other: DeviceArray, shift: int = 0) -> None:
        """Copy the content of a tensor of the same size on the device, rotated by `shift` bytes towards the end.

        The last `shift` bytes go to the front.
        """
        driver_call, stream, unshifted_bytes = self._device.driver.call, self._device.stream, self.nbytes - shift
        driver_call("cuMemcpyDtoDAsync_v2", self.pointer + shift, other.pointer, unshifted_bytes, stream)
        if shift:
            driver_call("cuMemcpyDtoDAsync_v2", self.pointer, other.pointer + unshifted_bytes, shift, stream)

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the content after all earlier launches; see kernels.cu."""
        device = self._device
        device.driver.call("cuMemsetD8Async", device.scratch, 0, 8, device.stream)
        arguments = (
            c_uint64(self.pointer),
            c_uint64(self.nbytes),
            c_uint64(FINGERPRINT_SECRET),
            c_uint64(device.scratch),
        )
        device.launch("opbench_fingerprint", 8 * device.sm_count, 256, arguments)
        hash_value = c_uint64()
        device.driver.call("cuMemcpyDtoHAsync_v2", byref(hash_value), device.scratch, 8, device.stream)
        device.wait()
        return hash_value.value

    def changed_guard_offset(self) -> int | None:
        """Return None, because this memory has no guard bands."""
        return None


class MovableArray(DeviceArray):
    """A tensor whose address may change between launches; arguments and tensor maps change with it.

    The alignment must not change, because maps are checked only when they are created.
    """

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype, address: c_uint64) -> None:
        """Create the tensor at a first address.

        `address` is the argument of every kernel. After setting it, call `move_maps` if there are maps.
        """
        super().__init__(device, name, shape, dtype)
        self.address = address
        self.maps: list[tuple[EncodedMap, int]] = []
        """Each tensor map with its offset in bytes."""
        self._encoded_for = address.value

    @property
    def pointer(self) -> int:
        """Return the address of the first element on the device."""
        return self.address.value

    def argument(self) -> c_uint64:
        """Return the kernel argument that all launches share."""
        return self.address

    def encoded(self, tensor: TensorMap) -> EncodedMap:
        """Return the encoded form of a tensor map; `move_maps` updates its address."""
        self.maps.append((tensor_map := super().encoded(tensor), tensor.offset))
        return tensor_map

    def move_maps(self) -> None:
        """Write the current address into all tensor maps."""
        if (pointer := self.address.value) != self._encoded_for:
            for tensor_map, offset in self.maps:
                self._device.driver.call("cuTensorMapReplaceAddress", tensor_map, pointer + offset, where=self.name)
            self._encoded_for = pointer


SMALL_VARIABLE_BYTES = 1 << 14
"""The largest size at which a module variable is hashed on the host instead of by a kernel."""


class ModuleVariable(DeviceArray):
    """A `__device__` or `__constant__` variable of a loaded module, as bytes."""

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the content, after all earlier launches."""
        if self.nbytes > SMALL_VARIABLE_BYTES and self.pointer % 4 == 0:
            return super().fingerprint()
        return int.from_bytes(hashlib.blake2b(self.read().data, digest_size=8).digest(), "little")


class CudaBuffer(DeviceArray):
    """Device memory for one tensor between guard bands.

    Guard bands have 16-bit words 0xFFF1 to 0xFFFE: NaN in f64, f32, f16 and bf16, so a stray read poisons the
    result; each buffer has its own word, so that even a copy from one guard band into another is detected.
    """

    _tags = itertools.count()

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(device, name, shape, dtype)
        self._tag = 1 + next(self._tags) % 14
        word_count = (2 * GUARD_BYTES + self.nbytes + 1) // 2
        self._base = device.reserve(2 * word_count, f"buffer '{name}'")
        device.driver.call("cuMemsetD16Async", self._base, 0xFFF0 | self._tag, word_count, device.stream)
        self.poison()

    @property
    def pointer(self) -> int:
        """Return the address of the first element on the device."""
        if not self._base:
            raise UsageError(f"buffer '{self.name}' was freed", kind="buffer-freed", subject=self.name)
        return self._base + GUARD_BYTES

    def changed_guard_offset(self) -> int | None:
        """Return the offset in bytes, from the buffer's start, of the nearest changed guard byte, else None."""
        device = self._device
        device.driver.call("cuMemsetD8Async", device.scratch, 0xFF, 8, device.stream)
        sizes = (c_uint64(GUARD_BYTES), c_uint64(self.nbytes), c_uint(self._tag))
        arguments = (c_uint64(self._base), *sizes, c_uint64(device.scratch))
        device.launch("opbench_compare_guards", device.sm_count, 512, arguments)
        nearest = (c_uint * 2)()
        device.driver.call("cuMemcpyDtoHAsync_v2", byref(nearest), device.scratch, 8, device.stream)
        device.wait()
        distance_before, distance_behind = int(nearest[0]), int(nearest[1])
        if distance_before == distance_behind == NO_CHANGE:
            return None
        return -1 - distance_before if distance_before < distance_behind else self.nbytes + distance_behind

    def release(self) -> None:
        """Free the memory; this is safe after the context was lost, and a second call does nothing."""
        base, self._base = self._base, 0
        if base:
            self._device.driver.unchecked("cuMemFree_v2")(base)
