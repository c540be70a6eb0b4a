"""Write tensors, also bf16 ones, as a .safetensors file in the plain form that the shipped programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from opbench.records import JSON

SAFETENSORS_TYPES = {
    "f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16", "e4m3": "F8_E4M3", "e5m2": "F8_E5M2", "i32": "I32",
    "i8": "I8", "u8": "U8",
}  # fmt: skip
"""The name of each dtype in the .safetensors format."""
ALIGNMENT = 8
"""The header's length is a multiple of this number of bytes."""


class TensorFile:
    """A .safetensors file in memory, to which tensors are added one by one."""

    def __init__(self) -> None:
        self._descriptions: dict[str, JSON] = {}
        self._contents: list[bytes] = []
        self._end = 0

    def add(self, name: str, array: np.ndarray, dtype: str) -> None:
        """Add a tensor: its array in its stored form (bf16 as 16-bit integers), and its dtype."""
        content = np.ascontiguousarray(array).tobytes()
        begin, self._end = self._end, self._end + len(content)
        self._descriptions[name] = {
            "dtype": SAFETENSORS_TYPES[dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, self._end],
        }
        self._contents.append(content)

    def to_bytes(self, metadata: Mapping[str, str]) -> bytes:
        """Return the bytes of the file; `metadata` goes into its header."""
        header = json.dumps({"__metadata__": dict(metadata), **self._descriptions}, separators=(",", ":")).encode()
        header += b" " * (-len(header) % ALIGNMENT)
        return b"".join((len(header).to_bytes(8, "little"), header, *self._contents))
