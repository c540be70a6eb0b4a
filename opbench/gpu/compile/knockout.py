"""Remove one class of instructions from a kernel's PTX, for knock-out experiments; the rest stays unchanged.

PTX has one instruction a line and names the source line of each, and the assembler does not know where a value
comes from. So a load becomes a move from bits of its own address, a store becomes an exclusive-or into a
register that the kernel's end depends on, and addresses and values are still computed. The rewritten kernel
computes wrong results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath

from opbench.gpu.compile.ptx_flow import (
    ORDERED_QUALIFIERS,
    STORED_ADDRESS,
    Flow,
    addresses,
    follow_values,
    is_store,
    operands,
    parameters,
    results,
)
from opbench.gpu.compile.ptx_statements import Function, Statement, parse_functions, registers_of
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.scalar import Argument, Struct

GLOBAL_LOADS, GLOBAL_STORES, ATOMICS = "global-loads", "global-stores", "atomics"
SHARED, BANK_CONFLICTS, BARRIERS, MATRIX = "shared", "bank-conflicts", "barriers", "matrix"
INSTRUCTION_CLASSES = (GLOBAL_LOADS, GLOBAL_STORES, SHARED, BANK_CONFLICTS, BARRIERS, MATRIX, ATOMICS)
"""The classes of work that can be removed."""

WAITS, AWAITED, NO_CONFLICTS = "waits", "another-thread-waits", "no-conflicts"
MBARRIER, UNKNOWN_SPACE, NOT_UNDERSTOOD, TOO_SMALL = "mbarrier", "unknown-space", "not-understood", "too-small"
"""Why an instruction stays, in addition to the reasons of `ptx_flow`."""

OPAQUE_REGISTERS = 16
"""Registers with values that the assembler does not know, for the further elements of a vector from shared memory."""
FRAGMENTS = 32
"""The same for fragments of matrices, which keep the neighbours that a matrix instruction needs."""
ONE = 0x3F80
"""The upper half of a float from 1 on: values made of addresses are then neither NaN nor denormal."""
SENTINEL = 0x5BD1E995
"""The value of the exclusive-or at which a kernel stores it; the assembler must assume that it occurs."""
SINK_DECLARATION = ".global .align 8 .u64 kosunk;\n"
"""The variable that would take the value: the assembler must assume that others read it."""
_ADDRESS = re.compile(r"\[\s*([%A-Za-z_$][\w$]*)\s*(?:\+\s*(-?\d+))?\s*\]")
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True)
class ClassInstructions:
    """The instructions of one class in a module's PTX: those that can be removed and those that cannot."""

    name: str
    taken: tuple[Statement, ...]
    """Those that can be removed."""
    kept: tuple[tuple[Statement, str], ...]
    """Those that stay, with the reason."""

    def lines(self, own: str) -> dict[str, int]:
        """Return the number of removed instructions by source line, the most first; `own` is the kernel's file."""
        return _by_place((statement for statement in self.taken), own)

    def kept_lines(self, own: str) -> tuple[tuple[str, int, str], ...]:
        """Return the source line, number and reason of the instructions that cannot be removed."""
        reasons = dict.fromkeys(reason for _, reason in self.kept)
        return tuple(
            (place, count, reason)
            for reason in reasons
            for place, count in _by_place((statement for statement, why in self.kept if why == reason), own).items()
        )


