"""Remove one class of instructions from a kernel's PTX, for knock-out experiments.

A knock-out experiment times a kernel without one class of instructions, such as loads. The rewritten kernel still
computes all addresses and values, but its results are wrong: a load becomes a move from bits of its own address, and
a store becomes an exclusive-or into a register on which the kernel's end depends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from opbench.gpu.compile.knockout_addresses import SteppedAddresses
from opbench.gpu.compile.knockout_classes import (
    ADDRESS_ARITHMETIC,
    ATOMICS,
    BANK_CONFLICTS,
    BARRIERS,
    GLOBAL_LOADS,
    GLOBAL_STORES,
    has_replacement,
    is_bulk_copy,
    is_counted_copy,
    is_global_load,
    is_in_class,
    lane_bytes,
)
from opbench.gpu.compile.knockout_edits import SINK_DECLARATION, InstructionEditor
from opbench.gpu.compile.ptx_flow import (
    ORDERED_QUALIFIERS,
    STORED_ADDRESS,
    Flow,
    addresses,
    follow_values,
    is_store,
    parameter_origins,
)
from opbench.gpu.compile.ptx_statements import Function, Statement, parse_functions
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.scalar import Argument, Struct

WAITS, AWAITED, NO_CONFLICTS = "waits", "another-thread-waits", "no-conflicts"
MBARRIER, UNKNOWN_SPACE, NOT_UNDERSTOOD, TOO_SMALL = "mbarrier", "unknown-space", "not-understood", "too-small"
"""Reasons why a knock-out does not remove an instruction; `ptx_flow` defines more reasons."""


@dataclass(frozen=True)
class ClassInstructions:
    """The instructions of one class in a module's PTX: those that can be removed and those that cannot."""

    name: str
    removable: tuple[Statement, ...]
    """Instructions that can be removed."""
    remaining: tuple[tuple[Statement, str], ...]
    """Instructions that stay, each with the reason, such as "waits"."""

    def lines(self, kernel_file: str) -> dict[str, int]:
        """Return the number of removed instructions by source line, largest first.

        A line is a number in `kernel_file`, or FILE:LINE in another file.
        """
        return _count_by_line(self.removable, kernel_file)

    def remaining_lines(self, kernel_file: str) -> tuple[tuple[str, int, str], ...]:
        """Return the source line, number and reason of the instructions that cannot be removed."""
        reasons = dict.fromkeys(reason for _, reason in self.remaining)
        return tuple(
            (location, count, reason)
            for reason in reasons
            for location, count in _count_by_line(
                (statement for statement, statement_reason in self.remaining if statement_reason == reason), kernel_file
            ).items()
        )


