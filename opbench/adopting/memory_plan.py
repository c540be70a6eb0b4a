"""Plan the run of a file without an operator: its launches, at sizes that take some seconds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench.adopting.host_launches import number_of, value_until
from opbench.adopting.memory_proposal import propose_memory
from opbench.adopting.parsed_file import LaunchedKernel, ParsedFile, read_file
from opbench.adopting.proposal import Proposal
from opbench.errors import UsageError, unknown_name
from opbench.kernels import expression
from opbench.kernels.case import is_named
from opbench.kernels.header import has_memory_header, read_memory_header
from opbench.kernels.launch import BuildRequest, Dim3, KernelLaunch
from opbench.kernels.memory_header import BufferTemplate, MemoryHeader
from opbench.kernels.scalar import ELEMENT_BYTES, Argument, BufferAddress, Scalar, Struct
from opbench.kernels.variant import LaunchTemplate
from opbench.paths import next_command
from opbench.source.c_expression import UnsupportedExpression, tokens_of
from opbench.source.names import plain_kernel
from opbench.source.tokens import Token, closing_bracket

REDUCED_ACCESSES = 1 << 20
"""Sizes are reduced until a run makes at most this estimated number of accesses, which takes some seconds."""
MIN_REDUCED_SIZE = 32
"""No size is reduced below this one."""
ASSUMED_ELEMENTS = 1 << 20
"""The smallest number of elements of a buffer without a size in the header: more than assumed sizes can index."""
ASSUMED_ELEMENTS_PER_THREAD, MAX_ASSUMED_ELEMENTS = 4, 1 << 25
"""Elements of a buffer without a size: for each thread of the largest launch, and the greatest number in all."""
MAX_BUFFER_BYTES = 1 << 28
"""The largest size of all buffers together with which a file runs at its own sizes."""
DIVISORS = re.compile(r"cdiv\([^,]*, (\w+)\)|// (\w+)")
"""The divisors of sizes in a grid's expressions."""
MAX_DIVISOR = 1024
"""The largest divisor in a grid that is taken for a tile; reduced sizes stay multiples of tiles."""
MAX_HALVINGS = 64
"""The greatest number of times that sizes are halved."""


@dataclass(frozen=True)
class PlannedBuffer:
    """A buffer with its size and its content before the first launch."""

    name: str
    elements: int
    dtype: str
    content: str
    """The content before the first launch: "random", "zero" or "uninitialised"."""
    is_bounded: bool = True
    """Whether the file gives the size, so that an access outside of the buffer is an error."""


@dataclass(frozen=True)
class MemoryPlan:
    """The launches and buffers of a file, with all expressions evaluated."""

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
    """Lines with an index from a buffer with random content: their bounds cannot be checked."""
    scatter_lines: frozenset[int] = frozenset()
    """Lines that store at an index from a buffer with random content: two threads can have the same index."""
    edits: tuple[tuple[int, int, str], ...] = ()
    """Replacements in the file's text: first and last character, and the reduced size in this run."""

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
        """Return the file's text with reduced sizes; every line keeps its number."""
        text = self.path.read_bytes().decode(errors="replace")  # `edits` count the characters of line ends, too.
        for start, end, number in sorted(self.edits, reverse=True):
            text = text[:start] + number + text[end:]
        return text


@dataclass(frozen=True)
class MemoryPlans:
    """A file's launches at reduced sizes and at the file's own sizes."""

    reduced: MemoryPlan
    full: MemoryPlan | None = None
    """None if no size was reduced, or if the buffers would need too much memory."""
    growth: float = 1.0
    """The estimated accesses of the full run divided by those of the reduced run, at most."""

    def is_named(self, pattern: str) -> bool:
        """Return whether a `--case` pattern matches the reduced or the full run."""
        return any(is_named(plan.name, pattern) for plan in (self.reduced, self.full) if plan)


def plan_of(path: Path, include: Sequence[Path] = (), sizes: Mapping[str, int] | None = None) -> MemoryPlans:
    """Plan the launches of a file by its header without an operator, or by the header that `adopt` would propose.

    `sizes` are values of the header's sizes, and numbers of elements of its buffers, by name. Raises UsageError if
    nothing is launched, or if a size is unknown; the message names the option to pass.
    """
    given_sizes = dict(sizes or {})
    if has_memory_header(path):
        return plans_of(_with_sizes(read_memory_header(path, include), given_sizes), given_sizes)
    return proposed_plan(path, include, given_sizes)[1]


