"""Read Nsight Compute's source page as CSV: the samples of each instruction, and the source line of each.

`ncu --page source --csv --print-source sass` prints each instruction once, with the samples. `--print-source cuda,sass`
prints source lines with the instructions of each, so it only gives the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opbench.errors import EnvironmentFault
from opbench.insight.nsight.parse import cell_number
from opbench.insight.stalls import find_stall

UNLISTED = "unlisted"
"""Samples of a reason without a column: Nsight Compute 2025.3 counts waits at warpgroup_arrive, but lists none."""
NOT_ISSUED = "(Not Issued)"
TITLES = ("File Path", "File Name", "Function Name", "Kernel Name")
"""First cells of the rows of two cells that precede a table."""


@dataclass(frozen=True)
class SampledInstruction:
    """One SASS instruction with the samples of warps that were about to execute it."""

    address: int
    text: str
    samples: Mapping[str, int] = field(default_factory=dict)
    """Samples by reason, a key of `opbench.insight.stalls.STALLS` or, if the table lacks it, the profiler's name;
    without reasons that have none. `UNLISTED` counts samples whose reason has no column."""
    count: int = 0
    """All samples as the profiler counts them; equals the sum of `samples` in a complete report."""
    executed: int = 0
    """How often warps executed it."""
    threads: int = 0
    """How often threads executed it: the sum of active threads over all executions by warps."""
    file: str = ""
    line: int = 0
    """0 if no source line is known."""

    def __add__(self, other: SampledInstruction) -> SampledInstruction:
        """Add the samples of another launch of the same code."""
        reasons = dict.fromkeys([*self.samples, *other.samples])
        return replace(
            self,
            samples={reason: self.samples.get(reason, 0) + other.samples.get(reason, 0) for reason in reasons},
            count=self.count + other.count,
            executed=self.executed + other.executed,
            threads=self.threads + other.threads,
        )


@dataclass(frozen=True)
class SampledKernel:
    """The instructions of one kernel, with the samples of all its launches, and the source text by file and line."""

    name: str
    instructions: tuple[SampledInstruction, ...]
    sources: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    launches: int = 1


def read_sampled(text: str) -> list[SampledKernel]:
    """Return the kernels of ncu's source page (`--print-source sass`); the samples of a kernel's launches are added.

    Raises EnvironmentFault if there is no table of samples.
    """
    kernels: dict[tuple[str, tuple[str, ...]], SampledKernel] = {}
    for table in _tables(text):
        instructions = [_instruction(table, row) for row in table.rows if _address(row[table.address]) is not None]
        if not instructions:
            continue
        name = table.titles.get("Kernel Name") or table.titles.get("Function Name", "")
        key = name, tuple(kernel.text for kernel in instructions)
        previous_kernel = kernels.get(key)
        if previous_kernel is None:
            kernels[key] = SampledKernel(name, tuple(instructions))
        else:
            summed = tuple(
                first + second for first, second in zip(previous_kernel.instructions, instructions, strict=True)
            )
            kernels[key] = replace(previous_kernel, instructions=summed, launches=previous_kernel.launches + 1)
    if not kernels:
        raise EnvironmentFault(
            "ncu printed no samples of warps; see the report with: ncu --import FILE --page source --print-source sass",
            kind="no-samples",
            subject="ncu",
        )
    return list(kernels.values())


def with_lines(kernels: Sequence[SampledKernel], text: str) -> list[SampledKernel]:
    """Return the kernels with the source lines of `--print-source cuda,sass`.

    An instruction that the page shows under several lines keeps the first. Without a table nothing changes: the program
    was compiled without line information.
    """
    line_by_instruction: dict[tuple[str, int], tuple[str, int]] = {}
    sources: dict[str, dict[int, str]] = {}
    for table in _tables(text):
        if table.line is None:
            continue
        file = table.titles.get("File Path") or table.titles.get("File Name", "")
        function = table.titles.get("Function Name") or table.titles.get("Kernel Name", "")
        line = 0
        for row in table.rows:
            if row[table.line].strip().isdigit():
                line = int(row[table.line])
                sources.setdefault(file, {})[line] = row[table.line + 1].rstrip()
            address = _address(row[table.address])
            if address is not None and line:
                line_by_instruction.setdefault((function, address), (file, line))
                line_by_instruction.setdefault(("", address), (file, line))
    return [_locate(kernel, line_by_instruction, sources) for kernel in kernels]


def with_texts(kernel: SampledKernel, read_text: Callable[[str], str | None]) -> SampledKernel:
    """Return the kernel with the whole text of each source file, because the page lists only lines with instructions.

    `read_text` returns the text of a file, or None. A text without the listed lines is another version and is not used.
    """
    sources = {}
    for file, listed_lines in kernel.sources.items():
        lines = dict(enumerate((read_text(file) or "").splitlines(), start=1))
        matches = all(lines.get(number, "").strip() == text.strip() for number, text in listed_lines.items())
        sources[file] = lines if lines and matches else listed_lines
    return replace(kernel, sources=sources)


def _locate(
    kernel: SampledKernel,
    line_by_instruction: Mapping[tuple[str, int], tuple[str, int]],
    sources: Mapping[str, Mapping[int, str]],
) -> SampledKernel:
    """Return the kernel with the source line of each instruction, and with the text of these lines only."""
    located = []
    for instruction in kernel.instructions:
        file, line = (
            line_by_instruction.get((kernel.name, instruction.address))
            or line_by_instruction.get(("", instruction.address))
            or ("", 0)
        )
        located.append(replace(instruction, file=file, line=line))
    files = {instruction.file for instruction in located}
    return replace(
        kernel, instructions=tuple(located), sources={file: lines for file, lines in sources.items() if file in files}
    )


@dataclass(frozen=True)
class _Table:
    """One table of the page with the titles above it."""

    titles: Mapping[str, str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    address: int
    line: int | None

    def column(self, *names: str) -> int | None:
        """Return the first column with one of the names."""
        return next((self.header.index(name) for name in names if name in self.header), None)


def _tables(text: str) -> Iterator[_Table]:
    """Yield every table with the titles above it; a table without titles has those of the previous table."""
    titles: dict[str, str] = {}
    header: list[str] = []
    rows: list[list[str]] = []

    def finish() -> Iterator[_Table]:
        if header:
            line = header.index("Line No") if "Line No" in header else None
            yield _Table(dict(titles), header, rows, header.index("Address"), line)

    for row in map(_cells, text.splitlines()):
        if len(row) == 2 and row[0] in TITLES:
            yield from finish()
            header, rows = [], []
            titles[row[0]] = row[1]
        elif "Address" in row and "Source" in row:
            yield from finish()
            header, rows = row, []
        elif header and len(row) >= len(header):
            # Quotes in source text are not escaped, so a line of source may look like several cells.
            surplus = len(row) - len(header)
            rows.append([row[0], '","'.join(row[1 : 2 + surplus]), *row[2 + surplus :]])
    yield from finish()


def _cells(line: str) -> list[str]:
    """Split a line in which every cell is quoted; other lines, such as messages of the tool, have no cells."""
    line = line.rstrip().rstrip(",")
    return line[1:-1].split('","') if line.startswith('"') and line.endswith('"') else []


def _instruction(table: _Table, row: Sequence[str]) -> SampledInstruction:
    """Return the SASS instruction, with its samples, in a row of the source page."""
    samples: dict[str, int] = {}
    for name, cell in zip(table.header, row, strict=True):
        if name.startswith("stall_") and not name.endswith(NOT_ISSUED) and (value := _count(cell)):
            stall = find_stall(name)
            samples[stall.name if stall else name.removeprefix("stall_")] = value
    count = _cell(table, row, "# Samples", "Warp Stall Sampling (All Samples)", "Warp Stall Sampling (All Cycles)")
    if (unlisted_samples := count - sum(samples.values())) > 0:
        samples[UNLISTED] = unlisted_samples
    return SampledInstruction(
        address=_address(row[table.address]) or 0,
        text=row[table.address + 1].strip(),
        samples=samples,
        count=count,
        executed=_cell(table, row, "Instructions Executed"),
        threads=_cell(table, row, "Thread Instructions Executed"),
    )


def _cell(table: _Table, row: Sequence[str], *names: str) -> int:
    """Return the number in the first column with one of the names; 0 without such a column."""
    column = table.column(*names)
    return _count(row[column]) if column is not None else 0


def _count(cell: str) -> int:
    """Return the integer in a cell of the source page; 0 if the cell has no number."""
    return int(cell_number(cell) or 0)


def _address(cell: str) -> int | None:
    """Return an address, which ncu prints as 0x7f…; None for another cell."""
    stripped_cell = cell.strip()
    try:
        return (
            int(stripped_cell, 16)
            if stripped_cell.lower().startswith("0x")
            else int(stripped_cell)
            if stripped_cell.isdigit()
            else None
        )
    except ValueError:
        return None