def _count_by_line(statements: Iterable[Statement], kernel_file: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for statement in statements:
        location = (
            str(statement.line)
            if statement.file == kernel_file
            else f"{PurePath(statement.file).name}:{statement.line}"
        )
        counts[location] = counts.get(location, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


class KnockOut:
    """The PTX of a module, from which a knock-out experiment removes classes of instructions."""

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
        they are unknown, so that every access may have conflicts.
        """
        self.module = parse_functions(text)
        self._conflicts = conflicts
        self._shared_bytes: dict[str, int] = {}
        self._buffers: dict[str, list[set[str]]] = {}
        for launch in launches:
            if launch.kernel:
                name = (names or {}).get(launch.kernel, launch.kernel)
                shared_bytes = (static_shared or {}).get(name, 0) + launch.shared_bytes
                self._shared_bytes[name] = min(shared_bytes, self._shared_bytes.get(name, shared_bytes))
                buffers_of_arguments = [_buffers_of(launch, argument) for argument in launch.args]
                earlier_arguments = self._buffers.get(name, [set() for _ in buffers_of_arguments])
                self._buffers[name] = [
                    buffers | earlier_buffers
                    for buffers, earlier_buffers in zip(buffers_of_arguments, earlier_arguments, strict=True)
                ]
        self.kernels = tuple(self._buffers)
        functions_used = [
            function for function in self.module.functions if function.name in self._buffers or not function.is_kernel
        ]
        self.flows = self._data_flows(functions_used)
        self._stepped = [SteppedAddresses(function, text) for function in functions_used]
        self._waits_in_loop = any(True for flow in self.flows for _ in flow.waiting_loads())
        statements = [statement for flow in self.flows for statement in flow.function.statements]
        self._bulk_counts = any(map(is_counted_copy, statements))
        self._initialises = any(
            statement.base == "mbarrier" and "init" in statement.modifiers for statement in statements
        )

    def _data_flows(self, functions: Sequence[Function]) -> list[Flow]:
        """Return the data flow of each function.

        Stores to buffers from which a kernel loads addresses keep their values.
        """
        sources = {function.name: parameter_origins(function) for function in functions}

        def buffers(function: Function, access: Statement) -> set[str]:
            argument_buffers = self._buffers.get(function.name, [])
            argument_indices = {
                int(n) for name in addresses(access) for n in sources[function.name].get(name, ()) if n.isdecimal()
            }
            buffers_of_access = [argument_buffers[index] for index in argument_indices if index < len(argument_buffers)]
            return set().union(*buffers_of_access) or {"*"}  # The buffers of a device function are unknown.

        unchanged_stores: set[int] = set()
        while True:
            flows = [follow_values(function, unchanged_stores) for function in functions]
            loaded_buffers = set()
            for flow in flows:
                for statement in flow.function.statements:
                    if is_global_load(statement) and flow.reason(statement):
                        loaded_buffers |= buffers(flow.function, statement)
            address_stores = {
                statement.start
                for flow in flows
                for statement in flow.function.statements
                if loaded_buffers and is_store(statement, "global")
                if (store_buffers := buffers(flow.function, statement)) & loaded_buffers
                or "*" in store_buffers | loaded_buffers
            }
            if address_stores <= unchanged_stores:
                return flows
            unchanged_stores |= address_stores

    def instructions_in_class(self, name: str) -> ClassInstructions:
        """Return the instructions of one class: those that can be removed and those that cannot."""
        removable: list[Statement] = []
        remaining: list[tuple[Statement, str]] = []
        for stepped in self._stepped if name == ADDRESS_ARITHMETIC else ():
            removable += stepped.removed
            remaining += stepped.remaining
        for flow in self.flows if name != ADDRESS_ARITHMETIC else ():
            for statement in flow.function.statements:
                if not is_in_class(statement, name):
                    continue
                if reason := self._reason(name, statement, flow):
                    remaining.append((statement, reason))
                else:
                    removable.append(statement)
        return ClassInstructions(name, tuple(removable), tuple(remaining))

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
        if flow.reason_by_shared_variable and name in (BARRIERS, BANK_CONFLICTS):
            return next(iter(flow.reason_by_shared_variable.values()))
        writes_shared = is_store(statement, "shared") or (name == GLOBAL_LOADS and statement.base == "cp")
        if writes_shared and (reason := flow.shared_reason(statement)):
            return reason
        if name in (GLOBAL_STORES, ATOMICS, BARRIERS) and self._waits_in_loop:
            return AWAITED
        if statement.start in flow.address_stores:
            return STORED_ADDRESS
        if name == BARRIERS and self._initialises:
            return MBARRIER
        if name == GLOBAL_LOADS and is_bulk_copy(statement) and self._bulk_counts:
            return MBARRIER
        if (
            name == BANK_CONFLICTS
            and self._conflicts is not None
            and (statement.file, statement.line) not in self._conflicts
        ):
            return NO_CONFLICTS
        if name == BANK_CONFLICTS and self._has_too_little_shared_memory(flow.function, statement):
            return TOO_SMALL
        return "" if has_replacement(name, statement, flow.function) else NOT_UNDERSTOOD

    def _has_too_little_shared_memory(self, function: Function, statement: Statement) -> bool:
        """Return whether shared memory is too small to give each of 32 lanes its own address."""
        shared_bytes = self._shared_bytes.get(function.name, 0)
        return not function.shared or shared_bytes < 32 * lane_bytes(statement) + 16

    def ptx_without(self, names: Collection[str], unroll: bool = True) -> str:
        """Return the PTX without the removable instructions of some classes.

        Without `unroll`, the assembler keeps the loops whose addresses advance as they are.
        """
        removable_ids = {
            name: {id(statement) for statement in self.instructions_in_class(name).removable}
            for name in names
            if name != ADDRESS_ARITHMETIC
        }
        edits: list[tuple[int, int, str]] = []
        for flow, stepped in zip(self.flows, self._stepped, strict=True):
            editor = InstructionEditor(flow.function, self._shared_bytes.get(flow.function.name, 0))
            accesses = stepped.accesses if ADDRESS_ARITHMETIC in names else {}
            for statement in flow.function.statements:
                access = accesses.get(statement.start, statement)
                removed_by = [name for name, ids in removable_ids.items() if id(statement) in ids]
                for name in removed_by:
                    editor.remove(name, access)
                if access is not statement and not removed_by:
                    edits.append((access.start, access.end, access.text))
            edits += editor.edits()
            edits += stepped.edits(unroll) if ADDRESS_ARITHMETIC in names else ()
        if any("[kosunk]" in new for _, _, new in edits):
            insertion = self.module.text.index("\n", self.module.text.index(".address_size")) + 1
            edits.append((insertion, insertion, SINK_DECLARATION))
        text, position = [], 0
        for start, end, new in sorted(edits):
            text += [self.module.text[position:start], new]
            position = end
        return "".join((*text, self.module.text[position:]))


def _buffers_of(launch: KernelLaunch, argument: Argument) -> set[str]:
    """Return the buffers that an argument of a launch refers to."""
    if isinstance(argument, Struct):
        return set(argument.names())
    tensor_by_map = {tensor_map.name: tensor_map.tensor for tensor_map in launch.tensor_maps}
    return {tensor_by_map.get(argument, argument)} if isinstance(argument, str) else set()
