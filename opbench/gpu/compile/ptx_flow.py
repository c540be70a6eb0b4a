"""Find the values that determine addresses and branches: a knock-out experiment must not change them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from opbench.gpu.compile.ptx_statements import Function, Statement, registers_of

NO_RESULT = ("st", "red", "bra", "brx", "bar", "barrier", "cp", "mbarrier", "fence", "membar", "ret", "exit", "trap",
             "stmatrix", "prefetch", "wgmma", "call", "griddepcontrol", "setmaxnreg", "nanosleep", "sust", "discard",
             "applypriority", "clusterlaunchcontrol")  # fmt: skip
"""Instructions whose first operand is no result."""
MBARRIER_OPERATIONS = ("arrive", "test_wait", "try_wait")
"""Operations of an mbarrier that have a result."""
MEMORY_OPCODES = ("ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix", "cp", "mbarrier", "wmma")
"""Instructions with addresses in their brackets."""
CONTROL_OPCODES = ("bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call", "mbarrier", "nanosleep")
"""Instructions whose execution or operands decide the path of a thread."""
ORDERED_QUALIFIERS = frozenset(("volatile", "acquire", "release", "relaxed", "acq_rel", "mmio"))
"""Modifiers of accesses by which threads wait for each other."""

ADDRESS, BRANCH, STORED_ADDRESS = "feeds-address", "feeds-branch", "stored-address"
"""Reasons why a value must not change: it decides an address or a branch, or a kernel stores it as an address."""


@dataclass
class Flow:
    """The values of one function that must not change, each with the reason."""

    function: Function
    reason_by_register: dict[str, str] = field(default_factory=dict)
    """The reason for each register whose value must not change."""
    shared_by_register: dict[str, frozenset[str]] = field(default_factory=dict)
    """The variables in shared memory that each register may point to."""
    reason_by_shared_variable: dict[str, str] = field(default_factory=dict)
    """The reason for each variable in shared memory whose content must not change; "*" is an unknown variable."""
    address_stores: frozenset[int] = frozenset()
    """Start positions of the stores to global memory whose values must stay: a kernel uses them as addresses."""

    def reason(self, statement: Statement) -> str:
        """Return why the result of an instruction must not change; empty if it may change."""
        return next(
            (self.reason_by_register[name] for name in written_registers(statement) if name in self.reason_by_register),
            "",
        )

    def shared_reason(self, statement: Statement) -> str:
        """Return why shared memory that an instruction accesses must keep its content; empty if it need not."""
        accessed = self._variables_of(statement)
        return next(
            (
                reason
                for name, reason in self.reason_by_shared_variable.items()
                if "*" in (name, *accessed) or name in accessed
            ),
            "",
        )

    def mark_shared(self, statement: Statement, reason: str) -> None:
        """Record that the content of the shared variables that a load reads must not change."""
        for name in self._variables_of(statement):
            self.reason_by_shared_variable.setdefault(name, reason)

    def _variables_of(self, statement: Statement) -> frozenset[str]:
        """Return the shared variables that an instruction accesses; "*" if they are not known."""
        address_words = addresses(statement)
        direct = frozenset(address_words) & frozenset(self.function.shared)
        return direct.union(*(self.shared_by_register.get(word, frozenset()) for word in address_words)) or frozenset(
            "*"
        )

    def waiting_loads(self) -> Iterator[Statement]:
        """Yield the loads by which a thread waits for another thread."""
        for statement in self.function.statements:
            if (
                statement.base in ("ld", "atom")
                and statement.modifiers & {*ORDERED_QUALIFIERS, "atom"}
                and self.reason(statement) == BRANCH
            ):
                yield statement


def written_registers(statement: Statement) -> tuple[str, ...]:
    """Return the registers that an instruction writes."""
    if not statement.operands:
        return ()
    if statement.base == "mbarrier":
        has_result = statement.modifiers & set(MBARRIER_OPERATIONS) and "_" not in statement.operands[0]
        return registers_of(statement.operands[0]) if has_result and "[" not in statement.operands[0] else ()
    if statement.base == "wgmma" and "mma_async" in statement.modifiers:
        return registers_of(statement.operands[0])
    if statement.base in NO_RESULT or (statement.base == "wmma" and "store" in statement.modifiers):
        return ()
    return registers_of(statement.operands[0])


def operands(statement: Statement) -> tuple[str, ...]:
    """Return the registers that an instruction reads, without its guarding predicate."""
    first = statement.operands[:1] if not written_registers(statement) or statement.base == "wgmma" else ()
    return tuple(name for operand in (*first, *statement.operands[1:]) for name in registers_of(operand))


def addresses(statement: Statement) -> tuple[str, ...]:
    """Return the registers in an instruction's memory address."""
    return tuple(name for operand in statement.operands if operand.startswith("[") for name in registers_of(operand))


