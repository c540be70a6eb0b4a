"""Allocate device memory: each buffer is a mapping with guard bytes around the content and unmapped pages outside."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from opbench.emulator.abi import GUARD_BYTES
from opbench.errors import EnvironmentFault, UsageError, unknown_name
from opbench.kernels.scalar import element_bytes

FENCE_BYTES = 1 << 30
"""Bytes of inaccessible address space on each side of a buffer. The fence is wide, so that an access far out of bounds
faults instead of reaching other memory of the process; address space alone takes no memory."""
PATTERN = 0xFFFE
"""The 16-bit content of guard bytes: a NaN in every float format, and different from poison (0xFF bytes), so that a
write of poison into a guard is detected, too."""
GUARD = np.full((GUARD_BYTES + mmap.PAGESIZE) // 2 + 1, PATTERN, np.uint16).view(np.uint8)
"""The longest guard that can follow a content, plus one 16-bit element, because a content may end at an odd byte."""
DTYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "e4m3": np.uint8,
    "e5m2": np.uint8,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u64": np.uint64,
    "u32": np.uint32,
    "u16": np.uint16,
    "u8": np.uint8,
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
FAILED = ctypes.c_void_p(-1).value
PROT_NONE = 0
MAP_NORESERVE = 0x4000
MAP_FIXED = 0x10
SPARSE_BYTES = 16 << 20
"""The size of the file that a sparse buffer maps repeatedly."""
MAX_MAPPINGS = 1 << 14
"""The largest number of mappings of one buffer. Linux allows a process 65,530 (vm.max_map_count); beyond that, every
allocation fails."""
PAGEMAP_ENTRY = 8
PAGE_PRESENT, PAGE_SWAPPED, PAGE_OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))


class CpuArray:
    """A tensor in memory that another object owns, such as a part of a buffer."""

    initialised = True
    """Whether the content was written since it was poisoned; a traced kernel that reads it before that is wrong."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, memory: np.ndarray) -> None:
        self.name, self.shape = name, tuple(shape)
        self.dtype: np.dtype = np.dtype(DTYPES[dtype])
        self.bytes: int = memory.size
        self._bytes = memory
        self._content = memory.view(self.dtype).reshape(self.shape)

    @property
    def address(self) -> int:
        """Return the address of the first byte of the content."""
        return int(self._bytes.ctypes.data)

    def part(self, name: str, shape: tuple[int, ...], dtype: str, offset: int) -> CpuArray:
        """Return a tensor that shares this memory, from `offset` bytes on."""
        size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        return CpuArray(name, shape, dtype, self._bytes[offset : offset + size])

    def write(self, array: np.ndarray) -> None:
        """Copy a host array of the same shape and dtype into the buffer."""
        self._check(array)
        self._content[...] = array
        self.initialised = True

    def read(self) -> np.ndarray:
        """Return a copy of the content."""
        content: np.ndarray = self._content.copy()
        return content

    def poison(self) -> None:
        """Fill the content with 0xFF bytes (NaN in every float format)."""
        self._bytes[:] = 0xFF
        self.initialised = False

    def poison_part(self, offset: int, nbytes: int) -> None:
        """Fill some bytes of the content, from an offset on, with 0xFF."""
        self._bytes[offset : offset + nbytes] = 0xFF

    def copy_from(self, other: CpuArray, shift: int = 0) -> None:
        """Copy the content of another tensor of the same size; the last `shift` bytes go to the front."""
        rest = self.bytes - shift
        self._bytes[shift:] = other._bytes[:rest]
        self._bytes[:shift] = other._bytes[rest:]
        self.initialised = True

    def clear(self) -> None:
        """Fill the content with zero bytes."""
        self._bytes[:] = 0
        self.initialised = True

    def fill(self, value: float) -> None:
        """Fill the content with a number, rounded to the buffer's dtype."""
        self._content[...] = np.frombuffer(element_bytes(self.dtype, value), self.dtype)[0]
        self.initialised = True

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the content."""
        return int.from_bytes(hashlib.blake2b(self._bytes.data, digest_size=8).digest(), "little")

    def changed_guard_offset(self) -> int | None:
        """Return None: memory of another object has no guard bytes of its own."""
        return None

    def distance(self, address: int) -> int:
        """Return how many bytes an address lies outside of the content; 0 if it lies inside."""
        start: int = self.address
        return max(start - address, address - (start + self.bytes - 1), 0)

    def _check(self, array: np.ndarray) -> None:
        """Raise ValueError unless an array has the buffer's shape and dtype."""
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"buffer '{self.name}' holds {self.dtype}{list(self.shape)}, not {array.dtype}{list(array.shape)}"
            )


