"""Launch features of Hopper: tensor maps, clusters, programmatic dependent launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, Union, c_byte, c_char, c_int, c_uint, c_uint64, c_void_p, pointer

from opbench.errors import LaunchError
from opbench.gpu.driver.driver import Driver
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.tensor_map import L2_PROMOTION_BYTES, SWIZZLE_BYTES, TensorMap

# enum values of cuda.h
TENSOR_MAP_TYPES = {"u8": 0, "i8": 0, "e4m3": 0, "e5m2": 0, "f16": 6, "f32": 7, "bf16": 9, "tf32": 11}
SWIZZLES = {name: number for number, name in enumerate(SWIZZLE_BYTES)}
L2_PROMOTIONS = {nbytes: number for number, nbytes in enumerate(L2_PROMOTION_BYTES)}
INTERLEAVE_NONE, FILL_ZEROS = 0, 0
ATTRIBUTE_CLUSTER, ATTRIBUTE_PROGRAMMATIC = 4, 6

MAP_BYTES, MAP_ALIGNMENT = 128, 64
CLUSTER_CAPABILITY = (9, 0)

EncodedMap = ctypes.Array[c_char]
"""The 128 bytes of a CUtensorMap."""


def encode(driver: Driver, tensor: TensorMap, address: int, nbytes: int) -> EncodedMap:
    """Encode a tensor map for a buffer of `nbytes` bytes at a device address.

    Raises LaunchError for a map that the hardware does not support.
    """
    tensor.check(address, nbytes)
    function_name = "cuTensorMapEncodeIm2col" if tensor.is_im2col else "cuTensorMapEncodeTiled"
    if not driver.has(function_name):
        raise LaunchError(
            f"the NVIDIA driver has no {function_name}; update the driver to one for CUDA 12 or newer",
            kind="driver-too-old",
            subject=function_name,
        )
    storage = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    encoded = (c_char * MAP_BYTES).from_buffer(storage, -ctypes.addressof(storage) % MAP_ALIGNMENT)
    rank, address_argument = len(tensor.dims), c_void_p(address + tensor.offset)
    common_arguments = (
        encoded,
        TENSOR_MAP_TYPES[tensor.type],
        rank,
        address_argument,
        _c_array(c_uint64, tensor.dims),
        _c_array(c_uint64, tensor.strides),
    )
    steps = _c_array(c_uint, tensor.element_strides)
    trailing_arguments = (steps, INTERLEAVE_NONE, SWIZZLES[tensor.swizzle], L2_PROMOTIONS[tensor.l2], FILL_ZEROS)
    if tensor.is_im2col:
        corners = (_c_array(c_int, tensor.lower), _c_array(c_int, tensor.upper))
        driver.call(
            function_name,
            *common_arguments,
            *corners,
            tensor.channels,
            tensor.pixels,
            *trailing_arguments,
            where=f"{tensor}",
        )
    else:
        driver.call(
            function_name, *common_arguments, _c_array(c_uint, tensor.box), *trailing_arguments, where=f"{tensor}"
        )
    return encoded


def _c_array(kind: type[c_uint64] | type[c_uint] | type[c_int], values: Sequence[int]) -> object:
    return (kind * max(1, len(values)))(*values)


class _AttributeValue(Union):
    _fields_ = (("cluster", c_uint * 3), ("flag", c_int), ("room", c_byte * 64))


class _Attribute(Structure):
    _fields_ = (("kind", c_int), ("pad", c_byte * 4), ("value", _AttributeValue))


class _Config(Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    )


def is_extended(launch: KernelLaunch, capability: tuple[int, int]) -> bool:
    """Return whether a launch needs cuLaunchKernelEx; older GPUs ignore programmatic dependent launch."""
    return launch.cluster != (1, 1, 1) or (launch.programmatic and capability >= CLUSTER_CAPABILITY)


def launch_config(launch: KernelLaunch, stream: c_void_p, capability: tuple[int, int]) -> object:
    """Return a pointer to the CUlaunchConfig of a launch; raise LaunchError for a launch that this GPU refuses."""
    if launch.cluster != (1, 1, 1) and capability < CLUSTER_CAPABILITY:
        own_capability = "{}.{}".format(*capability)
        raise LaunchError(
            f"{launch.kernel}: clusters need compute capability 9.0, but this GPU has {own_capability}; choose a "
            "variant without the key cluster",
            kind="needs-capability",
            subject=launch.kernel,
            value=own_capability,
            allowed="9.0",
        )
    if fault := launch.fault_of_cluster():
        raise LaunchError(f"{launch.kernel}: {fault}", kind="cluster", subject=launch.kernel, value=launch.cluster)
    attributes = []
    if launch.cluster != (1, 1, 1):
        attributes.append(_Attribute(ATTRIBUTE_CLUSTER, value=_AttributeValue(cluster=(c_uint * 3)(*launch.cluster))))
    if launch.programmatic and capability >= CLUSTER_CAPABILITY:
        attributes.append(_Attribute(ATTRIBUTE_PROGRAMMATIC, value=_AttributeValue(flag=1)))
    attribute_array = (_Attribute * len(attributes))(*attributes)
    grid, block = (c_uint * 3)(*launch.grid), (c_uint * 3)(*launch.block)
    return pointer(_Config(grid, block, launch.shared_bytes, stream, attribute_array, len(attributes)))
