"""Tensor maps, the tensor descriptors of TMA copies: as text in a header, and with all numbers evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from opbench.errors import LaunchError, UsageError, unknown_name
from opbench.kernels import expression

if TYPE_CHECKING:  # The import loads NumPy, which reading headers does not need.
    from opbench.kernels.tensors import Tensor

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "e4m3": 1, "e5m2": 1, "i8": 1, "u8": 1}
"""Bytes of each element type; tf32 reads float32 and rounds it to the nearest TF32, ties to even, while copying."""
SWIZZLE_BYTES = {"none": 16, "32B": 32, "64B": 64, "128B": 128}
"""Bytes of the span within which each swizzle mode permutes chunks of 16 bytes."""
L2_PROMOTION_BYTES = (0, 64, 128, 256)
"""Bytes that L2 may fetch on a miss (L2 promotion)."""
ALIGNMENT = 16
"""Alignment in bytes of addresses and strides."""


@dataclass(frozen=True)
class TensorMap:
    """The value of a kernel parameter `const __grid_constant__ TensorMap`; lists start with the inner dimension."""

    name: str
    tensor: str
    """The buffer's name."""
    type: str
    """The element type, a key of ELEMENT_BYTES."""
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    """Stride in bytes of every dimension except the innermost."""
    box: tuple[int, ...] = ()
    """Elements of one copy in every dimension; empty for an im2col map."""
    element_strides: tuple[int, ...] = ()
    """Element stride of every dimension: every n-th element is copied."""
    swizzle: str = "128B"
    l2: int = 256
    offset: int = 0
    """Bytes from the buffer's start to the first element."""
    lower: tuple[int, ...] = ()
    """im2col: the first pixel of a filter's first element, relative to the image's first pixel; w, h."""
    upper: tuple[int, ...] = ()
    """im2col: the last pixel of a filter's first element, relative to the image's last pixel."""
    channels: int = 0
    """im2col: channels per pixel of one copy."""
    pixels: int = 0
    """im2col: pixels of one copy, along w, then h, then n."""

    @property
    def element_bytes(self) -> int:
        """Return the size of one element in bytes."""
        return ELEMENT_BYTES[self.type]

    @property
    def is_im2col(self) -> bool:
        """Return whether copies use the im2col mode, which takes pixels of an image instead of a box."""
        return bool(self.lower)

    @property
    def row_bytes(self) -> int:
        """Return the size in bytes of the box's innermost dimension, or of one pixel's channels."""
        return (self.channels if self.is_im2col else self.box[0]) * self.element_bytes

    @property
    def extent_bytes(self) -> int:
        """Return the bytes between the start of the first element and the end of the last one."""
        outer = sum((size - 1) * stride for size, stride in zip(self.dims[1:], self.strides, strict=True))
        return outer + self.dims[0] * self.element_bytes

    def check(self, address: int, nbytes: int) -> None:
        """Raise LaunchError, with a reason, for values that the driver would reject without a reason.

        `address` and `nbytes` describe the buffer.
        """
        for faults in (self._possible_faults, self._faults_of_copies, lambda: self._memory_faults(address, nbytes)):
            for is_violated, message in faults():
                if is_violated:
                    raise LaunchError(
                        f"tensor map '{self.name}' of '{self.tensor}': {message}",
                        kind="tensor-map",
                        subject=self.name,
                        value=self.tensor,
                    )

    def _possible_faults(self) -> list[tuple[object, str]]:
        """Return conditions on the tensor's description, each with the message if it is violated."""
        rank, min_rank = len(self.dims), 3 if self.is_im2col else 1
        bad_strides = [n for n in self.strides if n % ALIGNMENT or not 0 < n < 1 << 40]
        elements = ALIGNMENT // self.element_bytes
        return [
            (not min_rank <= rank <= 5, f"{rank} dimensions are not allowed; use {min_rank} to 5"),
            (
                len(self.strides) != rank - 1,
                f"{len(self.strides)} strides for {rank} dimensions; give {rank - 1} strides",
            ),
            (
                len(self.element_strides) != rank,
                f"{len(self.element_strides)} element strides for {rank} dimensions; give {rank} element strides",
            ),
            (
                not all(1 <= n <= 1 << 32 for n in self.dims),
                f"dims = {_list_numbers(self.dims)} is not allowed; give numbers from 1 to 2^32",
            ),
            (
                bad_strides,
                f"strides of {_list_numbers(bad_strides)} bytes; each must be a multiple of {ALIGNMENT} below 2^40; "
                f"use rows of a multiple of {elements} elements, or a variant without tensor maps",
            ),
            (
                not all(1 <= n <= 8 for n in self.element_strides),
                f"element_strides = {_list_numbers(self.element_strides)} is not allowed; give numbers from 1 to 8",
            ),
        ]

    def _faults_of_copies(self) -> list[tuple[object, str]]:
        """Return conditions on the box or on the im2col parameters, each with the message if it is violated."""
        row, span = self.row_bytes if self.box or self.is_im2col else 0, SWIZZLE_BYTES[self.swizzle]
        row_exceeds_span = self.swizzle != "none" and row > span
        rows = [
            (
                row % ALIGNMENT,
                f"rows of {row} bytes in a copy; choose a box whose rows are a multiple of {ALIGNMENT} bytes",
            ),
            (
                row_exceeds_span,
                f"rows of {row} bytes in a copy; swizzle {self.swizzle} allows {span}; use a narrower box and "
                "several copies",
            ),
        ]
        if not self.is_im2col:
            rank = len(self.dims)
            fits = all(1 <= n <= 256 for n in self.box)
            return [
                (len(self.box) != rank, f"a box of {len(self.box)} extents for {rank} dimensions; give {rank} extents"),
                (not fits, f"box = {_list_numbers(self.box)} is not allowed; give extents from 1 to 256"),
                *rows,
            ]
        limit = {3: 1 << 15, 4: 128, 5: 16}.get(len(self.dims), 0)
        corners = (*self.lower, *self.upper)
        return [
            (
                len(self.lower) != len(self.dims) - 2 or len(self.upper) != len(self.lower),
                f"corners of {len(self.lower)} and {len(self.upper)} numbers; for {len(self.dims)} dimensions, give "
                f"{len(self.dims) - 2} numbers in lower and in upper",
            ),
            (
                not all(-limit <= n < limit for n in corners),
                f"corners {_list_numbers(corners)} are not allowed; for {len(self.dims)} dimensions, give numbers "
                f"from {-limit} to {limit - 1}",
            ),
            (not 1 <= self.channels <= 256, f"channels = {self.channels} is not allowed; use 1 to 256"),
            (not 1 <= self.pixels <= 1024, f"pixels = {self.pixels} is not allowed; use 1 to 1024"),
            *rows,
        ]

    def _memory_faults(self, address: int, nbytes: int) -> list[tuple[object, str]]:
        """Return conditions on the memory range, each with the message if it is violated."""
        start, end = address + self.offset, self.offset + self.extent_bytes
        return [
            (
                start % ALIGNMENT,
                f"begins at {start:#x}; choose an offset with which the tensor map begins at a multiple of "
                f"{ALIGNMENT} bytes",
            ),
            (
                not 0 <= self.offset <= end <= nbytes,
                f"bytes {self.offset} to {end} of a buffer of {nbytes}: the tensor map goes beyond the buffer; "
                "reduce dims, strides or offset",
            ),
        ]


