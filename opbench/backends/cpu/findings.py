"""The runtime's reports as findings: which buffer, which line, which thread."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from opbench.backends.base import Dim3, Finding
from opbench.backends.cpu.buffer import CpuBuffer
from opbench.backends.cpu.library import Report
from opbench.backends.cpu.toolchain import INCLUDE

FAULT, STACK_OVERFLOW, SHARED_OVERRUN, DIVERGENT_BARRIER, WARP_MASK, DEADLOCK, TRAP, ARITHMETIC = range(1, 9)
KINDS = {
    FAULT: "out_of_bounds",
    STACK_OVERFLOW: "stack_overflow",
    SHARED_OVERRUN: "out_of_bounds",
    DIVERGENT_BARRIER: "divergent_barrier",
    WARP_MASK: "warp_mask",
    DEADLOCK: "deadlock",
    TRAP: "trap",
    ARITHMETIC: "trap",
}
NEAR = 1 << 30
"""An address farther than this from every buffer is not said to belong to one."""
FRAME = re.compile(r"(?:^|.* at )(/.*?):(\d+)(?: |$)")


@dataclass
class LaunchLog:
    """What findings need to know of the launches: each tag's kernel and module, and the buffers in use."""

    kernels: list[tuple[str, Path]] = field(default_factory=list)
    buffers: list[CpuBuffer] = field(default_factory=list)

    def register(self, kernel: str, module: Path) -> int:
        """A number under which the runtime's reports name this kernel."""
        if (kernel, module) not in self.kernels:
            self.kernels.append((kernel, module))
        return self.kernels.index((kernel, module))


def to_findings(reports: Iterable[Report], log: LaunchLog) -> list[Finding]:
    """Name each report's buffer and line."""
    return [_finding(report, log) for report in reports]


def _finding(report: Report, log: LaunchLog) -> Finding:
    kernel, module = log.kernels[report.tag]
    file, line = report.file.decode(errors="replace"), report.line
    if not line and report.program_counter:
        file, line = symbolise(module, report.program_counter)
    buffer, offset = _place(report, log.buffers) if report.kind == FAULT else ("", None)
    return Finding(
        kind=KINDS[report.kind],
        message=_message(report, buffer, offset),
        file=file if line else "",
        line=line,
        kernel=kernel,
        block=_dim3(report.block),
        thread=_dim3(report.thread),
        buffer=buffer,
        offset=offset,
        count=report.count,
    )


def _place(report: Report, buffers: Iterable[CpuBuffer]) -> tuple[str, int | None]:
    nearest = min(buffers, key=lambda buffer: buffer.distance(report.address), default=None)
    if nearest is None or nearest.distance(report.address) > NEAR:
        return "", None
    return nearest.name, int(report.address) - nearest.address


def _message(report: Report, buffer: str, offset: int | None) -> str:
    text: str = report.text.decode(errors="replace")
    if report.kind == FAULT:
        return "memory access at " + (
            f"byte {offset} of buffer '{buffer}'" if buffer else f"{report.address:#x}, far away"
        )
    if report.kind == WARP_MASK and report.other_line:
        return f"{text}, of lines {report.line} and {report.other_line}"
    messages = {
        STACK_OVERFLOW: "a thread's local arrays and calls need more than its 256 KiB of stack",
        SHARED_OVERRUN: f"shared memory written at byte {report.address}, behind the dynamic array's end",
        DIVERGENT_BARRIER: f"lanes of a warp wait at barriers of lines {report.other_line} and {report.line}",
        ARITHMETIC: "integer division by zero, or of the least integer by -1; a GPU yields an unspecified value",
    }
    return messages.get(report.kind, text)


def symbolise(module: Path, program_counter: int) -> tuple[str, int]:
    """The innermost line outside of the shim; ("", 0) where addr2line is missing or knows nothing."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return "", 0
    command = [tool, "-i", "-e", str(module), hex(program_counter)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return "", 0
    for frame in answer.stdout.splitlines():
        match = FRAME.match(frame.strip())
        if match and not match.group(1).startswith(str(INCLUDE)) and int(match.group(2)):
            return match.group(1), int(match.group(2))
    return "", 0


def _dim3(value: Iterable[int]) -> Dim3:
    x, y, z = value
    return x, y, z
