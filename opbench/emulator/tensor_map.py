"""A tensor map as the runtime reads it: the description itself, in the 128 bytes of the hardware's own."""

from __future__ import annotations

import ctypes

from opbench.kernels.tensor_map import SPANS, TensorMap

MAGIC = 0x70616D54
TYPES = {"f16": 3, "bf16": 4, "f32": 5, "tf32": 6}
"""`opb_type` of include/opbench_cpu/abi.hpp."""
BYTES, ALIGNMENT = 128, 64
"""Of a kernel's parameter, which compilers read by aligned vectors."""


class NativeMap(ctypes.Structure):
    """`opb_tensor_map` of include/opbench_cpu/abi.hpp."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("im2col", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
        ("bytes", ctypes.c_uint8),
        ("swizzle", ctypes.c_uint8),
        ("address", ctypes.c_uint64),
        ("dims", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint16 * 5),
        ("steps", ctypes.c_uint8 * 5),
        ("type", ctypes.c_uint8),
        ("strides", ctypes.c_uint64 * 4),
        ("lower", ctypes.c_int16 * 3),
        ("upper", ctypes.c_int16 * 3),
        ("channels", ctypes.c_uint16),
        ("pixels", ctypes.c_uint16),
    )


def native_map(tensor: TensorMap, address: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
    """What a launch passes by value, of a buffer's memory; raises LaunchError for what no GPU would take."""
    tensor.check(address, nbytes)
    memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    # The array that is returned keeps all of the memory alive.
    room = (ctypes.c_char * BYTES).from_buffer(memory, -ctypes.addressof(memory) % ALIGNMENT)
    made = NativeMap.from_buffer(room)
    made.magic, made.im2col, made.rank, made.bytes = MAGIC, tensor.is_im2col, len(tensor.dims), tensor.element_bytes
    made.swizzle, made.type = list(SPANS).index(tensor.swizzle), TYPES[tensor.type]
    made.address, made.channels, made.pixels = address + tensor.offset, tensor.channels, tensor.pixels
    lists = {
        "dims": tensor.dims,
        "box": tensor.box,
        "steps": tensor.element_strides,
        "strides": tensor.strides,
        "lower": tensor.lower,
        "upper": tensor.upper,
    }
    for name, values in lists.items():
        getattr(made, name)[: len(values)] = list(values)
    return room