@dataclass(frozen=True)
class TensorMapTemplate:
    """A tensor map in a header, with expressions over axes and tunables."""

    name: str
    tensor: str
    type: str = ""
    """A type or an expression for one; empty for the tensor's own."""
    dims: tuple[str, ...] = ()
    strides: tuple[str, ...] = ()
    box: tuple[str, ...] = ()
    element_strides: tuple[str, ...] = ()
    swizzle: str = "128B"
    """A key of SWIZZLE_BYTES or an expression for one."""
    l2: int = 256
    offset: str = "0"
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    channels: str = "0"
    pixels: str = "0"

    def evaluated(self, scope: Mapping[str, expression.ExpressionValue], tensors: Sequence[Tensor]) -> TensorMap:
        """Return the map with all numbers evaluated; raise UsageError for an unknown tensor, type or name."""
        tensor_by_name = {tensor.name: tensor for tensor in tensors}
        if self.tensor not in tensor_by_name:
            raise UsageError(unknown_name("tensor", self.tensor, tensor_by_name, place=f"tensor map '{self.name}'"))
        tensor = tensor_by_name[self.tensor]
        type_text = self.type or tensor.dtype
        element_type = str(type_text if type_text in ELEMENT_BYTES else expression.evaluate(type_text, scope))
        if element_type not in ELEMENT_BYTES:
            raise UsageError(unknown_name("type", element_type, ELEMENT_BYTES, place=f"tensor map '{self.name}'"))
        swizzle = self.swizzle if self.swizzle in SWIZZLE_BYTES else str(expression.evaluate(self.swizzle, scope))
        if swizzle not in SWIZZLE_BYTES:
            raise UsageError(unknown_name("swizzle", swizzle, SWIZZLE_BYTES, place=f"tensor map '{self.name}'"))
        element_bytes = ELEMENT_BYTES[element_type]
        if not self.dims and element_bytes * tensor.elements != tensor.nbytes:
            raise UsageError(
                f"tensor map '{self.name}': dims are missing, and opbench cannot derive dims when {tensor.dtype} is "
                f'read as {element_type}; add dims = ["width", "height"] with sizes in {element_type} elements',
                kind="missing-key",
                subject="dims",
            )

        def numbers(texts: Sequence[str]) -> tuple[int, ...]:
            return tuple(int(expression.evaluate(text, scope)) for text in texts)

        dims = numbers(self.dims) or tuple(reversed(tensor.shape))
        dense = tuple(element_bytes * prod(dims[: axis + 1]) for axis in range(len(dims) - 1))
        return TensorMap(
            name=self.name,
            tensor=self.tensor,
            type=element_type,
            dims=dims,
            strides=numbers(self.strides) or dense,
            box=numbers(self.box),
            element_strides=numbers(self.element_strides) or (1,) * len(dims),
            swizzle=swizzle,
            l2=self.l2,
            offset=element_bytes * int(expression.evaluate(self.offset, scope)),
            lower=numbers(self.lower),
            upper=numbers(self.upper),
            channels=int(expression.evaluate(self.channels, scope)),
            pixels=int(expression.evaluate(self.pixels, scope)),
        )


def _list_numbers(integers: Sequence[int]) -> str:
    return ", ".join(map(str, integers))
