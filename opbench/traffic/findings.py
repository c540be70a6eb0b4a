"""What a memory check or the runtime saw while a kernel ran."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from opbench.catalog.launch import Dim3


@dataclass(frozen=True)
class Finding:
    """Something a memory check or the runtime saw while a kernel ran."""

    kind: str
    message: str
    file: str = ""
    line: int = 0
    kernel: str = ""
    block: Dim3 | None = None
    thread: Dim3 | None = None
    buffer: str = ""
    offset: int | None = None
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The fields that are set."""
        return {k: v for k, v in asdict(self).items() if v not in ("", None, 0)}
