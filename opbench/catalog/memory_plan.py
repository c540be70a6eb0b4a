"""Plan a run of a file without an operator: its host's launches, on buffers of the sizes that the host allocates."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench.catalog.c_expression import SIZES, Unreadable, converted
from opbench.catalog.case import is_named
from opbench.catalog.expression import evaluate
from opbench.catalog.host_launches import Parameter, parameter_of, value_until
from opbench.catalog.host_program import HostBuffer, HostProgram, device_values, number_of, plain_name, program_of
from opbench.catalog.host_structs import TYPES, sizes_of, structs_of
from opbench.catalog.launch import BuildRequest, Dim3, KernelLaunch
from opbench.catalog.matching import DTYPES, NO_NUMBER
from opbench.catalog.project import project_folders
from opbench.catalog.proposal import KernelRead, launch_parts, read_kernel, template_arguments
from opbench.catalog.scalar import Argument, Scalar, Struct
from opbench.catalog.scan import Declaration, declarations
from opbench.catalog.sources import closure
from opbench.catalog.tokens import Token, closing
from opbench.errors import UsageError

ENOUGH_WORK = 1 << 20
"""Threads, times the largest size where a kernel loops, up to which every access of a launch takes a few seconds."""
LEAST_SIZE = 32
"""No size is reduced below this one."""
ASSUMED, ASSUMED_EACH, ASSUMED_UNLAUNCHED = 1000, 64, 1024
"""The one size of a function that nothing in the file calls, which no block divides; each of several sizes, and a size
of a kernel that nothing launches, which blocks divide: who would round up is not known."""
ASSUMED_SHARED_BYTES = 16 << 10
UNKNOWN_ELEMENTS = 1 << 20
"""Elements of a buffer whose size cannot be read: more than the assumed sizes reach."""
MOST_BYTES = 1 << 28
MOST_NUMBERS = 64
"""Halvings of sizes that are tried."""


@dataclass(frozen=True)
class PlannedBuffer:
    """Memory that the launches get."""

    name: str
    elements: int
    dtype: str
    content: str
    """ "random", "zero", or "poison" of memory that nobody fills before a kernel does."""
    is_bounded: bool = True
    """Whether its size is the file's, so that an access beyond it is a fault."""


@dataclass(frozen=True)
class MemoryPlan:
    """A file's launches with every number known."""

    path: Path
    kernels: tuple[str, ...]
    launches: tuple[KernelLaunch, ...]
    buffers: tuple[PlannedBuffer, ...]
    sizes: Mapping[str, int]
    """The host variables that decide the sizes, with their values in this run."""
    notes: tuple[str, ...] = ()
    """What was assumed or reduced."""
    include: tuple[Path, ...] = ()
    data_lines: frozenset[int] = frozenset()
    """Lines of the file whose indices come from what a buffer holds: random numbers say nothing of their bounds."""
    edits: tuple[tuple[int, int, str], ...] = ()
    """Pieces of the file's text, by first and last character, with the reduced size that stands there in this run."""

    @property
    def threads(self) -> int:
        """CUDA threads of all launches."""
        return sum(math.prod((*one.grid, *one.block)) for one in self.launches)

    @property
    def name(self) -> str:
        """How results and `--case` name the run, such as "memory/bias_gelu(rows=64)"."""
        sizes = ",".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"memory/{self.path.stem}" + (f"({sizes})" if sizes else "")

    def request(self, source: Path | None = None) -> BuildRequest:
        """What must be compiled, from another file where one stands for it."""
        include = (self.path.parent.resolve(), *self.include) if source else self.include
        return BuildRequest(source or self.path.resolve(), self.kernels, (), "", include)

    def text(self) -> str:
        """The file's text with its sizes reduced; each line keeps its number."""
        text = self.path.read_text(errors="replace")
        for start, end, number in sorted(self.edits, reverse=True):
            text = text[:start] + number + text[end:]
        return text


@dataclass(frozen=True)
class MemoryPlans:
    """A file's run at sizes that take a moment, and at its own."""

    reduced: MemoryPlan
    full: MemoryPlan | None = None
    """None where nothing was reduced."""
    growth: float = 1.0
    """How many times as many accesses the full run may make."""

    def is_named(self, pattern: str) -> bool:
        """Whether a `--case` pattern names either run."""
        return any(is_named(plan.name, pattern) for plan in (self.reduced, self.full) if plan)


