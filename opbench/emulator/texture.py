"""Encode a texture or surface for the shim: the object is a pointer to its description."""

from __future__ import annotations

import ctypes

from opbench.emulator.abi import TEXTURE_MAGIC, NativeTexture
from opbench.kernels.texture import CHOICES, TYPES, Texture


class TextureArgument(ctypes.c_uint64):
    """Hold a pointer argument and keep the description to which it points alive."""

    native: NativeTexture


def native_texture(texture: Texture, address: int, nbytes: int) -> TextureArgument:
    """Return the argument that a launch passes for a buffer's memory; raise LaunchError if a GPU would refuse it."""
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