def proposed_plan(
    path: Path, include: Sequence[Path] = (), sizes: Mapping[str, int] | None = None
) -> tuple[Proposal, MemoryPlans]:
    """Return the header without an operator that `adopt` would propose, and its plan; raise the errors of `plan_of`."""
    given_sizes = dict(sizes or {})
    proposal = propose_memory(read_file(path, include), given_sizes)
    return proposal, plans_of(read_memory_header(path, include, proposal.text), given_sizes)


def plans_of(header: MemoryHeader, size_names: Collection[str] = ()) -> MemoryPlans:
    """Return the plans of a header at reduced and at full sizes; sizes in `size_names` are never reduced."""
    return _Planner(header, frozenset(size_names), dict(header.sizes)).plans()


def _with_sizes(header: MemoryHeader, new_sizes: Mapping[str, int]) -> MemoryHeader:
    """Return the header with other values of its sizes, and other numbers of elements of its buffers."""
    buffer_names = {buffer.name for buffer in header.buffers}
    for name in new_sizes:
        if name not in header.sizes and name not in buffer_names:
            all_names = {*header.sizes, *buffer_names}
            raise UsageError(unknown_name("size of the header", name, all_names, place=f"{header.path}: --size"))
    sizes = {name: new_sizes.get(name, value) for name, value in header.sizes.items()}
    buffers = tuple(
        replace(buffer, elements=str(new_sizes[buffer.name]))
        if buffer.name in new_sizes and buffer.name not in sizes
        else buffer
        for buffer in header.buffers
    )
    return replace(header, sizes=sizes, buffers=buffers)