def plan_of(path: Path, include: Sequence[Path] = (), sizes: Mapping[str, int] | None = None) -> MemoryPlans:
    """Plan the run of a file's launches; `sizes` are values of host variables, and elements of pointers, by name.

    Raises UsageError where nothing launches, or where a size is not in the file: the message says what to pass.
    """
    folders = (*include, *project_folders(path, include))
    sources = closure(path, folders)
    everything = [one for source in sources for one in declarations(source.text)]
    kernels = {one.name: one for one in everything if one.is_kernel}
    if not kernels:
        raise UsageError(f"{path}: defines no __global__ function that can be read")
    program = program_of(everything, sources[0].text)
    launches = [one for one in program.launches if one.kernel in kernels] if program else []
    notes = []
    if program is None or not launches:
        text = assumed_host(list(kernels.values()))
        others = [one for one in everything if one.kind != "function" or one.is_device]
        program = program_of([*others, *declarations(text)], text)
        assert program is not None
        waiting = {name for name, one in kernels.items() if "this_grid" in one.uses}
        launches = [replace(one, cooperative=one.kernel in waiting) for one in program.launches]
        notes = [
            "nothing in the file launches its kernels: each is launched with a thread an element of its first size"
        ]
    program.launches = launches
    functions = {one.name: one for one in everything if one.kind == "function" and one.is_device}
    structs = structs_of(everything)
    reads = [read_kernel(kernels[one.kernel], one, structs, functions) for one in launches]
    planner = _Planner(
        path, sources[0].text, program, reads, dict(sizes or {}), tuple(folders), notes=notes, is_unlaunched=bool(notes)
    )
    planner.values |= {f"sizeof {name}": str(size) for name, size in sizes_of(structs).items()}
    return planner.plans()


def assumed_host(kernels: Sequence[Declaration]) -> str:
    """A host function, as text, that launches kernels which nothing launches, with the kernels' own parameters."""
    parameters: dict[str, str] = {}
    calls = []
    for kernel in kernels:
        taken = [one for one in map(parameter_of, kernel.parameters()) if one.name]
        parameters |= {one.name: f"{one.type} {one.name}" for one in taken}
        numbers = [one.name for one in taken if not one.is_pointer and not re.search(NO_NUMBER, one.type)]
        size = numbers[0] if numbers else "1024"
        shape = f"({size} + 255) / 256, 256"
        if "y" in {token.text for token in kernel.tokens}:
            last = numbers[1] if len(numbers) > 1 else size
            shape = f"dim3(({size} + 15) / 16, ({last} + 15) / 16), dim3(16, 16)"
        if "extern" in {token.text for token in kernel.tokens}:
            shape += f", {ASSUMED_SHARED_BYTES}"
        calls.append(f"{kernel.name}<<<{shape}>>>({', '.join(one.name for one in taken)});")
    return f"void launch_all({', '.join(parameters.values())}) {{ {' '.join(calls)} }}\n"


