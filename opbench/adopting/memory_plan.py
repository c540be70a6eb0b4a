"""Plan the run of a file without an operator: its launches, at sizes that take about a second."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench.adopting.file_facts import FileFacts, LaunchedKernel, read_file
from opbench.adopting.host_launches import number_of, value_until
from opbench.adopting.memory_proposal import propose_memory
from opbench.adopting.proposal import Proposal
from opbench.errors import UsageError, unknown
from opbench.kernels import expression
from opbench.kernels.case import is_named
from opbench.kernels.header import has_memory_header, read_memory_header
from opbench.kernels.launch import BuildRequest, Dim3, KernelLaunch
from opbench.kernels.memory_header import BufferTemplate, MemoryHeader
from opbench.kernels.scalar import ELEMENT_BYTES, Argument, BufferAddress, Scalar, Struct
from opbench.kernels.variant import LaunchTemplate
from opbench.source.c_expression import UnsupportedExpression, tokens_of
from opbench.source.names import plain_kernel
from opbench.source.tokens import Token, closing_bracket

REDUCED_ACCESSES = 1 << 20
"""Threads, times the largest size where a kernel loops, up to which every access of a launch takes a few seconds."""
MIN_REDUCED_SIZE = 32
"""No size is reduced below this one."""
ASSUMED_ELEMENTS = 1 << 20
"""Elements of a buffer whose size the header does not say, at least: more than the assumed sizes reach."""
UNKNOWN_PER_THREAD, MOST_UNKNOWN = 4, 1 << 25
"""Elements of such a buffer for each thread of the largest launch, and the most of them."""
MAX_BYTES = 1 << 28
DIVISORS = re.compile(r"cdiv\([^,]*, (\w+)\)|// (\w+)")
"""What a grid divides sizes by."""
MAX_TILE = 1024
MAX_HALVINGS = 64
"""Halvings of sizes that are tried."""


@dataclass(frozen=True)
class PlannedBuffer:
    """A buffer that the launches need."""

    name: str
    elements: int
    dtype: str
    content: str
    """ "random", "zero", or "uninitialised" of memory that nobody fills before a kernel does."""
    is_bounded: bool = True
    """Whether its size is the file's, so that an access beyond it is a fault."""


@dataclass(frozen=True)
class MemoryPlan:
    """The launches of a file with all numbers evaluated."""

    path: Path
    kernels: tuple[str, ...]
    launches: tuple[KernelLaunch, ...]
    buffers: tuple[PlannedBuffer, ...]
    sizes: Mapping[str, int]
    """The header's sizes, with their values in this run."""
    notes: tuple[str, ...] = ()
    """The assumptions and the reduced sizes of this run, for the user."""
    include: tuple[Path, ...] = ()
    data_lines: frozenset[int] = frozenset()
    """Lines of the file whose indices come from what a buffer holds: random numbers say nothing of their bounds."""
    scatter_lines: frozenset[int] = frozenset()
    """Those of them that store at such an index and do not update: random numbers do not say that two are the same."""
    edits: tuple[tuple[int, int, str], ...] = ()
    """Pieces of the file's text, by first and last character, with the reduced size that stands there in this run."""

    @property
    def threads(self) -> int:
        """Return the number of CUDA threads in all launches."""
        return sum(math.prod((*launch.grid, *launch.block)) for launch in self.launches)

    @property
    def name(self) -> str:
        """Return the name of the run in results and for `--case`, such as "memory/bias_gelu(rows=64)"."""
        sizes = ",".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"memory/{self.path.stem}" + (f"({sizes})" if sizes else "")

    @property
    def array_bytes(self) -> int:
        """Return the size in bytes of all buffers; 0 if the size of one is unknown."""
        known = all(buffer.is_bounded for buffer in self.buffers)
        return sum(buffer.elements * ELEMENT_BYTES[buffer.dtype] for buffer in self.buffers) if known else 0

    def request(self, source: Path | None = None) -> BuildRequest:
        """Return the build request of the file, or of `source`, a copy of the file with reduced sizes."""
        include = (self.path.parent.resolve(), *self.include) if source else self.include
        return BuildRequest(source or self.path.resolve(), self.kernels, (), "", include)

    def text(self) -> str:
        """Return the file's text with reduced sizes; line numbers do not change."""
        text = self.path.read_bytes().decode(errors="replace")  # with the ends of lines by which edits count
        for start, end, number in sorted(self.edits, reverse=True):
            text = text[:start] + number + text[end:]
        return text


@dataclass(frozen=True)
class MemoryPlans:
    """A file's launches at reduced sizes and at the file's own sizes."""

    reduced: MemoryPlan
    full: MemoryPlan | None = None
    """None where nothing was reduced."""
    growth: float = 1.0
    """How many times as many accesses the full run may make."""

    def is_named(self, pattern: str) -> bool:
        """Return whether a `--case` pattern matches the reduced or the full run."""
        return any(is_named(plan.name, pattern) for plan in (self.reduced, self.full) if plan)


