"""A texture or surface as the shim reads it: the description itself, to which the object is a pointer."""

from __future__ import annotations

import ctypes

from opbench.emulator.abi import TEXTURE_MAGIC, NativeTexture
from opbench.kernels.texture import CHOICES, TYPES, Texture


class TextureArgument(ctypes.c_uint64):
    """The argument, which keeps what it points to."""

    native: NativeTexture


def native_texture(texture: Texture, address: int, nbytes: int) -> TextureArgument:
    """What a launch passes for a buffer's memory; raises LaunchError for what no GPU would take."""
    texture.check(nbytes)
    native = NativeTexture(TEXTURE_MAGIC, texture.is_surface, len(texture.size), list(TYPES).index(texture.type))
    native.channels = texture.channels
    for name, values in CHOICES.items():
        setattr(native, name, values.index(getattr(texture, name)))
    native.normalized, native.start = texture.normalized, address
    native.width, native.height = texture.size[0], texture.rows
    made = TextureArgument(ctypes.addressof(native))
    made.native = native
    return made
