"""Encode a tensor map for the runtime, in the 128 bytes of a `CUtensorMap`."""

from __future__ import annotations

import ctypes

from opbench.emulator.abi import TENSOR_MAP_MAGIC, TENSOR_TYPES, NativeMap
from opbench.kernels.tensor_map import SWIZZLE_BYTES, TensorMap

BYTES, ALIGNMENT = 128, 64
"""The size and alignment in bytes of a `CUtensorMap` parameter, which compilers read by aligned vectors."""


def native_map(tensor: TensorMap, address: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
    """Return the 128 bytes of a tensor map that a launch passes by value; raise LaunchError for an invalid map.

    `address` and `nbytes` describe the buffer's memory.
    """
    tensor.check(address, nbytes)
    memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    # The returned array keeps all of `memory` alive.
    aligned_bytes = (ctypes.c_char * BYTES).from_buffer(memory, -ctypes.addressof(memory) % ALIGNMENT)
    native = NativeMap.from_buffer(aligned_bytes)
    native.magic, native.im2col, native.rank = TENSOR_MAP_MAGIC, tensor.is_im2col, len(tensor.dims)
    native.bytes = tensor.element_bytes
    native.swizzle, native.type = (
        list(SWIZZLE_BYTES).index(tensor.swizzle),
        TENSOR_TYPES["s8" if tensor.type == "i8" else tensor.type],
    )
    native.address, native.channels, native.pixels = address + tensor.offset, tensor.channels, tensor.pixels
    values_by_field = {
        "dims": tensor.dims,
        "box": tensor.box,
        "steps": tensor.element_strides,
        "strides": tensor.strides,
        "lower": tensor.lower,
        "upper": tensor.upper,
    }
    for name, values in values_by_field.items():
        getattr(native, name)[: len(values)] = list(values)
    return aligned_bytes
