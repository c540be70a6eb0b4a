"""Textures and surfaces, through which a kernel's `cudaTextureObject_t` or `cudaSurfaceObject_t` reads a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opbench.errors import LaunchError, UsageError, unknown_name
from opbench.kernels import expression

if TYPE_CHECKING:  # The import loads NumPy, which reading headers does not need.
    from opbench.kernels.tensors import Tensor

TEXEL_TYPE_BYTES = {"f32": 4, "i32": 4, "u8": 1, "f16": 2}
"""Bytes of each component type of a texel."""
ALLOWED_CHANNELS = (1, 2, 4)
ALLOWED_MODES = {
    "filter": ("point", "linear"),
    "address": ("clamp", "border", "wrap", "mirror"),
    "read": ("element", "normalized"),
    "memory": ("array", "linear"),
}
"""The allowed values of each setting; the first is the default."""
MAX_SIZES = {1: (131072, 1), 2: (131072, 65536)}
"""Most texels along each dimension of a CUDA array, by number of dimensions."""


@dataclass(frozen=True)
class Texture:
    """A texture or surface with all numbers evaluated."""

    name: str
    tensor: str
    type: str
    size: tuple[int, ...]
    """Width and, for two dimensions, height, in texels."""
    channels: int = 1
    is_surface: bool = False
    filter: str = "point"
    address: str = "clamp"
    normalized: bool = False
    """Whether coordinates range from 0 to 1."""
    read: str = "element"
    """"normalized" where whole numbers are read as floats from 0 to 1."""
    memory: str = "array"
    """"linear" is what `tex1Dfetch` reads."""

    @property
    def texel_bytes(self) -> int:
        """Return the size of one texel in bytes."""
        return TEXEL_TYPE_BYTES[self.type] * self.channels

    @property
    def rows(self) -> int:
        """Return the height in texels; 1 for a one-dimensional texture."""
        return self.size[1] if len(self.size) > 1 else 1

    def check(self, nbytes: int) -> None:
        """Raise LaunchError, with a reason, for values that the hardware does not support."""
        noun = "surface" if self.is_surface else "texture"
        integers, message = self.type in ("i32", "u8"), ""
        if self.memory == "array" and any(
            n > limit for n, limit in zip(self.size, MAX_SIZES[len(self.size)], strict=False)
        ):
            limits = list(MAX_SIZES[len(self.size)])[: len(self.size)]
            message = f"size = {list(self.size)} is too large; use at most {limits} texels"
        elif min(self.size) < 1 or self.size[0] * self.rows * self.texel_bytes > nbytes:
            message = (
                f"{list(self.size)} texels of {self.texel_bytes} bytes do not fit into the {nbytes} bytes of "
                f"'{self.tensor}'; choose a size of at least 1 that fits"
            )
        elif self.memory == "linear" and (len(self.size) > 1 or self.filter == "linear" or self.normalized):
            message = (
                "memory = 'linear' allows only one dimension, filter = 'point' and normalized = false; change them, or "
                "use memory = 'array'"
            )
        elif self.read == "normalized" and self.type != "u8":
            message = f"read = 'normalized' is not allowed for {self.type}; use read = 'element', or a tensor of u8"
        elif self.filter == "linear" and integers and self.read == "element":
            message = (
                f"filter = 'linear' is not allowed for {self.type} with read = 'element'; use filter = 'point', or a "
                "tensor of u8 with read = 'normalized'"
            )
        elif self.address in ("wrap", "mirror") and not self.normalized:
            message = (
                f"address = '{self.address}' needs normalized = true; set normalized = true, or use address = 'clamp'"
            )
        if message:
            raise LaunchError(f"{noun} '{self.name}': {message}", kind="texture", subject=self.name)


@dataclass(frozen=True)
class TextureTemplate:
    """A texture or surface in a header, with expressions over axes and tunables."""

    name: str
    tensor: str
    size: tuple[str, ...]
    channels: int = 1
    is_surface: bool = False
    normalized: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    """The settings of ALLOWED_MODES that the header states."""

    def evaluated(self, scope: Mapping[str, expression.ExpressionValue], tensors: Sequence[Tensor]) -> Texture:
        """Return the texture with all numbers evaluated; raise UsageError for an unknown tensor or a wrong type."""
        tensor_by_name = {tensor.name: tensor for tensor in tensors}
        if self.tensor not in tensor_by_name:
            raise UsageError(unknown_name("tensor", self.tensor, tensor_by_name, place=f"texture '{self.name}'"))
        dtype = tensor_by_name[self.tensor].dtype
        if dtype not in TEXEL_TYPE_BYTES:
            raise UsageError(
                unknown_name("dtype", dtype, TEXEL_TYPE_BYTES, place=f"texture '{self.name}': '{self.tensor}'")
            )
        size = tuple(int(expression.evaluate(text, scope)) for text in self.size)
        fields = dict(self.settings)
        return Texture(
            self.name,
            self.tensor,
            dtype,
            size,
            self.channels,
            self.is_surface,
            fields.get("filter", "point"),
            fields.get("address", "clamp"),
            self.normalized,
            fields.get("read", "element"),
            fields.get("memory", "array"),
        )
