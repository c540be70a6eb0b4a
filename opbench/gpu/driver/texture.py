"""Bind textures and surfaces of tensors: a CUDA array is filled before a kernel and copied back afterwards.

Only arrays support filtering, and only surfaces of arrays can be written. The copies are part of the measured time, as
they would be in a program that keeps its data in linear memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, byref, c_byte, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from opbench.errors import LaunchError
from opbench.gpu.driver.driver import Driver
from opbench.kernels.texture import Texture

# enum values of cuda.h
ARRAY_FORMATS = {"u8": 0x01, "i32": 0x0A, "f16": 0x10, "f32": 0x20}
ADDRESS_MODES = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}
RESOURCE_ARRAY, RESOURCE_LINEAR = 0, 2
MEMORY_DEVICE, MEMORY_ARRAY = 2, 3
READ_AS_INTEGER, NORMALIZED_COORDINATES, SURFACE_LDST = 1, 2, 2


class _Array(Structure):
    _fields_ = (
        *((name, c_size_t) for name in ("width", "height", "depth")),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class _Linear(Structure):
    _fields_ = (("address", c_uint64), ("format", c_int), ("channels", c_uint), ("nbytes", c_size_t))


class _Union(ctypes.Union):
    _fields_ = (("array", c_void_p), ("linear", _Linear), ("reserved", c_int * 32))


class _Resource(Structure):
    _fields_ = (("kind", c_int), ("description", _Union), ("flags", c_uint))


class _Sampler(Structure):
    _fields_ = (
        ("addresses", c_int * 3),
        ("filter", c_int),
        ("flags", c_uint),
        ("anisotropy", c_uint),
        ("mipmap_filter", c_int),
        *((name, c_float) for name in ("mipmap_bias", "least_level", "most_level")),
        ("border", c_float * 4),
        ("reserved", c_byte * 48),
    )


_COPY_SIDE_FIELDS = (
    ("x", c_size_t),
    ("y", c_size_t),
    ("memory", c_int),
    ("host", c_void_p),
    ("device", c_uint64),
    ("array", c_void_p),
    ("pitch", c_size_t),
)


class Copy(Structure):
    """The driver's structure CUDA_MEMCPY2D, which describes a copy."""

    _fields_ = (
        *((f"from_{name}", kind) for name, kind in _COPY_SIDE_FIELDS),
        *((f"to_{name}", kind) for name, kind in _COPY_SIDE_FIELDS),
        ("width", c_size_t),
        ("height", c_size_t),
    )


class TextureObject(c_uint64):
    """The texture argument of a launch, and the copies before and after the kernel."""

    before: Sequence[Copy] = ()
    after: Sequence[Copy] = ()
    resources: _DriverObjects


class _DriverObjects:
    """Driver objects that belong to one texture argument and are destroyed with it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.created: list[tuple[str, c_void_p | c_uint64]] = []

    def __del__(self) -> None:
        for call, value in reversed(self.created):
            self.driver.unchecked(call)(value)


def create(driver: Driver, texture: Texture, address: int, nbytes: int) -> TextureObject:
    """Return a texture or surface object of a buffer; raise LaunchError if the hardware does not support it."""
    texture.check(nbytes)
    if not driver.has("cuTexObjectCreate"):
        raise LaunchError(
            "the NVIDIA driver has no cuTexObjectCreate; update the driver to one for CUDA 12 or newer",
            kind="driver-too-old",
            subject="cuTexObjectCreate",
        )
    texture_object, resource = TextureObject(), _Resource()
    texture_object.resources = objects = _DriverObjects(driver)
    if texture.memory == "linear":
        resource.kind = RESOURCE_LINEAR
        linear_bytes = texture.size[0] * texture.texel_bytes
        resource.description.linear = _Linear(address, ARRAY_FORMATS[texture.type], texture.channels, linear_bytes)
    else:
        array = c_void_p()
        # A height of 0 makes the texture one-dimensional.
        height = texture.size[1] if len(texture.size) > 1 else 0
        shape = _Array(texture.size[0], height, 0, ARRAY_FORMATS[texture.type], texture.channels, SURFACE_LDST)
        driver.call("cuArray3DCreate_v2", byref(array), byref(shape), where=texture.name)
        objects.created.append(("cuArrayDestroy", array))
        resource.kind, resource.description.array = RESOURCE_ARRAY, array
        texture_object.before = [_copy(texture, address, array, True)]
        texture_object.after = [_copy(texture, address, array, False)] if texture.is_surface else []
    if texture.is_surface:
        driver.call("cuSurfObjectCreate", byref(texture_object), byref(resource), where=texture.name)
        objects.created.append(("cuSurfObjectDestroy", c_uint64(texture_object.value)))
    else:
        driver.call(
            "cuTexObjectCreate",
            byref(texture_object),
            byref(resource),
            byref(_sampler(texture)),
            None,
            where=texture.name,
        )
        objects.created.append(("cuTexObjectDestroy", c_uint64(texture_object.value)))
    return texture_object


def _sampler(texture: Texture) -> _Sampler:
    """Return the driver's description of how a texture is read: filter, address mode and conversion."""
    sampler = _Sampler(filter=int(texture.filter == "linear"))
    sampler.addresses[:] = [ADDRESS_MODES[texture.address]] * 3
    sampler.flags = NORMALIZED_COORDINATES * texture.normalized
    if texture.type in ("u8", "i32") and texture.read == "element":
        sampler.flags |= READ_AS_INTEGER
    return sampler


def _copy(texture: Texture, address: int, array: c_void_p, to_array: bool) -> Copy:
    """Return the description of a copy from a buffer to an array, or back if `to_array` is false."""
    row_bytes = texture.size[0] * texture.texel_bytes
    buffer_side, array_side = ("from", "to") if to_array else ("to", "from")
    copy = Copy(width=row_bytes, height=texture.rows)
    for side, memory in ((buffer_side, MEMORY_DEVICE), (array_side, MEMORY_ARRAY)):
        setattr(copy, f"{side}_memory", memory)
    setattr(copy, f"{buffer_side}_device", address)
    setattr(copy, f"{buffer_side}_pitch", row_bytes)
    setattr(copy, f"{array_side}_array", array)
    return copy