def plan_of(path: Path, include: Sequence[Path] = (), sizes: Mapping[str, int] | None = None) -> MemoryPlans:
    """Plan the launches of a file by its header without an operator, or by the one that `adopt` would propose.

    `sizes` are values of the header's sizes, and elements of its buffers, by name. Raises UsageError if there
    is nothing to launch, or if a size is unknown: the message names the option to pass.
    """
    given_sizes = dict(sizes or {})
    if has_memory_header(path):
        return plans_of(_with_sizes(read_memory_header(path, include), given_sizes), given_sizes)
    return proposed_plan(path, include, given_sizes)[1]


def proposed_plan(
    path: Path, include: Sequence[Path] = (), sizes: Mapping[str, int] | None = None
) -> tuple[Proposal, MemoryPlans]:
    """Return the header without an operator that `adopt` would propose, and its plan; raise errors as `plan_of`."""
    given_sizes = dict(sizes or {})
    proposal = propose_memory(read_file(path, include), given_sizes)
    return proposal, plans_of(read_memory_header(path, include, proposal.text), given_sizes)


def plans_of(header: MemoryHeader, size_names: Collection[str] = ()) -> MemoryPlans:
    """Return the plans of a header at reduced and at full sizes; sizes in `size_names` are never reduced."""
    return _Planner(header, frozenset(size_names), dict(header.sizes)).plans()


def _with_sizes(header: MemoryHeader, given: Mapping[str, int]) -> MemoryHeader:
    """Return the header with other sizes, and other numbers of elements of buffers."""
    names = {buffer.name for buffer in header.buffers}
    for name in given:
        if name not in header.sizes and name not in names:
            known = {*header.sizes, *names}
            raise UsageError(unknown("size of the header", name, known, where=f"{header.path}: --size"))
    sizes = {name: given.get(name, value) for name, value in header.sizes.items()}
    buffers = tuple(
        replace(buffer, elements=str(given[buffer.name]))
        if buffer.name in given and buffer.name not in sizes
        else buffer
        for buffer in header.buffers
    )
    return replace(header, sizes=sizes, buffers=buffers)