def _by_place(statements: Iterable[Statement], own: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for statement in statements:
        place = str(statement.line) if statement.file == own else f"{PurePath(statement.file).name}:{statement.line}"
        counts[place] = counts.get(place, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


class KnockOut:
    """The PTX of a module from which classes of instructions can be removed."""

    def __init__(
        self,
        text: str,
        launches: Sequence[KernelLaunch],
        names: Mapping[str, str] | None = None,
        static_shared: Mapping[str, int] | None = None,
        conflicts: Collection[tuple[str, int]] | None = None,
    ) -> None:
        """Read the PTX of a case's module.

        `names` maps names of kernels to mangled ones where they differ, `static_shared` has the bytes of shared memory
        that each kernel declares, by its mangled name. `conflicts` are files and lines with bank conflicts; None if
        they are not known, so that every access may have some.
        """
        self.module = parse_functions(text)
        self._conflicts = conflicts
        self._shared_bytes: dict[str, int] = {}
        self._buffers: dict[str, list[set[str]]] = {}
        for launch in launches:
            if launch.kernel:
                name = (names or {}).get(launch.kernel, launch.kernel)
                taken = (static_shared or {}).get(name, 0) + launch.shared_bytes
                self._shared_bytes[name] = min(taken, self._shared_bytes.get(name, taken))
                own = [_buffers_of(launch, argument) for argument in launch.args]
                earlier = self._buffers.get(name, [set() for _ in own])
                self._buffers[name] = [one | two for one, two in zip(own, earlier, strict=True)]
        self.kernels = tuple(self._buffers)
        used = [
            function for function in self.module.functions if function.name in self._buffers or not function.is_kernel
        ]
        self.flows = self._followed(used)
        self._spins = any(True for flow in self.flows for _ in flow.spins())
        every = [statement for flow in self.flows for statement in flow.function.statements]
        self._bulk_counts = any(map(_is_counted_copy, every))
        self._initialises = any(one.base == "mbarrier" and "init" in one.modifiers for one in every)

    def _followed(self, functions: Sequence[Function]) -> list[Flow]:
        """Return the data flow of each function.

        Stores to buffers from which a kernel loads addresses keep their values.
        """
        sources = {function.name: parameters(function) for function in functions}

        def buffers(function: Function, access: Statement) -> set[str]:
            known = self._buffers.get(function.name, [])
            numbers = {
                int(n) for name in addresses(access) for n in sources[function.name].get(name, ()) if n.isdecimal()
            }
            named = [known[number] for number in numbers if number < len(known)]
            return set().union(*named) or {"*"}  # of a device function, the buffers are not known

        stored: set[int] = set()
        while True:
            flows = [follow_values(function, stored) for function in functions]
            read = set()
            for flow in flows:
                for statement in flow.function.statements:
                    if _is_global_load(statement) and flow.reason(statement):
                        read |= buffers(flow.function, statement)
            found = {
                statement.start
                for flow in flows
                for statement in flow.function.statements
                if read and is_store(statement, "global")
                if (own := buffers(flow.function, statement)) & read or "*" in own | read
            }
            if found <= stored:
                return flows
            stored |= found

    def removal(self, name: str) -> ClassInstructions:
        """Return the instructions of one class: those that can be removed and those that cannot."""
        taken, kept = [], []
        for flow in self.flows:
            for statement in flow.function.statements:
                if not _belongs(name, statement):
                    continue
                if reason := self._reason(name, statement, flow):
                    kept.append((statement, reason))
                else:
                    taken.append(statement)
        return ClassInstructions(name, tuple(taken), tuple(kept))

    def _reason(self, name: str, statement: Statement, flow: Flow) -> str:
        """Return why an instruction of a class cannot be removed; empty if it can."""
        if reason := flow.reason(statement):
            return reason
        if (
            statement.modifiers & ORDERED_QUALIFIERS
            and name in (GLOBAL_LOADS, GLOBAL_STORES)
            and statement.base != "cp"
        ):
            return WAITS
        if statement.base in ("ld", "st", "atom", "red") and not statement.modifiers & {"global", "shared"}:
            return UNKNOWN_SPACE
        if flow.shared and name in (BARRIERS, BANK_CONFLICTS):
            return next(iter(flow.shared.values()))
        writes_shared = is_store(statement, "shared") or (name == GLOBAL_LOADS and statement.base == "cp")
        if writes_shared and (reason := flow.shared_reason(statement)):
            return reason
        if name in (GLOBAL_STORES, ATOMICS, BARRIERS) and self._spins:
            return AWAITED
        if statement.start in flow.stored:
            return STORED_ADDRESS
        if name == BARRIERS and self._initialises:
            return MBARRIER
        if name == GLOBAL_LOADS and _is_bulk(statement) and self._bulk_counts:
            return MBARRIER
        if (
            name == BANK_CONFLICTS
            and self._conflicts is not None
            and (statement.file, statement.line) not in self._conflicts
        ):
            return NO_CONFLICTS
        if name == BANK_CONFLICTS and self._too_small(flow.function, statement):
            return TOO_SMALL
        return "" if _is_understood(name, statement, flow.function) else NOT_UNDERSTOOD

    def _too_small(self, function: Function, statement: Statement) -> bool:
        """Return whether shared memory is too small to give each of 32 lanes its own place."""
        known = self._shared_bytes.get(function.name, 0)
        return not function.shared or known < 32 * _lane_bytes(statement) + 16

    def without(self, names: Collection[str]) -> str:
        """Return the PTX without the removable instructions of some classes."""
        taken = {name: {id(one) for one in self.removal(name).taken} for name in names}
        edits: list[tuple[int, int, str]] = []
        for flow in self.flows:
            editor = _Editor(flow.function, self._shared_bytes.get(flow.function.name, 0))
            for statement in flow.function.statements:
                for name, chosen in taken.items():
                    if id(statement) in chosen:
                        editor.remove(name, statement)
            edits += editor.edits()
        if any("[kosunk]" in new for _, _, new in edits):
            first = self.module.text.index("\n", self.module.text.index(".address_size")) + 1
            edits.append((first, first, SINK_DECLARATION))
        text, at = [], 0
        for start, end, new in sorted(edits):
            text += [self.module.text[at:start], new]
            at = end
        return "".join((*text, self.module.text[at:]))


def _buffers_of(launch: KernelLaunch, argument: Argument) -> set[str]:
    """Return the buffers that an argument of a launch refers to."""
    if isinstance(argument, Struct):
        return set(argument.names())
    maps = {described.name: described.tensor for described in launch.tensor_maps}
    return {maps.get(argument, argument)} if isinstance(argument, str) else set()


# The classes ------------------------------------------------------------------------------------------------------


def _is_global_load(statement: Statement) -> bool:
    return statement.base in ("ld", "ldu") and "global" in statement.modifiers


def _is_bulk(statement: Statement) -> bool:
    """Return whether an instruction is a bulk copy, by TMA or without a tensor map."""
    return (
        statement.base == "cp"
        and "bulk" in statement.modifiers
        and not statement.modifiers & {"commit_group", "wait_group", "prefetch"}
    )


def _is_bulk_load(statement: Statement) -> bool:
    return _is_bulk(statement) and "complete_tx" in statement.modifiers and "global" in statement.modifiers


def _is_counted_copy(statement: Statement) -> bool:
    """Return whether an instruction other than a load signals bytes at an mbarrier, such as a copy within a cluster."""
    return "complete_tx" in statement.modifiers and not _is_bulk_load(statement)


def _expects_bytes(statement: Statement) -> bool:
    return statement.base == "mbarrier" and "expect_tx" in statement.modifiers


def _belongs(name: str, statement: Statement) -> bool:
    """Return whether an instruction belongs to a class."""
    has, base = statement.modifiers, statement.base
    if name == GLOBAL_LOADS:
        copies = base == "cp" and {"async", "shared", "global"} <= has and "bulk" not in has
        generic = base == "ld" and not has & {"shared", "local", "param", "const"}
        return _is_global_load(statement) or generic or copies or _is_bulk_load(statement)
    if name == GLOBAL_STORES:
        generic = base == "st" and not has & {"shared", "local", "param", "async"}
        return generic or (_is_bulk(statement) and "complete_tx" not in has)
    if name == SHARED:
        return base in ("ldmatrix", "stmatrix") or (base in ("ld", "st") and "shared" in has and "async" not in has)
    if name == BANK_CONFLICTS:
        return _belongs(SHARED, statement)
    if name == BARRIERS:
        return base in ("bar", "barrier") and bool(has & {"sync", "arrive"}) and not has & {"warp", "cluster", "red"}
    if name == MATRIX:
        return base == "mma" or (base in ("wgmma", "wmma") and bool(has & {"mma_async", "mma"}))
    return base in ("atom", "red") and "async" not in has


def _is_understood(name: str, statement: Statement, function: Function) -> bool:
    """Return whether a replacement for an instruction is known."""
    if name == BARRIERS or statement.base == "cp":
        return True
    if name == MATRIX and statement.base == "wgmma":
        return len(statement.operands) > 2
    if name == MATRIX:
        vectors = [registers_of(operand) for operand in statement.operands[:4]]
        widths = {function.width(register) for vector in vectors for register in vector}
        return len(vectors) == 4 and all(vectors) and widths in ({32}, {64})
    address = next((operand for operand in statement.operands if operand.startswith("[")), "")
    registers = (
        *results(statement),
        *(r for operand in statement.operands if operand != address for r in registers_of(operand)),
    )
    return bool(_ADDRESS.fullmatch(address)) and all(function.width(r) in (16, 32, 64) for r in registers)


def _lane_bytes(statement: Statement) -> int:
    """Return the bytes that one lane of an access to shared memory transfers."""
    if statement.base in ("ldmatrix", "stmatrix"):
        return 16
    vector = next((int(part[1:]) for part in statement.opcode.split(".") if part in ("v2", "v4", "v8")), 1)
    bits = next(
        (hit[1] for part in statement.opcode.split(".") if (hit := re.fullmatch(r"[busf](8|16|32|64)", part))), "32"
    )
    return vector * _BYTES[bits]


SPILLS = "spills"
GROUPS = {
    "global loads": ("LDG", "LDGSTS"),
    "global stores": ("STG",),
    "bulk copies": ("TMA",),
    "shared memory": ("LDS", "STS", "LDSM", "STSM"),
    "barriers": ("BAR",),
    "matrix": ("tensor",),
    "atomics": ("ATOM", "RED"),
    "fp32": ("FFMA", "FADD/FMUL"),
    "fp16": ("fp16",),
    "fp64": ("fp64",),
    "special functions": ("MUFU",),
    "shuffles": ("SHFL",),
    SPILLS: ("LDL", "STL"),
}
"""Groups of machine instructions, with the classes of `opbench.gpu.compile.sass` in each."""
INTENDED_GROUPS = {
    GLOBAL_LOADS: {"global loads", "bulk copies"},
    GLOBAL_STORES: {"global stores", "bulk copies"},
    SHARED: {"shared memory"},
    BANK_CONFLICTS: set[str](),
    BARRIERS: {"barriers"},
    MATRIX: {"matrix"},
    ATOMICS: {"atomics"},
}
"""The groups from which a knock-out removes instructions."""


def ptx_counts(statements: Iterable[Statement]) -> dict[str, int]:
    """Return the number of PTX instructions in each group; each needs a machine instruction unless it is removed."""
    counts = dict.fromkeys(GROUPS, 0)
    for statement in statements:
        if group := _group(statement):
            counts[group] += 1
    return counts


def _group(statement: Statement) -> str:
    if _is_bulk(statement):
        return "bulk copies"
    for name, group in ((GLOBAL_LOADS, "global loads"), (GLOBAL_STORES, "global stores"), (SHARED, "shared memory"),
                        (BARRIERS, "barriers"), (MATRIX, "matrix"), (ATOMICS, "atomics")):  # fmt: skip
        if _belongs(name, statement):
            return group
    if statement.base == "shfl":
        return "shuffles"
    if statement.base in ("ex2", "lg2", "rsqrt", "sin", "cos", "tanh") and "f32" in statement.modifiers:
        return "special functions"
    if statement.base in ("fma", "add", "sub", "mul"):
        kinds = {"f32": "fp32", "f32x2": "fp32", "f16x2": "fp16", "bf16x2": "fp16", "f64": "fp64"}
        return next((group for kind, group in kinds.items() if kind in statement.modifiers), "")
    return ""


# The replacements -------------------------------------------------------------------------------------------------


@dataclass
class _Editor:
    """Collect replacements in one function, and declare the registers that they use."""

    function: Function
    shared_bytes: int
    _edits: list[tuple[int, int, str]] = field(default_factory=list)
    _sinks: bool = False
    _pooled: int = 0
    _moved: int = 0
    _lanes: set[int] = field(default_factory=set)
    _accumulators: dict[str, None] = field(default_factory=dict)
    _fragments: int = 0
    _constant: dict[str, None] = field(default_factory=dict)
    """Accumulators that no instruction changes any more."""
    _products: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Accumulators -> how many matrix instructions on them were replaced."""
    _used: set[int] = field(default_factory=set)
    _bulk_removed: bool = False

    def remove(self, name: str, statement: Statement) -> None:
        """Replace one instruction of a class."""
        if name == BARRIERS:
            code: Iterable[str] = ()
        elif name == BANK_CONFLICTS:
            code = self._without_conflicts(statement)
        elif name == MATRIX:
            code = self._sink_descriptors(statement) if statement.base == "wgmma" else self._sink_operands(statement)
        elif statement.base == "ldmatrix" and self._is_fragment(statement):
            code = self._fragment(statement)
        elif statement.base in ("ld", "ldu", "ldmatrix"):
            code = self._load(statement, pooled="shared" in statement.modifiers and statement.base != "ldmatrix")
        else:
            code = self._sink(statement)
        if statement.base == "cp" and "complete_tx" in statement.modifiers:
            self._bulk_removed = True
        self._replace(statement, code)

    def _replace(self, statement: Statement, code: Iterable[str]) -> None:
        lines = list(code)
        text = " ".join(("{ .reg .b32 %kox, %koy, %kow;", *lines, "}")) if lines else ""
        self._edits.append((statement.start, statement.end, text))

    def edits(self) -> Iterator[tuple[int, int, str]]:
        """Yield the replacements as start, end and new text."""
        yield from self._edits
        if not self._edits:
            return
        yield self.function.start, self.function.start, "\n" + "\n".join(self._prologue())
        for statement in self.function.statements:
            if self._sinks and statement.base in ("ret", "exit"):
                test = (
                    f"setp.eq.and.b32 %kop, %kosink, {SENTINEL}, {'!' if statement.negated else ''}{statement.guard};"
                )
                if not statement.guard:
                    test = f"setp.eq.b32 %kop, %kosink, {SENTINEL};"
                yield statement.start, statement.start, f"{test} @%kop st.global.u32 [kosunk], %kosink;\n"
            if self._bulk_removed and _expects_bytes(statement):
                written = ", ".join((*statement.operands[:-1], "0"))
                yield statement.start, statement.end, f"{statement.predicate}{statement.opcode} {written};"
            if (
                statement.base == "mov"
                and statement.operands[0] in self._accumulators
                and self._is_constant(statement.operands[1])
            ):
                yield statement.start, statement.end, ""
        return

    def _prologue(self) -> Iterator[str]:
        """Yield declarations of registers, and code that sets them to values that the assembler cannot compute."""
        lanes = "".join(f", %kolanes{width}" for width in sorted(self._lanes))
        yield f".reg .b32 %kolane, %kozero, %kosink{lanes};\n.reg .pred %kop;\nmov.u32 %kolane, %lanemask_eq;"
        yield "{ .reg .b32 %kox; mov.u32 %kox, %lanemask_lt; and.b32 %kozero, %kolane, %kox; }"  # always 0
        if self._sinks:
            yield "mov.u32 %kosink, 0;"
        if self._lanes:
            yield "{ .reg .b32 %kox, %koy;"
            yield f"mov.u32 %kox, {self.function.shared[0]}; add.u32 %kox, %kox, 15; and.b32 %kox, %kox, -16;"
            yield "mov.u32 %koy, %laneid;"
            for width in sorted(self._lanes):
                yield f"mad.lo.u32 %kolanes{width}, %koy, {width}, %kox;"
            yield "}"
        pool = [f"%kopool{number}" for number in range(min(self._pooled, OPAQUE_REGISTERS))]
        fragments = [f"%kofragment{number}" for number in range(min(self._fragments, FRAGMENTS))]
        yield f".reg .b32 %kopool<{OPAQUE_REGISTERS}>, %kofragment<{FRAGMENTS}>;"
        yield from self._opaque([*pool, *fragments, *self._accumulators], [*pool, *fragments, *self._constant])

    def _opaque(self, registers: Sequence[str], constant: Collection[str]) -> Iterator[str]:
        """Yield instructions that give each register a value which the assembler cannot compute.

        Registers that no loop changes are also loaded from memory under a condition that never holds, so that
        the assembler cannot compute them again where they are used.
        """
        widths = {name: self.function.width(name) or 32 for name in registers}
        for number, (name, width) in enumerate(widths.items()):
            opaque = f"prmt.b32 %kox, %kolane, {ONE + number % 0x80}, 0x5410;"
            value = "{%kox, %kox}" if width == 64 else "%kox"
            yield f"{{ .reg .b32 %kox; {opaque} mov.b{width} {name}, {value}; }}"
        if not constant:
            return
        yield "setp.eq.u32 %kop, %kozero, 0;\n@%kop bra $kostart;"
        for name in constant:
            yield f"ld.volatile.global.b{widths[name]} {name}, [kosunk];"
        yield "$kostart:"

    # Values of loads ------------------------------------------------------------------------------------------------

    def _load(self, statement: Statement, pooled: bool) -> Iterator[str]:
        """Yield the replacement of a load: its results get bits of the address."""
        yield from self._address_word(statement)
        hit = _ADDRESS.fullmatch(next(operand for operand in statement.operands if operand.startswith("[")))
        assert hit
        offset, size = int(hit[2] or 0), max(1, _lane_bytes(statement) // max(1, len(results(statement))))
        for number, register in enumerate(results(statement)):
            width, salt = self.function.width(register), offset // size + number
            if width == 16:
                yield f"prmt.b32 %kox, %kow, {0x3C + salt % 4}, 0x444{salt // 4 % 2};"
                yield f"{statement.predicate}cvt.u16.u32 {register}, %kox;"
                continue
            word = "%kox"
            if pooled and number:
                word = f"%kopool{self._pooled % OPAQUE_REGISTERS}"
                self._pooled += 1
            else:
                yield f"prmt.b32 %kox, %kow, {ONE + salt % 0x80}, 0x5410;"
            value = f"{{{word}, {word}}}" if width == 64 else word
            yield f"{statement.predicate}mov.b{width} {register}, {value};"

    def _address_word(self, statement: Statement) -> Iterator[str]:
        """Yield an instruction that moves the lower half of the address to %kow."""
        hit = _ADDRESS.fullmatch(next(operand for operand in statement.operands if operand.startswith("[")))
        assert hit
        width = self.function.width(hit[1])
        if width == 64:
            yield f"cvt.u32.u64 %kow, {hit[1]};"
        elif width or hit[1] in self.function.shared:
            yield f"mov.b32 %kow, {hit[1]};"
        else:
            yield f"{{ .reg .b64 %kol; mov.u64 %kol, {hit[1]}; cvt.u32.u64 %kow, %kol; }}"

    def _is_fragment(self, statement: Statement) -> bool:
        """Return whether only matrix instructions use the results of a load; then equal values remove no arithmetic."""
        return all(self._users.get(register, set()) <= {"mma", "mov"} for register in results(statement))

    @cached_property
    def _users(self) -> dict[str, set[str]]:
        users: dict[str, set[str]] = {}
        for statement in self.function.statements:
            for register in operands(statement):
                users.setdefault(register, set()).add(statement.base)
        return users

    def _fragment(self, statement: Statement) -> Iterator[str]:
        """Yield values for the results of ldmatrix.

        Matrix instructions need neighbouring registers, so that the results of one load are neighbours here,
        too: otherwise each would be copied before each use.
        """
        self._sinks = True
        yield from self._address_word(statement)
        yield f"{statement.predicate}xor.b32 %kosink, %kosink, %kow;"
        produced = results(statement)
        first = -(-self._fragments // len(produced)) * len(produced)
        self._fragments = first + len(produced)
        for number, register in enumerate(produced):
            yield f"{statement.predicate}mov.b32 {register}, %kofragment{(first + number) % FRAGMENTS};"

    # Uses of values -------------------------------------------------------------------------------------------------

    def _sink(self, statement: Statement) -> Iterator[str]:
        """Yield instructions that use every register of an instruction, and values for its results."""
        self._sinks = True
        produced = results(statement)
        for operand in statement.operands:
            if operand in produced or (produced and operand is statement.operands[0]):
                continue
            for register in registers_of(operand):
                yield from self._use(statement, register, low_only=operand.startswith("["))
        if produced and "_" not in produced:
            yield from self._load(statement, pooled=False)

    def _sink_descriptors(self, statement: Statement) -> Iterator[str]:
        """Yield uses of a wgmma's operands; its accumulators get values that the assembler cannot compute."""
        self._sinks = True
        self._accumulators |= dict.fromkeys(registers_of(statement.operands[0]))
        self._constant |= dict.fromkeys(registers_of(statement.operands[0]))
        for operand in statement.operands[1:3]:
            for register in registers_of(operand):
                yield from self._use(statement, register, low_only=True)

    def _use(self, statement: Statement, register: str, low_only: bool) -> Iterator[str]:
        """Yield an exclusive-or of a register into the register on which the kernel's end depends."""
        width = self.function.width(register)
        use = f"{statement.predicate}xor.b32 %kosink, %kosink,"
        if width == 64:
            yield f"mov.b64 {{%kox, %koy}}, {register}; {use} %kox;" + ("" if low_only else f" {use} %koy;")
        elif width == 32:
            yield f"mov.b32 %kox, {register}; {use} %kox;"
        elif width == 16:
            yield f"mov.b32 %kox, {{{register}, {register}}}; {use} %kox;"

    def _sink_operands(self, statement: Statement) -> Iterator[str]:
        """Yield uses of a matrix instruction's operands, each loaded value once, and one multiply-add.

        Its other results are its accumulators. The next instruction on the same accumulators changes the next
        one, so that a loop changes all of them.
        """
        self._sinks = True
        first, second, before = (registers_of(operand) for operand in statement.operands[1:4])
        produced = registers_of(statement.operands[0])
        self._accumulators |= dict.fromkeys((*produced, *before))
        chosen = self._products.get(before, 0) % len(produced)
        self._products[produced] = chosen + 1
        for operand in statement.operands[1:3]:
            for register in registers_of(operand):
                place = self._written_before(register, statement.start)
                if place not in self._used:
                    self._used.add(place)
                    yield from self._use(statement, register, low_only=True)
        for number, (new, old) in enumerate(zip(produced, before, strict=True)):
            if number == chosen:
                yield f"fma.rn.f{self.function.width(new)} {new}, {first[0]}, {second[0]}, {old};"
            elif new != old:
                yield f"mov.b{self.function.width(new)} {new}, {old};"

    def _written_before(self, register: str, start: int) -> int:
        """Return the position of the last instruction before `start` that writes a register."""
        places = self._writes.get(register, [])
        return max((place for place in places if place < start), default=max(places, default=-1))

    def _is_constant(self, operand: str) -> bool:
        """Return whether an operand is a number, or a register that only receives numbers."""
        if re.match(r"[-\d]", operand):
            return True
        writers = [statement for statement in self.function.statements if operand in results(statement)]
        return bool(writers) and all(
            writer.base == "mov" and re.match(r"[-\d]", writer.operands[1]) for writer in writers
        )

    @cached_property
    def _writes(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for statement in self.function.statements:
            for register in results(statement):
                places.setdefault(register, []).append(statement.start)
        return places

    # Addresses ------------------------------------------------------------------------------------------------------

    def _without_conflicts(self, statement: Statement) -> Iterator[str]:
        """Yield the access with conflict-free addresses, one place per lane; its original address is still computed."""
        width = _lane_bytes(statement)
        # Another place for each access: at one place, later stores would replace earlier ones.
        offset = self._moved % ((self.shared_bytes - 16 - 32 * width) // 16 + 1) * 16
        self._moved += 1
        self._lanes.add(width)
        yield from self._address_word(statement)
        yield f"and.b32 %kow, %kow, %kozero; or.b32 %kow, %kow, %kolanes{width};"
        written = ", ".join(
            f"[%kow+{offset}]" if operand.startswith("[") else operand for operand in statement.operands
        )
        yield f"{statement.predicate}{statement.opcode} {written};"
