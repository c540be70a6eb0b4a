"""Findings of a check or of the runtime: rule, source position, message and remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import PurePath

from opbench.backend.rules import rule_of
from opbench.kernels.launch import Dim3
from opbench.paths import path_from_here
from opbench.records import JSON

KERNEL_SUFFIX = ".cu"


@dataclass(frozen=True)
class RelatedLocation:
    """A second source position of a finding, such as the other access of a race."""

    message: str
    """What happened there, such as "written by thread (1,0,0)"."""
    file: str
    line: int
    column: int = 0
    called_from: int = 0
    source: str = ""
    """The text of the line."""


@dataclass(frozen=True)
class Finding:
    """An error of a kernel, or a note about it, with its rule, source position and remedy."""

    kind: str
    message: str
    """What happened: one short sentence without source position, block and thread."""
    file: str = ""
    line: int = 0
    kernel: str = ""
    block: Dim3 | None = None
    thread: Dim3 | None = None
    buffer: str = ""
    offset: int | None = None
    count: int = 1
    called_from: int = 0
    """For a line of a header or helper: the line of the kernel's own file that calls it; 0 where there is none."""
    hint: bool = False
    """Whether the finding only explains a wrong result and does not make a kernel wrong by itself."""
    column: int = 0
    """From 1 on, as the compiler counts; 0 where it is not known."""
    kernel_file: str = ""
    """The file with the line `called_from`, if `file` is another file."""
    source: str = ""
    """The text of `line` when the finding was made: the file may change later."""
    caller_source: str = ""
    """The text of `called_from` in `kernel_file`."""
    details: tuple[str, ...] = ()
    """Further sentences, such as the exact access, or which threads wait for what."""
    related: tuple[RelatedLocation, ...] = ()
    pattern: str = ""
    """For a wrong result: the name of the pattern of the wrong elements; empty if none matches."""
    rule: str = ""
    """The name of the rule, such as "shared-race"; from `kind` by default."""
    remedy: str = ""
    """How to correct it; by default the rule's own remedy."""

    def __post_init__(self) -> None:
        own_rule = rule_of(self.kind)
        object.__setattr__(self, "rule", self.rule or own_rule.name)
        object.__setattr__(self, "remedy", self.remedy or own_rule.remedy)

    @property
    def place(self) -> str:
        """Return the line of the finding as text, such as "line 12"; empty for an unknown line."""
        return place_text(self.file, self.line, self.called_from) if self.line else ""

    @property
    def location_to_show(self) -> tuple[str, int, int]:
        """Return file, line and column: of the kernel's own line that calls a header, else of the finding's line."""
        if self.kernel_file and self.called_from:
            return self.kernel_file, self.called_from, 0
        return self.file, self.line, self.column

    @property
    def source_to_show(self) -> str:
        """Return the source text of the line that `location_to_show` names."""
        return self.caller_source if self.kernel_file and self.called_from else self.source

    @property
    def block_and_thread(self) -> str:
        """Return the block and thread as text, such as "block (0,0,0) thread (224,0,0)"; empty if unknown."""
        block = f"block {triple_text(self.block)}" if self.block is not None else ""
        thread = f"thread {triple_text(self.thread)}" if self.thread is not None else ""
        return " ".join(filter(None, (block, thread)))

    def to_json(self) -> dict[str, JSON]:
        """Return the fields that are set, as JSON data."""
        return {k: v for k, v in asdict(self).items() if v not in ("", None, 0, ())}


def headline(finding: Finding) -> str:
    """Return a finding in one line: "my.cu:12: shared-race: …, block (0,0,0) thread (1,0,0)"."""
    thread_text = f", {finding.block_and_thread}" if finding.block_and_thread else ""
    return f"{place_and_message(finding, path_from_here(finding.location_to_show[0]))}{thread_text}"


def place_and_message(finding: Finding, shown_file: str) -> str:
    """Return a finding as "my.cu:12: shared-race: …"; `shown_file` is the file's name to print."""
    file, line, _ = finding.location_to_show
    prefix = f"{shown_file}:{line}: " if file and line else f"{shown_file}: " if file else ""
    header_location = f", in {PurePath(finding.file).name}:{finding.line}" if file != finding.file else ""
    return f"{prefix}{finding.rule}: {finding.message}{header_location}"


def place_text(file: str, line: int, called_from: int = 0) -> str:
    """Return "line 12", or "line 57 (in tile.cuh:20)" for a header's line that the kernel's line 57 calls."""
    return f"line {called_from} (in {PurePath(file).name}:{line})" if called_from else f"line {line}"


def triple_text(value: Dim3) -> str:
    """Format a triple, such as "(224,0,0)"."""
    return f"({','.join(map(str, value))})"