@dataclass
class _Planner:
    """Finds every number of a program's launches, and reduces sizes until a run takes a moment."""

    path: Path
    text: str
    program: HostProgram
    reads: list[KernelRead]
    given: dict[str, int]
    include: tuple[Path, ...]
    values: dict[str, str] = field(default_factory=dict)
    """Host variables with the values that stand in place of their own."""
    notes: list[str] = field(default_factory=list)
    is_unlaunched: bool = False
    """Whether the launches are made up, as the file has none."""

    def plans(self) -> MemoryPlans:
        """Read all numbers, reduce sizes where there is much work, and put the launches together."""
        of_device = device_values(self.program.code)
        self.values |= {k: v for k, v in of_device.items() if k not in self.program.known or self._is_from_outside(k)}
        self._use_given()
        self._assume()
        own, notes = dict(self.values), list(self.notes)
        before = self._reduce()
        reduced = self._plan(before)
        if not before:
            return MemoryPlans(reduced)
        growth = math.prod(before[name] / int(self.values[name]) for name in before)
        self.values, self.notes = own, notes
        full = self._plan({}) if self._work() < math.inf else None
        return MemoryPlans(reduced, full, growth)

    def _plan(self, reduced: Mapping[str, int]) -> MemoryPlan:
        buffers = self._buffers()
        launches = tuple(self._launch(read, buffers) for read in self.reads)
        kernels = tuple(dict.fromkeys(one.kernel for one in launches))
        self._note_unbounded(buffers)
        shown = {plain_name(name): int(value) for name, value in self.values.items() if name in self._shown(reduced)}
        used = [b for b in buffers.values() if any(b.name in launch.buffers() for launch in launches)]
        edits = tuple(self._edits(reduced))
        lines = self._data_lines({b.name for b in used if b.content == "random"})
        notes = tuple(dict.fromkeys(self.notes))
        return MemoryPlan(self.path, kernels, launches, tuple(used), shown, notes, self.include, lines, edits)

    def _data_lines(self, random: set[str]) -> frozenset[int]:
        """The lines of kernels where an index, or a loop's bound, comes from what a random buffer holds."""
        found: set[int] = set()
        for read in self.reads:
            pointers = {
                p.name for p, given in read.pairs if p.is_pointer and plain_name(self.program.pointer(given)) in random
            }
            found |= {self.text.count("\n", 0, at) + 1 for at in data_indices(read.kernel.tokens, pointers)}
        return frozenset(found)

    def _shown(self, reduced: Mapping[str, int]) -> set[str]:
        assumed = {p.name for p in self.program.parameters}
        return {name for name in self.values if name in reduced or name in assumed or plain_name(name) in self.given}

    # Numbers ------------------------------------------------------------------------------------------------------

    def _use_given(self) -> None:
        """Let the sizes that a user passes stand in place of the file's."""
        names: dict[str, list[str]] = {plain_name(name): [] for name in self._names()}
        for name in self._names():
            names[plain_name(name)].append(name)
        for name, value in self.given.items():
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise UsageError(
                    f"{self.path}: --size {name}={value}: the host's code has no such variable; known: {known}"
                )
            self.values |= dict.fromkeys(names[name], str(value))

    def _names(self) -> list[str]:
        """The host's variables that may be given a size."""
        own = [p.name for p in self.program.parameters]
        return list(dict.fromkeys([*own, *self.program.known, *self.program.buffers]))

    def _assume(self) -> None:
        """Give a value to each size that comes from outside the file: a function's parameter, the command line."""
        outside = [p.name for p in self.program.parameters if not p.is_pointer and not re.search(NO_NUMBER, p.type)]
        outside += [name for name in self.program.options if self._is_from_outside(name)]
        needed = [name for name in self._used() if name in outside and name not in self.values]
        shapes = {name: side for read in self.reads for name, side in self._shapes(read).items()}
        sizes = [name for name in needed if name not in shapes]
        alone = ASSUMED_UNLAUNCHED if self.is_unlaunched else ASSUMED
        self.values |= dict.fromkeys(sizes, str(alone if len(sizes) == 1 else ASSUMED_EACH))
        self.values |= {name: str(shapes[name]) for name in needed if name in shapes}
        if needed:
            listed = ", ".join(f"{plain_name(name)} = {self.values[name]}" for name in needed)
            flags = " ".join(f"--size {plain_name(name)}=…" for name in needed)
            self.notes.append(f"not in the file and assumed: {listed} (others: {flags})")

    def _shapes(self, read: KernelRead) -> dict[str, int]:
        """The variables that a block's shape is made of, each with a usual value."""
        assert read.launch is not None
        sides = launch_parts(read.launch.configuration[1], self._known(read))
        return dict.fromkeys(self._names_in(*sides), 256 if len(sides) == 1 else 16)

    def _is_from_outside(self, name: str) -> bool:
        try:
            self._number((Token("name", name, 0),))
        except Unreadable:
            return True
        return False

    def _used(self) -> list[str]:
        """The variables that launches and allocations depend on, each after those that it needs."""
        found: dict[str, None] = {}

        def visit(given: Sequence[Token], depth: int = 0) -> None:
            for token in given:
                if token.kind == "name" and token.text not in found and depth < 16:
                    visit(self.program.known.get(token.text, ()), depth + 1)
                    found[token.text] = None

        for read in self.reads:
            assert read.launch is not None
            for part in (*read.launch.configuration, *read.launch.arguments):
                visit(part)
        for buffer in self.program.buffers.values():
            visit(buffer.bytes or buffer.elements)
        return list(found)

    def _known(self, read: KernelRead | None = None) -> dict[str, Sequence[Token] | str]:
        """The host's names: at a launch with the values that they have there."""
        there = read.launch.known if read and read.launch else {}
        return {**self.program.known, **there, **self.values}

    def _number(self, given: Sequence[Token], read: KernelRead | None = None) -> int:
        return number_of(given, self._known(read))

    def _size(self, given: Sequence[Token], what: str, read: KernelRead | None = None) -> int:
        """A number that must be known; raises UsageError with what to pass."""
        try:
            return self._number(given, read)
        except Unreadable as error:
            name = self._culprit(given, read) or what.split("'")[1]
            raise UsageError(
                f"{self.path}: {what} cannot be read ({plain_name(str(error))}); pass its value: "
                f"opbench check {shlex.quote(str(self.path))} --size {plain_name(name)}=1024"
            ) from None

    def _culprit(self, given: Sequence[Token], read: KernelRead | None) -> str:
        """The variable whose own value cannot be read, on which an expression depends; "" where none has one."""
        known = self._known(read)
        for token in given:
            value = known.get(token.text, ()) if token.kind == "name" else ()
            if isinstance(value, str) or not value:
                continue
            try:
                self._number((token,), read)
            except Unreadable:
                return self._culprit(value, read) or token.text
        return ""

    # Less work ----------------------------------------------------------------------------------------------------

    def _work(self) -> float:
        """Accesses, roughly: threads, times the largest size where the kernel loops; infinite for too much memory."""
        work = 0.0
        for read in self.reads:
            grid, block = self._geometry(read)
            loops = bool({"for", "while", "do"} & {token.text for token in read.kernel.tokens})
            largest = max((self._value(name) for name in self._roots()), default=1) if loops else 1
            work += math.prod(grid) * math.prod(block) * max(1, largest)
        size = sum(self._bytes(buffer) or 0 for buffer in self.program.buffers.values())
        return work if size <= MOST_BYTES else math.inf

    def _value(self, name: str) -> int:
        return self._number((Token("name", name, 0),))

    def _roots(self) -> list[str]:
        """The sizes that may be reduced: variables with a number of their own that no block's shape depends on."""
        shapes: set[str] = set()
        for read in self.reads:
            assert read.launch is not None
            shapes |= self._names_in(*read.launch.configuration[1:3])
        found = []
        for name in self._used():
            value = self.program.known.get(name, ())
            literal = bool(value) and all(t.kind == "number" or t.text in "()*<+-" for t in value)
            is_given = name in self.values and plain_name(name) not in self.given
            free = name not in shapes and plain_name(name) not in self.given
            if free and (literal or is_given) and self._is_reducible(name) and self._is_large(name):
                found.append(name)
        return found

    def _names_in(self, *parts: Sequence[Token]) -> set[str]:
        found: set[str] = set()
        waiting = [token.text for part in parts for token in part if token.kind == "name"]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [token.text for token in self.program.known.get(name, ()) if token.kind == "name"]
        return found

    def _is_large(self, name: str) -> bool:
        try:
            return self._value(name) > LEAST_SIZE
        except Unreadable:  # a float
            return False

    def _is_reducible(self, name: str) -> bool:
        """Whether a size can be changed: one that the kernels use, too, only where its text can be."""
        return name not in self.program.fixed or self._place(name) is not None

    def _place(self, name: str) -> tuple[int, int] | None:
        """Where the file's text has the value of a macro or a constant."""
        patterns = (
            rf"#[ \t]*define[ \t]+{name}[ \t]+([^\n/]*[^\s/])",
            rf"\b{name}[ \t]*=[ \t]*([^;,}}\n]+?)[ \t]*[;,}}\n]",
        )
        for pattern in patterns:
            matches = list(re.finditer(pattern, self.text))
            if len(matches) == 1:
                return matches[0].span(1)
        return None

    def _reduce(self) -> dict[str, int]:
        """Reduce the largest sizes as often as it takes; returns the reduced ones with what they were."""
        before: dict[str, int] = {}
        sides = {side for read in self.reads for side in self._geometry(read)[1] if side > 1}
        for _ in range(MOST_NUMBERS):
            if self._work() <= ENOUGH_WORK:
                break
            roots = self._roots()
            for value in sorted({self._value(name) for name in roots}, reverse=True):
                less = _less(value, math.lcm(*sides))
                if less >= LEAST_SIZE:
                    alike = [name for name in roots if self._value(name) == value]  # sizes that are equal stay so
                    before |= {name: value for name in alike if name not in before}
                    self.values |= dict.fromkeys(alike, str(less))
                    break
            else:
                break
        if before:
            listed = ", ".join(f"{plain_name(n)} = {self.values[n]} (in the file {v})" for n, v in before.items())
            self.notes.append(f"sizes reduced to take a moment: {listed}")
        return before

    def _edits(self, reduced: Mapping[str, int]) -> list[tuple[int, int, str]]:
        """The file's text where the kernels see a size that is not the file's own."""
        changed = [name for name in self.values if name in self.program.fixed]
        places = {name: self._place(name) for name in changed}
        return [(place[0], place[1], self.values[name]) for name, place in places.items() if place is not None]

    # Launches -----------------------------------------------------------------------------------------------------

    def _geometry(self, read: KernelRead) -> tuple[Dim3, Dim3]:
        launch = read.launch
        assert launch is not None
        sides = []
        for what, given in zip(("grid", "block"), launch.configuration, strict=False):
            parts = launch_parts(given, self._known(read))
            text = "".join(plain_name(token.text) for token in given)
            numbers = [self._size(part, f"{what} '{text}' of {launch.kernel}", read) for part in parts]
            x, y, z = (*numbers, 1, 1, 1)[:3]
            sides.append((x, y, z))
        return sides[0], sides[1]

    def _launch(self, read: KernelRead, buffers: dict[str, PlannedBuffer]) -> KernelLaunch:
        launch = read.launch
        assert launch is not None
        grid, block = self._geometry(read)
        shared = self._size(launch.configuration[2], "shared bytes", read) if len(launch.configuration) > 2 else 0
        args: list[Argument] = []
        for group in read.groups:
            if group.unreadable:
                raise UsageError(
                    f"{self.path}: structure '{group.parameter.name}' of {launch.kernel} has a member that cannot be "
                    f"given ({group.unreadable}); let the kernel take its fields one by one"
                )
            if not group.parameter.name and not group.is_struct:
                continue  # f(void)
            found = [self._argument(read, parameter, given, buffers) for parameter, given in group.fields]
            args.append(Struct(tuple(_field(one) for one in found)) if group.is_struct else found[0])
        called = read.kernel.qualified + template_arguments(read, self._known(read))
        return KernelLaunch(called, grid, block, shared, tuple(args), cooperative=launch.cooperative)

    def _argument(
        self, read: KernelRead, parameter: Parameter, given: Sequence[Token], buffers: dict[str, PlannedBuffer]
    ) -> Argument:
        if parameter.views:
            raise UsageError(
                f"{self.path}: {read.kernel.name} takes {parameter.views} ('{parameter.name}'), which only a header "
                f"describes: opbench adopt {self.path} --operator NAME"
            )
        if parameter.is_pointer:
            return self._pointer(read, parameter, given, buffers)
        kind = TYPES.get(" ".join(w for w in parameter.type.split() if w not in ("const", "volatile", "&")), "")
        kind = kind or {"half": "f16", "__half": "f16", "__nv_bfloat16": "bf16"}.get(parameter.type.split()[-1], "i32")
        words = [token.text for token in given]
        if words in (["true"], ["false"]):
            return Scalar("bool", words == ["true"])
        if kind in ("f32", "f64", "f16", "bf16"):
            return Scalar(kind, self._real(given, read))
        value = self._size(given, f"argument '{parameter.name}' of {read.kernel.name}", read)
        return Scalar(kind, value)

    def _real(self, given: Sequence[Token], read: KernelRead) -> float:
        """A float, 1 where it cannot be read: no size follows from it."""
        try:
            return float(evaluate(converted(given, self._known(read), real=True), {}, True))
        except (Unreadable, UsageError):
            return 1.0

    # Buffers ------------------------------------------------------------------------------------------------------

    def _bytes(self, buffer: HostBuffer) -> int | None:
        if buffer.name in self.values:
            return int(self.values[buffer.name]) * _item_bytes(buffer.element)
        if buffer.bytes:
            return self._size(buffer.bytes, f"the size of '{plain_name(buffer.name)}'")
        if buffer.elements:
            return self._size(buffer.elements, f"the size of '{plain_name(buffer.name)}'") * _item_bytes(buffer.element)
        return None

    def _buffers(self) -> dict[str, PlannedBuffer]:
        found = {}
        for name, buffer in self.program.buffers.items():
            dtype, size = _dtype(buffer.element), self._bytes(buffer)
            item = _STORED_BYTES[dtype]
            if size is not None and size % item:
                dtype, item = "u8", 1
            elements = UNKNOWN_ELEMENTS if size is None else max(1, size // item)
            content = {"inputs": "random", "value": "random", "zero": "zero", "": "poison"}.get(buffer.filled, "random")
            if buffer.filled == "unknown":
                content = "random" if self._is_read_first(name) else "poison"
            if content == "random" and _is_opaque(buffer.element):
                content = "zero"
            found[name] = PlannedBuffer(plain_name(name), elements, dtype, content, size is not None)
        return found

    def _is_read_first(self, name: str) -> bool:
        """Whether the first kernel that has a pointer reads what lies there."""
        for read in self.reads:
            for parameter, given in read.pairs:
                if parameter.is_pointer and self.program.pointer(given) == name:
                    atomic = any(name.startswith("atomic") for name in read.facts.names)
                    return atomic or parameter.name in read.facts.read or parameter.name not in read.facts.stored
        return True

    def _pointer(
        self, read: KernelRead, parameter: Parameter, given: Sequence[Token], buffers: dict[str, PlannedBuffer]
    ) -> str:
        name = self.program.pointer(given)
        if not name:
            name = plain_name("".join(t.text for t in given if t.kind == "name")) or parameter.name
            name = name if re.fullmatch(r"\w+", name) else parameter.name
            dtype = _dtype(read.facts.elements.get(parameter.name, "float"))
            content = "random" if not _is_opaque(read.facts.elements.get(parameter.name, "float")) else "zero"
            buffers.setdefault(name, PlannedBuffer(name, UNKNOWN_ELEMENTS, dtype, content, False))
        elif {"+", "["} & {token.text for token in given}:
            self.notes.append(f"the launch's offset into '{plain_name(name)}' is taken as 0")
        return plain_name(name)

    def _note_unbounded(self, buffers: Mapping[str, PlannedBuffer]) -> None:
        free = [b.name for b in buffers.values() if not b.is_bounded]
        if free:
            flags = " ".join(f"--size {name}=…" for name in free)
            self.notes.append(f"bounds are not checked of {', '.join(free)}, whose sizes are not in the file ({flags})")


def _less(value: int, step: int) -> int:
    """About half of a size: a power of 2 stays one, any other keeps its remainder of the blocks' sides; 0 for none."""
    if value & (value - 1) == 0:
        return value // 2 if (value // 2) % step == 0 or value % step else 0
    half = value // 2 - (value // 2) % step + value % step
    return half if half < value else 0


def data_indices(code: Sequence[Token], pointers: Collection[str]) -> list[int]:
    """Where, in characters of the text, an index or a loop depends on an element of one of these pointers."""
    tainted: set[str] = set()
    found: list[int] = []
    for _ in range(2):  # a loop's later statement may feed an earlier one
        for index, token in enumerate(code):
            if token.text == "=" and index and code[index - 1].kind == "name":
                value = value_until(code, index + 1)
                if _depends(value, pointers, tainted):
                    tainted.add(code[index - 1].text)
    for index, token in enumerate(code):
        if token.text == "[" and index and _depends(code[index + 1 : closing(code, index)], pointers, tainted):
            found.append(token.start)
    return found


def _depends(given: Sequence[Token], pointers: Collection[str], tainted: Collection[str]) -> bool:
    loads = any(a.text in pointers and b.text == "[" for a, b in itertools.pairwise(given))
    return loads or any(token.text in tainted for token in given)


_STORED_BYTES = {
    "f32": 4,
    "f64": 8,
    "f16": 2,
    "bf16": 2,
    "i32": 4,
    "u8": 1,
    "u32": 4,
    "i64": 8,
    "i16": 2,
    "i8": 1,
    "u64": 8,
}


def _dtype(element: str) -> str:
    """How a C type's elements are stored here; of a structure as numbers of 4 bytes."""
    found = DTYPES.get(element, "") or "f32"
    return "u8" if found == "bool" else found


def _is_opaque(element: str) -> bool:
    """Whether a type is the file's own, of which only zeros are a value for sure."""
    return element not in DTYPES


def _item_bytes(element: str) -> int:
    return SIZES.get(element, _STORED_BYTES[_dtype(element)])


def _field(given: Argument) -> str | int | float | Scalar:
    assert not isinstance(given, Struct)
    return given
