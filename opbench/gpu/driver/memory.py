"""Device memory with guard bands: what a kernel writes outside its tensors is seen."""

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
"""Before and after each tensor; wide enough for a whole row or tile too far, and a multiple of every alignment."""

UNTOUCHED = 0xFFFFFFFF
SECRET = secrets.randbits(64)
"""Of this process's fingerprints."""


class DeviceArray:
    """A tensor's place in device memory that someone else allocated, such as a network's arena."""

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype, pointer: int = 0) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._device = device
        self._pointer = pointer

    @property
    def pointer(self) -> int:
        """Address of the first element on the device."""
        return self._pointer

    def argument(self) -> c_uint64:
        """The address as a kernel takes it."""
        return c_uint64(self.pointer)

    def encoded(self, tensor: TensorMap) -> EncodedMap:
        """A tensor map of it."""
        return encode(self._device.driver, tensor, self.pointer, self.nbytes)

    def write(self, array: np.ndarray) -> None:
        """Copy a C-contiguous host array of the same shape and dtype in."""
        if array.shape != self.shape or array.dtype != self.dtype or not array.flags.c_contiguous:
            raise UsageError(
                f"buffer '{self.name}' takes a C-contiguous array {self.shape} of {self.dtype}, "
                f"not {array.shape} of {array.dtype}"
            )
        self._device.driver.call(
            "cuMemcpyHtoDAsync_v2", self.pointer, c_void_p(array.ctypes.data), self.nbytes, self._device.stream
        )
        self._device.wait()

    def read(self) -> np.ndarray:
        """Copy the content out, after all launches before it."""
        array = np.empty(self.shape, self.dtype)
        self._device.driver.call(
            "cuMemcpyDtoHAsync_v2", c_void_p(array.ctypes.data), self.pointer, self.nbytes, self._device.stream
        )
        self._device.wait()
        return array

    def poison(self) -> None:
        """Fill the content with 0xFF bytes (NaN in every float format)."""
        self._device.driver.call("cuMemsetD8Async", self.pointer, 0xFF, self.nbytes, self._device.stream)

    def poison_part(self, offset: int, nbytes: int) -> None:
        """Fill some bytes of the content, from an offset on, with 0xFF."""
        self._device.driver.call("cuMemsetD8Async", self.pointer + offset, 0xFF, nbytes, self._device.stream)

    def copy_from(self, other: DeviceArray, shift: int = 0) -> None:
        """Copy a tensor of the same size on the device; its last `shift` bytes go to the front."""
        call, stream, rest = self._device.driver.call, self._device.stream, self.nbytes - shift
        call("cuMemcpyDtoDAsync_v2", self.pointer + shift, other.pointer, rest, stream)
        if shift:
            call("cuMemcpyDtoDAsync_v2", self.pointer, other.pointer + rest, shift, stream)

    def fingerprint(self) -> int:
        """64 bits that stand for the content, after all launches before it; see kernels.cu."""
        device = self._device
        device.driver.call("cuMemsetD8Async", device.scratch, 0, 8, device.stream)
        arguments = (c_uint64(self.pointer), c_uint64(self.nbytes), c_uint64(SECRET), c_uint64(device.scratch))
        device.launch("opbench_fingerprint", 8 * device.sm_count, 256, arguments)
        found = c_uint64()
        device.driver.call("cuMemcpyDtoHAsync_v2", byref(found), device.scratch, 8, device.stream)
        device.wait()
        return found.value

    def damage(self) -> int | None:
        """None: there are no guard bands here."""
        return None


class MovableArray(DeviceArray):
    """A tensor's place that changes from launch to launch: arguments and tensor maps made of it follow.

    It stays aligned as it was, as maps are checked when they are made.
    """

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype, address: c_uint64) -> None:
        """`address` is what every kernel's argument will be: who sets it calls `move_maps` where there are maps."""
        super().__init__(device, name, shape, dtype)
        self.address = address
        self.maps: list[tuple[EncodedMap, int]] = []
        """With the offset in bytes at which each begins."""
        self._encoded_for = address.value

    @property
    def pointer(self) -> int:
        """Address of the first element on the device."""
        return self.address.value

    def argument(self) -> c_uint64:
        """The one argument that all launches share."""
        return self.address

    def encoded(self, tensor: TensorMap) -> EncodedMap:
        """A tensor map that follows."""
        self.maps.append((found := super().encoded(tensor), tensor.offset))
        return found

    def move_maps(self) -> None:
        """Bring the tensor maps to where it lies now."""
        if (pointer := self.address.value) != self._encoded_for:
            for found, offset in self.maps:
                self._device.driver.call("cuTensorMapReplaceAddress", found, pointer + offset, where=self.name)
            self._encoded_for = pointer


SMALL_VARIABLE_BYTES = 1 << 14
"""Up to this size a module variable is compared on the host; the kernel needs words at addresses of four bytes."""


class ModuleVariable(DeviceArray):
    """A variable of a loaded module, as bytes at any address."""

    def fingerprint(self) -> int:
        """64 bits that stand for the content, after all launches before it."""
        if self.nbytes > SMALL_VARIABLE_BYTES and self.pointer % 4 == 0:
            return super().fingerprint()
        return int.from_bytes(hashlib.blake2b(self.read().data, digest_size=8).digest(), "little")


class CudaBuffer(DeviceArray):
    """Device memory for one tensor.

    Guard bands hold 16-bit words 0xFFF1 to 0xFFFE: NaN in f64, f32, f16 and bf16, so a stray read poisons the result;
    each buffer has its own word, so that even a copy from one guard band into another is seen.
    """

    _tags = itertools.count()

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(device, name, shape, dtype)
        self._tag = 1 + next(self._tags) % 14
        words = (2 * GUARD_BYTES + self.nbytes + 1) // 2
        self._base = device.reserve(2 * words, f"buffer '{name}'")
        device.driver.call("cuMemsetD16Async", self._base, 0xFFF0 | self._tag, words, device.stream)
        self.poison()

    @property
    def pointer(self) -> int:
        """Address of the first element on the device."""
        if not self._base:
            raise UsageError(f"buffer '{self.name}' was freed")
        return self._base + GUARD_BYTES

    def damage(self) -> int | None:
        """Offset in bytes, relative to the buffer's start, of the nearest guard byte that changed, else None."""
        device = self._device
        device.driver.call("cuMemsetD8Async", device.scratch, 0xFF, 8, device.stream)
        sizes = (c_uint64(GUARD_BYTES), c_uint64(self.nbytes), c_uint(self._tag))
        arguments = (c_uint64(self._base), *sizes, c_uint64(device.scratch))
        device.launch("opbench_compare_guards", device.sm_count, 512, arguments)
        nearest = (c_uint * 2)()
        device.driver.call("cuMemcpyDtoHAsync_v2", byref(nearest), device.scratch, 8, device.stream)
        device.wait()
        before, behind = int(nearest[0]), int(nearest[1])
        if before == behind == UNTOUCHED:
            return None
        return -1 - before if before < behind else self.nbytes + behind

    def release(self) -> None:
        """Give the memory back; harmless twice, and after the context was lost."""
        base, self._base = self._base, 0
        if base:
            self._device.driver.raw("cuMemFree_v2")(base)
