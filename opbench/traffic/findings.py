"""What a memory check or the runtime saw while a kernel ran."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import PurePath

from opbench.catalog.launch import Dim3
from opbench.traffic.rules import Rule, rule_of


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
    called_from: int = 0
    """Of a line of a header or helper: the line of the kernel's own file that calls it; 0 where there is none."""
    hint: bool = False
    """Whether it condemns no kernel by itself, and only explains a wrong result."""

    @property
    def rule(self) -> Rule:
        """The rule that it breaks, with its printed name, title and remedy."""
        return rule_of(self.kind)

    @property
    def place(self) -> str:
        """Such as "line 12"; empty where no line is known."""
        return place_words(self.file, self.line, self.called_from) if self.line else ""

    def to_json(self) -> dict[str, object]:
        """The fields that are set."""
        return {k: v for k, v in asdict(self).items() if v not in ("", None, 0)}


def place_words(file: str, line: int, called_from: int = 0) -> str:
    """Such as "line 12", or "line 57 through tile.cuh:20" for a header's line that the kernel's line 57 calls."""
    return f"line {called_from} through {PurePath(file).name}:{line}" if called_from else f"line {line}"