@dataclass
class _Planner:
    """Evaluate all expressions of a header, and reduce its sizes until a run takes some seconds."""

    header: MemoryHeader
    given_sizes: frozenset[str]
    """Sizes that the user gave, which are never reduced."""
    sizes: dict[str, int]
    """The header's sizes in the plan that is made now."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        file = ParsedFile(self.header.path, self.header.sources)
        self.text = file.sources[0].text
        device_names = {name for declaration in file.declarations if declaration.is_device for name in declaration.uses}
        self.device_constants = device_names & file.constants.keys()
        """Macros and constants that the kernels' code uses itself."""
        self.launched_kernels: list[LaunchedKernel] = []
        for launch_template in self.launches:
            name = plain_kernel(launch_template.kernel)
            if name not in file.kernels:
                raise UsageError(unknown_name("kernel", name, file.kernels, place=f"{self.header.path}: launch"))
            self.launched_kernels.append(file.read_kernel(name, None))

    @property
    def launches(self) -> list[LaunchTemplate]:
        """Return the launches of kernels in the header, without entries that fill a buffer."""
        return [launch_template for launch_template in self.header.launch if launch_template.kernel]

    def plans(self) -> MemoryPlans:
        """Return the plans at reduced and at full sizes."""
        self._note_unbounded()
        full_sizes, notes_before = dict(self.sizes), list(self.notes)
        original_sizes = self._reduce()
        if not original_sizes:
            self._note_single_block()
        reduced = self._plan()
        if not original_sizes:
            return MemoryPlans(reduced)
        growth = math.prod(original_sizes[name] / self.sizes[name] for name in original_sizes)
        self.sizes, self.notes = full_sizes, notes_before
        full = self._plan() if self._access_count() < math.inf else None
        return MemoryPlans(reduced, full, growth)

    def _plan(self) -> MemoryPlan:
        """Return the plan of all launches at the current sizes."""
        launches = tuple(map(self._launch, self.header.launch))
        kernels = tuple(dict.fromkeys(launch.kernel for launch in launches if launch.kernel))
        used_names = {name for launch in launches for name in launch.buffers()}
        used_buffers = tuple(self._buffer(buffer) for buffer in self.header.buffers if buffer.name in used_names)
        indexed_lines, scatter_lines = self._data_lines({b.name for b in used_buffers if b.content == "random"})
        notes = tuple(dict.fromkeys(self.notes))
        edits = tuple(self._edits())
        path, include = self.header.path, self.header.include
        return MemoryPlan(
            path, kernels, launches, used_buffers, dict(self.sizes), notes, include, indexed_lines, scatter_lines, edits
        )

    def _data_lines(self, random_buffers: set[str]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the lines whose index or loop bound comes from a random buffer, and those of them that store."""
        indexed_lines: set[int] = set()
        scatter_lines: set[int] = set()
        for launch_template, launched_kernel in zip(self.launches, self.launched_kernels, strict=True):
            pointers: set[str] = set()
            for argument_group, argument in zip(
                launched_kernel.argument_groups, launch_template.args or (), strict=False
            ):
                fields = argument.fields if isinstance(argument, Struct) else (argument,)
                pointers |= {
                    p.name
                    for (p, _), field in zip(argument_group.fields, fields, strict=False)
                    if field in random_buffers
                }
            for position, is_store in indices_from_data(launched_kernel.kernel.tokens, pointers):
                line_number = self.text.count("\n", 0, position) + 1
                indexed_lines.add(line_number)
                scatter_lines |= {line_number} if is_store else set()
        return frozenset(indexed_lines), frozenset(scatter_lines)

    # Numbers ------------------------------------------------------------------------------------------------------

    def _evaluate(self, expression_text: str, subject: str) -> int:
        """Return the integer value of a header's expression; `subject` names the expression in an error."""
        try:
            return int(expression.evaluate(expression_text, self.sizes))
        except UsageError as error:
            raise UsageError(f"{self.header.path}: {subject}: {error}", cause=error) from None

    def _geometry(self, launch_template: LaunchTemplate) -> tuple[Dim3, Dim3]:
        """Return the grid and the block of a launch, each with three components."""
        dimensions = []
        for name, expressions in (("grid", launch_template.grid), ("block", launch_template.block)):
            values = [self._evaluate(text, f"{name} of {launch_template.kernel}") for text in expressions]
            x, y, z = (*values, 1, 1, 1)[:3]
            dimensions.append((x, y, z))
        return dimensions[0], dimensions[1]

    def _elements(self, buffer: BufferTemplate) -> int:
        """Return the number of elements of a buffer; an assumed number if the header has none."""
        if not buffer.elements:
            threads = max(math.prod((*grid, *block)) for grid, block in map(self._geometry, self.launches))
            return max(ASSUMED_ELEMENTS, min(MAX_ASSUMED_ELEMENTS, ASSUMED_ELEMENTS_PER_THREAD * threads))
        return max(1, self._evaluate(buffer.elements, f"elements of buffer '{buffer.name}'"))

    # Reduced sizes ------------------------------------------------------------------------------------------------

    def _access_count(self) -> float:
        """Estimate the number of accesses of all launches; infinite if the buffers need too much memory.

        A launch counts its threads, times the largest size if its kernel has a loop.
        """
        accesses = 0.0
        for launch_template, launched_kernel in zip(self.launches, self.launched_kernels, strict=True):
            grid, block = self._geometry(launch_template)
            has_loop = bool({"for", "while", "do"} & {token.text for token in launched_kernel.kernel.tokens})
            iterations = max((self.sizes[name] for name in self._reducible()), default=1) if has_loop else 1
            accesses += math.prod(grid) * math.prod(block) * max(1, iterations)
        sized_buffers = [buffer for buffer in self.header.buffers if buffer.elements]
        total_bytes = sum(self._elements(buffer) * ELEMENT_BYTES[buffer.type] for buffer in sized_buffers)
        return accesses if total_bytes <= MAX_BUFFER_BYTES else math.inf

    def _reducible(self) -> list[str]:
        """Return the sizes that may be reduced.

        Excluded are sizes that blocks or shared memory depend on, sizes that the user gave, and constants that cannot
        be replaced in the file's text.
        """
        block_names: set[str] = set()
        for launch_template in self.launches:
            for expression_text in (*launch_template.block, launch_template.shared):
                block_names |= expression.names(expression_text)
        return [
            name
            for name, value in self.sizes.items()
            if value > MIN_REDUCED_SIZE
            and name not in block_names
            and name not in self.given_sizes
            and (name not in self.device_constants or self._definition_span(name) is not None)
        ]

    def _definition_span(self, name: str) -> tuple[int, int] | None:
        """Return start and end of the value of a macro or constant in the text; None if it is absent or ambiguous."""
        patterns = (
            rf"#[ \t]*define[ \t]+{name}[ \t]+([^\n/]*[^\s/])",
            rf"\b{name}[ \t]*=[ \t]*([^;,}}\n]+?)[ \t]*[;,}}\n]",
        )
        code = re.sub(
            r"(?m)^[ \t]*//.*$", lambda line: " " * len(line[0]), self.text
        )  # A header in comments has sizes, too.
        for pattern in patterns:
            matches = list(re.finditer(pattern, code))
            if len(matches) == 1:
                return matches[0].span(1)
        return None

    def _reduce(self) -> dict[str, int]:
        """Reduce the largest sizes until few accesses are left; return the reduced sizes with their original values."""
        original_sizes: dict[str, int] = {}
        divisor = math.lcm(*self._divisors())
        for _ in range(MAX_HALVINGS):
            if self._access_count() <= REDUCED_ACCESSES:
                break
            names = self._reducible()
            for value in sorted({self.sizes[name] for name in names}, reverse=True):
                reduced = _reduced_size(value, divisor)
                if reduced >= MIN_REDUCED_SIZE:
                    equal_sizes = [name for name in names if self.sizes[name] == value]  # Equal sizes stay equal.
                    original_sizes |= {name: value for name in equal_sizes if name not in original_sizes}
                    self.sizes |= dict.fromkeys(equal_sizes, reduced)
                    break
            else:
                break
        if original_sizes:
            changes = ", ".join(
                f"{name} = {self.sizes[name]} (in the file {original})" for name, original in original_sizes.items()
            )
            self.notes.append(f"sizes reduced so that a run takes some seconds: {changes}")
        return original_sizes

    def _divisors(self) -> set[int]:
        """Return the sides of blocks and the divisors of grids: tiles, which must divide reduced sizes."""
        result: set[int] = set()
        for launch_template in self.launches:
            result |= {side for side in self._geometry(launch_template)[1] if side > 1}
            for first, second in DIVISORS.findall(" ".join(launch_template.grid)):
                text = first or second
                divisor = int(text) if text.isdigit() else self.sizes.get(text, 1)
                result |= {divisor} if 1 < divisor <= MAX_DIVISOR else set()
        return result

    def _edits(self) -> list[tuple[int, int, str]]:
        """Return the replacements in the file's text for sizes that were reduced."""
        result = []
        for name in self.device_constants & self.sizes.keys():
            if (span := self._definition_span(name)) and not self._already_has(span, self.sizes[name]):
                result.append((*span, str(self.sizes[name])))
        return result

    def _already_has(self, span: tuple[int, int], value: int) -> bool:
        """Return whether the text at a span already has this value, or has an expression of other sizes."""
        try:
            return number_of(tokens_of(self.text[span[0] : span[1]]), {}) == value
        except UnsupportedExpression:
            return True  # The definition is an expression of other sizes.

    # Launches -----------------------------------------------------------------------------------------------------

    def _launch(self, launch_template: LaunchTemplate) -> KernelLaunch:
        """Return one entry of the header's launch list with all expressions evaluated."""
        if launch_template.zero:
            value = float(Scalar("f64", launch_template.value).bound(self.sizes).value)
            return KernelLaunch("", (1, 1, 1), (1, 1, 1), 0, (), zero=launch_template.zero, value=value)
        grid, block = self._geometry(launch_template)
        shared = self._evaluate(launch_template.shared, f"shared bytes of {launch_template.kernel}")
        args = tuple(self._argument(argument, launch_template) for argument in launch_template.args or ())
        return KernelLaunch(launch_template.kernel, grid, block, shared, args, cooperative=launch_template.cooperative)

    def _argument(self, argument: str | Scalar | Struct, launch_template: LaunchTemplate) -> Argument:
        """Return a kernel's argument with all expressions evaluated."""
        if isinstance(argument, BufferAddress):
            buffer = next((buffer for buffer in self.header.buffers if buffer.name == argument.fields[0]), None)
            if buffer is None:
                raise UsageError(
                    f"{self.header.path}: an argument of {launch_template.kernel} names the buffer "
                    f"'{argument.fields[0]}', which the header does not declare; declare the buffer under buffers, "
                    "or correct the name",
                    kind="no-such-buffer",
                    subject=self.header.path,
                )
            offset = self._evaluate(str(argument.offset), f"an offset into '{buffer.name}'")
            return BufferAddress(argument.fields, offset * ELEMENT_BYTES[buffer.type])
        if isinstance(argument, Struct):
            return Struct(tuple(self._field(field, launch_template) for field in argument.fields))
        return self._field(argument, launch_template)

    def _field(self, value: str | float | Scalar, launch_template: LaunchTemplate) -> str | int | float | Scalar:
        """Return a scalar argument or a field of a structure with its expression evaluated."""
        try:
            if isinstance(value, Scalar):
                return value.bound(self.sizes)
        except UsageError as error:
            raise UsageError(
                f"{self.header.path}: an argument of {launch_template.kernel}: {error}", cause=error
            ) from None
        if not isinstance(value, str) or any(buffer.name == value for buffer in self.header.buffers):
            return value
        return self._evaluate(value, f"an argument of {launch_template.kernel}")

    # Buffers ------------------------------------------------------------------------------------------------------

    def _buffer(self, buffer_template: BufferTemplate) -> PlannedBuffer:
        return PlannedBuffer(
            buffer_template.name,
            self._elements(buffer_template),
            buffer_template.type,
            buffer_template.content,
            bool(buffer_template.elements),
        )

    def _note_single_block(self) -> None:
        """Add a note with a larger size if each launch has one block, because the file's own size is small."""
        if any(math.prod(self._geometry(launch_template)[0]) > 1 for launch_template in self.launches):
            return
        elements = " ".join(buffer.elements for buffer in self.header.buffers)
        for launch_template in self.launches:
            block_names = {name for text in launch_template.block for name in expression.names(text)}
            for text, side in zip(launch_template.grid, self._geometry(launch_template)[1], strict=False):
                for name in sorted(expression.names(text) & self.sizes.keys() - block_names - self.given_sizes):
                    if re.search(rf"\b{name}\b", elements):
                        larger_size = 2 * side + side // 2
                        self.notes.append(
                            f"{name} = {self.sizes[name]} fills one block; several blocks need a larger size, such as: "
                            + next_command("check", self.header.path, size=f"{name}={larger_size}")
                        )
                        return

    def _note_unbounded(self) -> None:
        """Add a note that names the buffers without a size and the options that give them one."""
        unsized_buffers = [buffer.name for buffer in self.header.buffers if not buffer.elements]
        if unsized_buffers:
            size_options = " ".join(f"--size {name}=…" for name in unsized_buffers)
            self.notes.append(
                f"bounds of {', '.join(unsized_buffers)} are not checked, because the file does not give their sizes; "
                f"pass them with: {size_options}"
            )


def _reduced_size(size: int, divisor: int) -> int:
    """Return about half of a size; 0 if the size cannot be halved.

    A power of 2 stays a power of 2. Any other size keeps its remainder modulo `divisor`.
    """
    if size & (size - 1) == 0:
        return size // 2 if (size // 2) % divisor == 0 or size % divisor else 0
    half = size // 2 - (size // 2) % divisor + size % divisor
    return half if half < size else 0


def indices_from_data(code: Sequence[Token], pointers: Collection[str]) -> list[tuple[int, bool]]:
    """Return the position in the text of each index that depends on an element of one of these pointers.

    Each position comes with whether the code stores a value at the index that does not depend on the old value.
    """
    data_variables: set[str] = set()
    result: list[tuple[int, bool]] = []
    for _ in range(2):  # A later statement of a loop can set a variable of an earlier one.
        for index, token in enumerate(code):
            is_comparison = index + 1 < len(code) and code[index + 1].text == "="
            if token.text == "=" and index and code[index - 1].kind == "name" and not is_comparison:
                value = value_until(code, index + 1)
                if _depends_on_data(value, pointers, data_variables):
                    data_variables.add(code[index - 1].text)
    for index, token in enumerate(code):
        if (
            token.text == "["
            and index
            and _depends_on_data(code[index + 1 : (closing := closing_bracket(code, index))], pointers, data_variables)
        ):
            following = [other.text for other in code[closing + 1 : closing + 3]]
            is_store = following[:1] == ["="] and following[1:] != ["="]
            is_update = is_store and any(token.text == code[index - 1].text for token in value_until(code, closing + 2))
            result.append((token.start, is_store and not is_update))
    return result


def _depends_on_data(tokens: Sequence[Token], pointers: Collection[str], data_variables: Collection[str]) -> bool:
    """Return whether an expression reads one of these pointers or uses a variable whose value comes from one."""
    loads = any(a.text in pointers and b.text == "[" for a, b in itertools.pairwise(tokens))
    return loads or any(token.text in data_variables for token in tokens)