def follow_values(function: Function, address_stores: Collection[int] = ()) -> Flow:
    """Find the values that determine the addresses and branches of a function.

    `address_stores` are the start positions of stores to global memory whose values a kernel of the case uses as
    addresses.
    """
    shared_by_register = value_origins(function, {name: name for name in function.shared})
    flow = Flow(function, address_stores=frozenset(address_stores), shared_by_register=shared_by_register)
    for instruction in function.statements:
        if instruction.base in MEMORY_OPCODES:
            _mark_registers(flow, addresses(instruction), ADDRESS)
        if instruction.base in CONTROL_OPCODES:
            _mark_registers(flow, (instruction.guard, *operands(instruction)), BRANCH)
        elif instruction.guard and instruction.base in MEMORY_OPCODES:
            _mark_registers(flow, (instruction.guard,), BRANCH)
    previous_count = -1
    while previous_count != (previous_count := len(flow.reason_by_register) + len(flow.reason_by_shared_variable)):
        for instruction in reversed(function.statements):
            _follow_statement(flow, instruction)
    return flow


def _mark_registers(flow: Flow, names: tuple[str, ...], reason: str) -> None:
    """Record that registers must not change, with the reason; other names are ignored."""
    for name in names:
        if flow.function.width(name):
            flow.reason_by_register.setdefault(name, reason)


def _follow_statement(flow: Flow, statement: Statement) -> None:
    """If the result of an instruction must not change, mark its operands and the shared memory that it reads."""
    if is_store(statement, "shared") and (shared_reason := flow.shared_reason(statement)):
        _mark_registers(flow, operands(statement), shared_reason)
    if statement.start in flow.address_stores:
        _mark_registers(flow, operands(statement), STORED_ADDRESS)
    reason = flow.reason(statement)
    if not reason:
        return
    if statement.base in ("ld", "ldmatrix") and "shared" in statement.modifiers:
        flow.mark_shared(statement, reason)
    if statement.base not in ("ld", "ldu", "ldmatrix", "tex"):
        _mark_registers(flow, operands(statement), reason)
    _mark_registers(flow, (statement.guard,), reason)


def is_store(statement: Statement, space: str) -> bool:
    """Return whether an instruction writes registers to memory of a space; atomics also count as writing."""
    return statement.base in ("st", "red", "atom", "stmatrix") and space in statement.modifiers


def parameter_origins(function: Function) -> dict[str, frozenset[str]]:
    """Return the numbers of the parameters from which each register is computed without loads from memory."""
    prefix = f"{function.name}_param_"
    parameter_names = {
        word for statement in function.statements for word in operands(statement) if word.startswith(prefix)
    }
    return value_origins(function, {word: word.removeprefix(prefix) for word in parameter_names})


def value_origins(function: Function, origins: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the origins from which each register is computed without loads from memory.

    `origins` maps names of registers or variables to the origin that each stands for.
    """
    result: dict[str, frozenset[str]] = {}
    previous_count = -1
    while previous_count != (previous_count := sum(map(len, result.values()))):
        for statement in function.statements if origins else ():
            if statement.base in MEMORY_OPCODES and "param" not in statement.modifiers:
                continue
            names = operands(statement)
            found_origins = frozenset(origins[word] for word in names if word in origins)
            found_origins = found_origins.union(*(result.get(word, frozenset()) for word in names))
            for name in written_registers(statement) if found_origins else ():
                result[name] = result.get(name, frozenset()) | found_origins
    return result