class CpuBuffer(CpuArray):
    """Memory for one tensor between guard bytes and unmapped pages, so that accesses outside are detected.

    The content begins at a page, so it is aligned for every vector type.
    """

    _limited = True

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        if dtype not in DTYPES:
            raise UsageError(unknown_name("dtype", dtype, DTYPES))
        size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        self._mapped_bytes = 2 * GUARD_BYTES + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._fence_bytes = FENCE_BYTES
        self._base: int = self._map(name, shape, size)
        raw = (ctypes.c_uint8 * self._mapped_bytes).from_address(self._base + self._fence_bytes)
        self._all = np.frombuffer(raw, dtype=np.uint8)
        self._write_guards(size)
        super().__init__(name, shape, dtype, self._all[GUARD_BYTES : GUARD_BYTES + size])
        self.poison()

    def _write_guards(self, size: int) -> None:
        """Write the known content before and after a content of `size` bytes."""
        self._all.view(np.uint16)[: GUARD_BYTES // 2] = PATTERN
        self._all.view(np.uint16)[(GUARD_BYTES + size) // 2 :] = PATTERN

    @property
    def whole(self) -> np.ndarray:
        """Return the bytes of content and guard bytes without a copy; their number is a multiple of the page size."""
        return self._all

    def changed_guard_offset(self) -> int | None:
        """Return the offset in bytes, from the buffer's start, of the nearest changed guard byte; None without one."""
        before = np.flatnonzero(self._all[:GUARD_BYTES].view(np.uint16) != PATTERN)
        tail = self._all[GUARD_BYTES + self.bytes :]
        after = np.flatnonzero(tail != GUARD[self.bytes % 2 :][: tail.size])
        distances_and_offsets: list[tuple[int, int]] = []
        if before.size:
            index = int(before[-1]) * 2
            is_high_byte = self._all[index + 1] != PATTERN >> 8
            offset = index + int(is_high_byte) - GUARD_BYTES
            distances_and_offsets.append((-offset, offset))
        if after.size:
            distances_and_offsets.append((int(after[0]) + 1, self.bytes + int(after[0])))
        return min(distances_and_offsets)[1] if distances_and_offsets else None

    def free(self) -> None:
        """Unmap the memory; the buffer and its parts must not be used afterwards."""
        if self._base:
            del self._content, self._bytes, self._all
            _libc.munmap(self._base, self._mapped_bytes + 2 * self._fence_bytes)
            self._base = 0

    def _map(self, name: str, shape: tuple[int, ...], size: int) -> int:
        """Map memory for the content and its guards between inaccessible pages, and return the address of the first
        page.

        Raises EnvironmentFault if memory is short.
        """
        available = available_memory() if self._limited else None
        if available is not None and self._mapped_bytes > available:
            raise EnvironmentFault(
                _too_large_message(name, shape, size, f"of which {available / 1e9:.2f} GB are free"),
                kind="out-of-memory",
                subject=name,
                value=size,
                allowed=available,
            )
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        for fence in (FENCE_BYTES, mmap.PAGESIZE):  # A limit on address space (ulimit -v) may forbid the wide fence.
            self._fence_bytes = fence
            base = _libc.mmap(None, self._mapped_bytes + 2 * fence, PROT_NONE, flags, -1, 0)
            if base is None or base == FAILED:
                continue
            if _libc.mprotect(base + fence, self._mapped_bytes, mmap.PROT_READ | mmap.PROT_WRITE) == 0:
                return int(base)
            _libc.munmap(base, self._mapped_bytes + 2 * fence)
        raise EnvironmentFault(
            _too_large_message(name, shape, size, "which the system refuses"),
            kind="out-of-memory",
            subject=name,
            value=size,
        )


class SparseBuffer(CpuBuffer):
    """A buffer that uses memory only for written pages, so that it may be larger than the machine's memory.

    Pages that were not written all map one file, which contains poison or one repeated number.
    """

    _limited = False

    def poison(self) -> None:
        """Fill the content with poison without allocating a page."""
        self._map_file(_pages_of(b"\xff"))
        self.initialised = False

    def clear(self) -> None:
        """Fill the content with zeros without allocating a page."""
        self.fill(0.0)

    def fill(self, value: float) -> None:
        """Fill the content with a number without allocating a page."""
        self._map_file(_pages_of(element_bytes(self.dtype, value)))
        self.initialised = True

    @property
    def content(self) -> np.ndarray:
        """Return the content without a copy; only pages that the caller accesses are loaded."""
        content: np.ndarray = self._content
        return content

    def written_pages(self) -> np.ndarray | None:
        """Return the pages written since the last fill; None if the system does not report them."""
        count = -(-self.bytes // mmap.PAGESIZE)
        try:
            with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
                file.seek(self.address // mmap.PAGESIZE * PAGEMAP_ENTRY)
                entries = np.frombuffer(file.read(count * PAGEMAP_ENTRY), np.uint64)
        except OSError:
            return None
        # A page that was only read belongs to the file; a written page is a private copy, in memory or swapped out.
        is_private_copy: np.ndarray = ((entries & PAGE_PRESENT) != 0) & ((entries & PAGE_OF_FILE) == 0) | (
            (entries & PAGE_SWAPPED) != 0
        )
        result: np.ndarray = np.flatnonzero(is_private_copy)
        return result if entries.size == count else None

    def _map_file(self, file: int) -> None:
        """Map a file repeatedly over the whole content; the system copies a page when it is written."""
        if self.bytes > MAX_MAPPINGS * SPARSE_BYTES:
            raise EnvironmentFault(
                _too_large_message(self.name, self.shape, self.bytes, "more than can be mapped in pieces"),
                kind="out-of-memory",
                subject=self.name,
                value=self.bytes,
            )
        start = self._base + self._fence_bytes + GUARD_BYTES
        end = start + -(-self.bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            for address in range(start, end, SPARSE_BYTES):
                map_file(address, min(SPARSE_BYTES, end - address), file, shared=False)
        except OSError:
            raise EnvironmentFault(
                _too_large_message(self.name, self.shape, self.bytes, "which the system refuses"),
                kind="out-of-memory",
                subject=self.name,
                value=self.bytes,
            ) from None

    def _write_guards(self, size: int) -> None:
        """Do nothing: a traced launch checks bounds itself, so guard bytes are not needed."""


def map_file(address: int, nbytes: int, file: int, offset: int = 0, *, shared: bool = True) -> None:
    """Map a part of a file over some pages of this process; raise OSError.

    With `shared`, writes go to the file.
    """
    flags = MAP_FIXED | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
    if _libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, offset) == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _pages_of(pattern: bytes) -> int:
    """Return the descriptor of an in-memory file that repeats a byte pattern; it stays open for the whole process."""
    file = os.memfd_create("opbench-sparse")
    with os.fdopen(os.dup(file), "wb") as stream:
        stream.write(pattern * (SPARSE_BYTES // len(pattern)))
    return file


def _too_large_message(name: str, shape: tuple[int, ...], nbytes: int, reason: str) -> str:
    """Return the message that a buffer does not fit into memory, with a clause on the reason."""
    size = f"{nbytes / 1e9:.2f} GB"
    return f"buffer '{name}' {list(shape)} needs {size} of memory, {reason}; choose a smaller problem"


def available_memory() -> int | None:
    """Return the available memory in bytes, limited by the container's cgroup; None if unknown."""
    amounts = []
    try:
        free = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        amounts += [int(free.group(1)) * 1024] if free else []
    except OSError:
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        amounts += [int(limit) - used] if limit.isdigit() else []
    except (OSError, ValueError):
        pass
    return min(amounts) if amounts else None