@dataclass
class _Planner:
    """Evaluate all expressions of a header, and reduce sizes until a run takes about a second."""

    header: MemoryHeader
    given: frozenset[str]
    values: dict[str, int]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        file = FileFacts(self.header.path, self.header.sources)
        self.text = file.sources[0].text
        of_device = {name for declaration in file.declarations if declaration.is_device for name in declaration.uses}
        self.fixed = of_device & file.constants.keys()
        """Names that the kernels' own code uses, too: macros and constants."""
        self.reads: list[LaunchedKernel] = []
        for step in self.launches:
            name = plain_kernel(step.kernel)
            if name not in file.kernels:
                raise UsageError(unknown("kernel", name, file.kernels, where=f"{self.header.path}: launch"))
            self.reads.append(file.read(name, None))

    @property
    def launches(self) -> list[LaunchTemplate]:
        """Return the launches of kernels, without steps that fill a buffer."""
        return [step for step in self.header.launch if step.kernel]

    def plans(self) -> MemoryPlans:
        """Return the plans at reduced and at full sizes."""
        self._note_unbounded()
        own, notes = dict(self.values), list(self.notes)
        before = self._reduce()
        reduced = self._plan()
        if not before:
            return MemoryPlans(reduced)
        growth = math.prod(before[name] / self.values[name] for name in before)
        self.values, self.notes = own, notes
        full = self._plan() if self._work() < math.inf else None
        return MemoryPlans(reduced, full, growth)

    def _plan(self) -> MemoryPlan:
        launches = tuple(map(self._launch, self.header.launch))
        kernels = tuple(dict.fromkeys(launch.kernel for launch in launches if launch.kernel))
        reached = {name for launch in launches for name in launch.buffers()}
        used = tuple(self._buffer(buffer) for buffer in self.header.buffers if buffer.name in reached)
        indexed, scattered = self._data_lines({b.name for b in used if b.content == "random"})
        notes = tuple(dict.fromkeys(self.notes))
        edits = tuple(self._edits())
        path, include = self.header.path, self.header.include
        return MemoryPlan(path, kernels, launches, used, dict(self.values), notes, include, indexed, scattered, edits)

    def _data_lines(self, random: set[str]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the lines whose index or loop bound comes from a random buffer, and those that store there."""
        indexed: set[int] = set()
        scattered: set[int] = set()
        for step, read in zip(self.launches, self.reads, strict=True):
            pointers: set[str] = set()
            for group, argument in zip(read.groups, step.args or (), strict=False):
                fields = argument.fields if isinstance(argument, Struct) else (argument,)
                pointers |= {p.name for (p, _), field in zip(group.fields, fields, strict=False) if field in random}
            for at, is_store in data_indices(read.kernel.tokens, pointers):
                line = self.text.count("\n", 0, at) + 1
                indexed.add(line)
                scattered |= {line} if is_store else set()
        return frozenset(indexed), frozenset(scattered)

    # Numbers ------------------------------------------------------------------------------------------------------

    def _number(self, text: str, what: str) -> int:
        try:
            return int(expression.evaluate(text, self.values))
        except UsageError as error:
            raise UsageError(f"{self.header.path}: {what}: {error}", cause=error) from None

    def _geometry(self, step: LaunchTemplate) -> tuple[Dim3, Dim3]:
        sides = []
        for name, given in (("grid", step.grid), ("block", step.block)):
            numbers = [self._number(part, f"{name} of {step.kernel}") for part in given]
            x, y, z = (*numbers, 1, 1, 1)[:3]
            sides.append((x, y, z))
        return sides[0], sides[1]

    def _elements(self, buffer: BufferTemplate) -> int:
        if not buffer.elements:
            threads = max(math.prod((*grid, *block)) for grid, block in map(self._geometry, self.launches))
            return max(ASSUMED_ELEMENTS, min(MOST_UNKNOWN, UNKNOWN_PER_THREAD * threads))
        return max(1, self._number(buffer.elements, f"elements of buffer '{buffer.name}'"))

    # Less work ----------------------------------------------------------------------------------------------------

    def _work(self) -> float:
        """Estimate the number of accesses of all launches; infinite if the buffers need too much memory.

        A launch counts its threads, times the largest size if its kernel has a loop.
        """
        work = 0.0
        for step, read in zip(self.launches, self.reads, strict=True):
            grid, block = self._geometry(step)
            loops = bool({"for", "while", "do"} & {token.text for token in read.kernel.tokens})
            largest = max((self.values[name] for name in self._reducible()), default=1) if loops else 1
            work += math.prod(grid) * math.prod(block) * max(1, largest)
        known = [buffer for buffer in self.header.buffers if buffer.elements]
        size = sum(self._elements(buffer) * ELEMENT_BYTES[buffer.type] for buffer in known)
        return work if size <= MAX_BYTES else math.inf

    def _reducible(self) -> list[str]:
        """Return the sizes that may be reduced: no block's shape depends on them, and the kernel's text can change."""
        shapes: set[str] = set()
        for step in self.launches:
            for text in (*step.block, step.shared):
                shapes |= expression.names(text)
        return [
            name
            for name, value in self.values.items()
            if value > MIN_REDUCED_SIZE
            and name not in shapes
            and name not in self.given
            and (name not in self.fixed or self._place(name) is not None)
        ]

    def _place(self, name: str) -> tuple[int, int] | None:
        """Return start and end of the value of a macro or constant in the text; None if it is absent or ambiguous."""
        patterns = (
            rf"#[ \t]*define[ \t]+{name}[ \t]+([^\n/]*[^\s/])",
            rf"\b{name}[ \t]*=[ \t]*([^;,}}\n]+?)[ \t]*[;,}}\n]",
        )
        code = re.sub(r"(?m)^[ \t]*//.*$", lambda line: " " * len(line[0]), self.text)  # a header has sizes, too
        for pattern in patterns:
            matches = list(re.finditer(pattern, code))
            if len(matches) == 1:
                return matches[0].span(1)
        return None

    def _reduce(self) -> dict[str, int]:
        """Reduce the largest sizes until the work is small; return the reduced sizes with their original values."""
        before: dict[str, int] = {}
        sides = {side for step in self.launches for side in self._geometry(step)[1] if side > 1}
        for first, second in (pair for step in self.launches for text in step.grid for pair in DIVISORS.findall(text)):
            divisor = int(first or second) if (first or second).isdigit() else self.values.get(first or second, 1)
            sides |= {divisor} if 1 < divisor <= MAX_TILE else set()  # a block's part of the work: no size below it
        for _ in range(MAX_HALVINGS):
            if self._work() <= REDUCED_ACCESSES:
                break
            names = self._reducible()
            for value in sorted({self.values[name] for name in names}, reverse=True):
                less = _reduced_size(value, math.lcm(*sides))
                if less >= MIN_REDUCED_SIZE:
                    alike = [name for name in names if self.values[name] == value]  # sizes that are equal stay so
                    before |= {name: value for name in alike if name not in before}
                    self.values |= dict.fromkeys(alike, less)
                    break
            else:
                break
        if before:
            listed = ", ".join(f"{name} = {self.values[name]} (in the file {v})" for name, v in before.items())
            self.notes.append(f"sizes reduced to take a moment: {listed}")
        return before

    def _edits(self) -> list[tuple[int, int, str]]:
        """Return the replacements in the file's text for sizes that were reduced."""
        result = []
        for name in self.fixed & self.values.keys():
            if (place := self._place(name)) and not self._is_written(place, self.values[name]):
                result.append((*place, str(self.values[name])))
        return result

    def _is_written(self, place: tuple[int, int], value: int) -> bool:
        try:
            return number_of(tokens_of(self.text[place[0] : place[1]]), {}) == value
        except UnsupportedExpression:
            return True  # it follows from other sizes

    # Launches -----------------------------------------------------------------------------------------------------

    def _launch(self, step: LaunchTemplate) -> KernelLaunch:
        if step.zero:
            value = float(Scalar("f64", step.value).bound(self.values).value)
            return KernelLaunch("", (1, 1, 1), (1, 1, 1), 0, (), zero=step.zero, value=value)
        grid, block = self._geometry(step)
        shared = self._number(step.shared, f"shared bytes of {step.kernel}")
        args = tuple(self._argument(argument, step) for argument in step.args or ())
        return KernelLaunch(step.kernel, grid, block, shared, args, cooperative=step.cooperative)

    def _argument(self, argument: str | Scalar | Struct, step: LaunchTemplate) -> Argument:
        if isinstance(argument, BufferAddress):
            buffer = next((buffer for buffer in self.header.buffers if buffer.name == argument.fields[0]), None)
            if buffer is None:
                raise UsageError(f"{self.header.path}: an argument of {step.kernel}: no buffer '{argument.fields[0]}'")
            offset = self._number(str(argument.offset), f"an offset into '{buffer.name}'")
            return BufferAddress(argument.fields, offset * ELEMENT_BYTES[buffer.type])
        if isinstance(argument, Struct):
            return Struct(tuple(self._field(field, step) for field in argument.fields))
        return self._field(argument, step)

    def _field(self, value: str | float | Scalar, step: LaunchTemplate) -> str | int | float | Scalar:
        try:
            if isinstance(value, Scalar):
                return value.bound(self.values)
        except UsageError as error:
            raise UsageError(f"{self.header.path}: an argument of {step.kernel}: {error}", cause=error) from None
        if not isinstance(value, str) or any(buffer.name == value for buffer in self.header.buffers):
            return value
        return self._number(value, f"an argument of {step.kernel}")

    # Buffers ------------------------------------------------------------------------------------------------------

    def _buffer(self, buffer_template: BufferTemplate) -> PlannedBuffer:
        return PlannedBuffer(
            buffer_template.name,
            self._elements(buffer_template),
            buffer_template.type,
            buffer_template.content,
            bool(buffer_template.elements),
        )

    def _note_unbounded(self) -> None:
        free = [buffer.name for buffer in self.header.buffers if not buffer.elements]
        if free:
            flags = " ".join(f"--size {name}=…" for name in free)
            self.notes.append(f"bounds are not checked of {', '.join(free)}, whose sizes are not in the file ({flags})")


def _reduced_size(value: int, step: int) -> int:
    """Return about half of a size; 0 if none is possible.

    A power of 2 stays one, any other keeps its remainder modulo the sides of blocks.
    """
    if value & (value - 1) == 0:
        return value // 2 if (value // 2) % step == 0 or value % step else 0
    half = value // 2 - (value // 2) % step + value % step
    return half if half < value else 0


def data_indices(code: Sequence[Token], pointers: Collection[str]) -> list[tuple[int, bool]]:
    """Return the offset in the text of each index that depends on an element of one of these pointers.

    Each offset comes with whether the code stores a value there that does not depend on the old value.
    """
    tainted: set[str] = set()
    result: list[tuple[int, bool]] = []
    for _ in range(2):  # a loop's later statement may feed an earlier one
        for index, token in enumerate(code):
            is_test = index + 1 < len(code) and code[index + 1].text == "="
            if token.text == "=" and index and code[index - 1].kind == "name" and not is_test:
                value = value_until(code, index + 1)
                if _depends(value, pointers, tainted):
                    tainted.add(code[index - 1].text)
    for index, token in enumerate(code):
        if (
            token.text == "["
            and index
            and _depends(code[index + 1 : (ends := closing_bracket(code, index))], pointers, tainted)
        ):
            after = [other.text for other in code[ends + 1 : ends + 3]]
            is_store = after[:1] == ["="] and after[1:] != ["="]
            again = is_store and any(token.text == code[index - 1].text for token in value_until(code, ends + 2))
            result.append((token.start, is_store and not again))
    return result


def _depends(tokens: Sequence[Token], pointers: Collection[str], tainted: Collection[str]) -> bool:
    loads = any(a.text in pointers and b.text == "[" for a, b in itertools.pairwise(tokens))
    return loads or any(token.text in tainted for token in tokens)
