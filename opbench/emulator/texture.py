"""Encode a texture or surface for the emulator: the object is a pointer to its description."""

from __future__ import annotations

import ctypes

from opbench.emulator.abi import TEXTURE_MAGIC, NativeTexture
from opbench.kernels.texture import ALLOWED_MODES, TEXEL_TYPE_BYTES, Texture


class TextureArgument(ctypes.c_uint64):
    """A pointer argument that keeps the texture description to which it points alive."""

    native: NativeTexture


def native_texture(texture: Texture, address: int, nbytes: int) -> TextureArgument:
    """Return the texture argument of a launch for a buffer's memory; raise LaunchError for an invalid texture."""
    texture.check(nbytes)
    native = NativeTexture(
        TEXTURE_MAGIC, texture.is_surface, len(texture.size), list(TEXEL_TYPE_BYTES).index(texture.type)
    )
    native.channels = texture.channels
    for name, values in ALLOWED_MODES.items():
        setattr(native, name, values.index(getattr(texture, name)))
    native.normalized, native.start = texture.normalized, address
    native.width, native.height = texture.size[0], texture.rows
    argument = TextureArgument(ctypes.addressof(native))
    argument.native = native
    return argument
