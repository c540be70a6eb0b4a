"""Translate the text of an inline PTX statement to C++: registers, predicates, labels and instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opbench.emulator.arithmetic import OperandToCpp, arithmetic
from opbench.emulator.ptx_functions import FUNCTIONS

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
PIECE = re.compile(r"\s*(?:([{}])|([$\w]+)\s*:(?!:)|([^;]*);|(\S[^;]*)$)", re.DOTALL)
"""A brace of a scope, a label, or an instruction; the last one may lack its semicolon."""
DECLARATION = re.compile(r"\.reg\s*\.(\w+)\s+(.*)", re.DOTALL)
REGISTER = re.compile(r"(%%|[%$_])?(\w+)(?:<(\d+)>)?")
REGISTER_TYPES = {
    "pred": "bool", "b8": "unsigned char", "u8": "unsigned char", "s8": "signed char",
    "b16": "unsigned short", "u16": "unsigned short", "s16": "short",
    "b32": "unsigned", "u32": "unsigned", "s32": "int", "f32": "float",
    "b64": "unsigned long long", "u64": "unsigned long long", "s64": "long long", "f64": "double",
}  # fmt: skip
GUARD = re.compile(r"@(!?)([%$\w]+)\s+(.*)", re.DOTALL)
OPERAND = re.compile(r"\[[^\]]*\]|\{[^}]*\}|[^,{}\s]+")
SPECIAL = re.compile(r"%%?([a-z_][a-z_0-9]*(?:\.[xyzw])?)")
CACHE_QUALIFIER = re.compile(r"\.L[12]::(?!cache_hint)\w+")
ORDERS = {
    "volatile": "OPB_VOLATILE",
    "relaxed": "OPB_STRONG",
    "acquire": "OPB_STRONG | OPB_ACQUIRES",
    "release": "OPB_STRONG | OPB_RELEASES",
    "acq_rel": "OPB_STRONG | OPB_ACQUIRES | OPB_RELEASES",
    "cta": "OPB_BLOCK_SCOPE",
    "cluster": "OPB_CLUSTER_SCOPE",
}
"""Bits of `opb_access_word` (abi.hpp) for a memory order or scope in an opcode."""
HINTS = frozenset(("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "volatile", "relaxed", "acquire", "release"))
SCOPES = frozenset(("cta", "gpu", "sys", "cluster"))
SHARED = re.compile(r"\.shared::(?:cta|cluster)\b")
"""Matches both shared state spaces: in the emulator, the upper byte of an address encodes the block of the cluster."""
MEMORY = re.compile(r"^(ld|st|red|atom|mbarrier)$")
ORDERED = frozenset(("ld", "st", "red", "atom"))
SPACES = frozenset(("global", "shared", "const", "param", "local"))

# Families of instructions whose qualifiers become arguments of one C++ function.
LOAD_TENSOR = re.compile(
    r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cluster|cta)\.global(\.tile|\.im2col)?"
    r"\.mbarrier::complete_tx::bytes(\.multicast::cluster)?(\.L2::cache_hint)?"
)
STORE_TENSOR = re.compile(
    r"cp\.(reduce\.)?async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(?:\.(add|min|max))?(?:\.tile)?"
    r"\.bulk_group(\.L2::cache_hint)?"
)
LOAD_BULK = re.compile(
    r"cp\.async\.bulk\.shared::(?:cluster|cta)\.(global|shared::cta)\.mbarrier::complete_tx::bytes"
    r"(\.multicast::cluster)?(\.L2::cache_hint)?"
)
STORE_BULK = re.compile(
    r"cp\.(reduce\.)?async\.bulk\.global\.shared::cta\.bulk_group(\.L2::cache_hint)?(?:\.(add|min|max)\.(f32|u32|s32))?"
)
IGNORED_INSTRUCTION = re.compile(
    r"(cp\.async\.bulk\.prefetch(\.tensor\.[1-5]d)?\.L2\.global\S*|prefetch\.(tensormap|\S+\.tensormap)|"
    r"createpolicy\.\S+|griddepcontrol\.launch_dependents|fence\.mbarrier_init\S*)"
)
"""Instructions that cannot change a result and are translated to nothing: prefetches and hints."""
PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(f32|f16|s32)"
    r"\.(bf16|f16|tf32|e4m3|e5m2|s8)\.(bf16|f16|tf32|e4m3|e5m2|s8)"
)
PRODUCT_DEPTH = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32}
TRANSPOSABLE = ("bf16", "f16")
STORE_ASYNC = re.compile(
    r"st\.async(?:\.weak)?\.shared::cluster\.mbarrier::complete_tx::bytes(?:\.v[24])?\.([busf]\d+)"
)
BARRIER = re.compile(r"(?:bar|barrier)(?:\.cta)?\.(sync|arrive)(?:\.aligned)?")
CLUSTER_BARRIER = re.compile(
    r"barrier\.cluster\.(?:arrive(?:\.release|(?P<relaxed>\.relaxed))?|(?P<wait>wait)(?:\.acquire)?)(?:\.aligned)?"
)
COMPARISON = re.compile(r"(setp|set)\.(eq|ne|lt|le|gt|ge|lo|ls|hi|hs)\.([busf]\d+)")


class UnknownInstruction(Exception):
    """The cpu backend has no function for an instruction."""


def translate(template: str, expressions: Sequence[str]) -> str:
    """Return C++ statements equivalent to inline PTX with these operands; raise UnknownInstruction."""
    scopes: list[dict[str, str]] = [{}]
    labels: list[str] = []
    statements: list[str] = []
    for brace, label, with_semicolon, without_semicolon in PIECE.findall(COMMENT.sub(" ", template)):
        instruction = " ".join((with_semicolon or without_semicolon).split())
        if brace == "{":
            scopes.append({})
            statements.append("{")
        elif brace == "}":
            scopes.pop()
            statements.append("}")
        elif label:
            labels.append(_label(label))
            statements.append(f"{_label(label)}:;")
        elif declared := DECLARATION.match(instruction):
            statements.append(_declare(declared[1], declared[2], scopes[-1]))
        elif instruction:
            cpp_names = {name: cpp_name for scope in scopes for name, cpp_name in scope.items()}
            statements.append(_statement(instruction, cpp_names, expressions))
    declared_labels = f"__label__ {', '.join(labels)}; " if labels else ""
    return declared_labels + " ".join(statements)


def _label(name: str) -> str:
    """Return the C++ label of a PTX label."""
    return "opb_label_" + re.sub(r"\W", "_", name)


def _declare(type_name: str, names: str, cpp_name_by_register: dict[str, str]) -> str:
    """Return the C++ declaration of PTX registers, and add their C++ names to a scope."""
    if type_name not in REGISTER_TYPES:
        raise UnknownInstruction(f".reg .{type_name}")
    cpp_names: list[str] = []
    for _, name, count in REGISTER.findall(names):
        for number in range(int(count)) if count else ("",):
            cpp_name_by_register[f"{name}{number}"] = f"opb_{name}{number}"
            cpp_names.append(f"opb_{name}{number}")
    # No initialiser: C++ does not allow a goto to jump over one.
    return f"{REGISTER_TYPES[type_name]} {', '.join(cpp_names)};"


def _statement(instruction: str, cpp_names: dict[str, str], expressions: Sequence[str]) -> str:
    """Return the C++ statement of one PTX instruction with its guard; raise UnknownInstruction."""
    if guard_match := GUARD.match(instruction):
        condition = guard_match[1] + _operand(guard_match[2], cpp_names, expressions)
        return f"if ({condition}) {{ {_statement(guard_match[3], cpp_names, expressions)} }}"
    opcode, _, operand_text = instruction.partition(" ")
    if re.fullmatch(r"bra(\.uni)?", opcode):
        return f"goto {_label(operand_text.strip())};"
    try:
        return _call(opcode, operand_text, lambda operand: _operand(operand, cpp_names, expressions)) + ";"
    except (IndexError, ValueError, KeyError, UnknownInstruction):
        raise UnknownInstruction(instruction) from None


def _call(opcode: str, operand_text: str, to_cpp: OperandToCpp) -> str:
    """Return the C++ call of one PTX instruction without its guard; raise UnknownInstruction."""
    operands = OPERAND.findall(operand_text)
    for pattern, translate_family in FAMILIES:
        if match := pattern.fullmatch(opcode):
            return translate_family(match, operands, to_cpp)
    if call := arithmetic(opcode, operands, to_cpp):
        return call
    name = function_name(opcode)
    special = SPECIAL.fullmatch(operands[-1]) if operands else None
    if special and not _is_register(operands[-1], to_cpp):
        name += "_" + special.group(1).replace(".", "_")
        operands = operands[:-1]
    elif name.startswith(("mov_b64", "mov_b32")) and "{" in operand_text:
        name += "_unpacked" if operands[0].startswith("{") else "_packed"
    if name not in FUNCTIONS:
        raise UnknownInstruction(opcode)
    arguments = ", ".join(argument for operand in operands for argument in _arguments_of(operand, to_cpp))
    call = f"::opb_ptx::{name}({arguments})"
    order = memory_order(opcode)
    return f"::opb_ptx::order_next({order}), {call}" if order else call


def memory_order(opcode: str) -> str:
    """Return the C++ `opb_access_word` of a load, store or atomic operation; "" for no qualifier (device scope)."""
    operation, *qualifiers = SHARED.sub(".shared", opcode).split(".")
    bits = [ORDERS[qualifier] for qualifier in qualifiers if qualifier in ORDERS]
    return " | ".join(bits) if operation in ORDERED else ""


def _is_register(operand: str, to_cpp: OperandToCpp) -> bool:
    """Return whether an operand is a declared register or asm operand, rather than a special register of PTX."""
    try:
        return bool(to_cpp(operand))
    except ValueError:
        return False


def _arguments_of(operand: str, to_cpp: OperandToCpp) -> list[str]:
    """Return the C++ arguments of an operand: the elements of a vector, both registers of `d|p`, an address or
    a value.
    """
    if operand.startswith("{"):
        return [to_cpp(element) for element in re.findall(r"[^,{}\s]+", operand)]
    if "|" in operand:
        return [to_cpp(element) for element in operand.split("|")]
    return [_address(operand, to_cpp) if operand.startswith("[") else to_cpp(operand)]


def _address(operand: str, to_cpp: OperandToCpp) -> str:
    """Return the C++ address of a PTX operand such as "[%rd1+16]"."""
    base, plus, offset = operand[1:-1].partition("+")
    address = f"::opb_ptx::address({to_cpp(base.strip())})"
    return f"{address} + {int(offset, 0)}" if plus else address


def _operand(operand: str, cpp_names: dict[str, str], expressions: Sequence[str]) -> str:
    """Return the C++ expression of a PTX operand: a register, an asm operand or a number; raise ValueError."""
    if operand == "_":
        return "::opb_ptx::sink{}"
    if operand.startswith("!"):
        return "!" + _operand(operand[1:], cpp_names, expressions)
    if re.fullmatch(r"%\d+", operand):
        return expressions[int(operand[1:])]
    if (register := REGISTER.fullmatch(operand)) and register[2] in cpp_names and not operand.isdigit():
        return cpp_names[register[2]]
    if operand.startswith(("0f", "0F")):
        return f"__uint_as_float(0x{operand[2:]}u)"
    if re.fullmatch(r"-?\d+\.\d*", operand):
        return f"{operand}f"
    return str(int(operand.rstrip("Uu"), 0))


def function_name(opcode: str) -> str:
    """Return the C++ function name of an opcode without hints: `ld.global.nc.L1::no_allocate.v4.f32` →
    `ld_global_v4_f32`."""
    qualifiers = SHARED.sub(".shared", CACHE_QUALIFIER.sub("", opcode)).split(".")
    if MEMORY.match(qualifiers[0]):
        qualifiers = [qualifier for qualifier in qualifiers if qualifier not in HINTS | SCOPES | {"acq_rel"}]
    if qualifiers[0] in ORDERED and not SPACES & set(qualifiers):
        qualifiers.insert(1, "global")  # generic addresses are ordinary pointers here
    if qualifiers[0] == "mbarrier":
        qualifiers = [qualifier for qualifier in qualifiers if qualifier not in {"shared", "b64"}]
    if qualifiers[0] in ("ldmatrix", "stmatrix"):
        # PTX allows these qualifiers in any order; function names have a fixed order.
        canonical_order = ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "b16")
        qualifiers[1:] = sorted(
            qualifiers[1:],
            key=lambda qualifier: (
                canonical_order.index(qualifier) if qualifier in canonical_order else len(canonical_order)
            ),
        )
    return re.sub(r"\W+", "_", "_".join(qualifiers))


# Families -------------------------------------------------------------------------------------------------------------


def _int_initializer(operands: Sequence[str], to_cpp: OperandToCpp) -> str:
    """Return a C++ initializer list such as "{(int)(x), (int)(y)}" for the operands of an instruction."""
    return "{" + ", ".join(f"(int)({to_cpp(operand)})" for operand in operands) + "}"


def _tensor(operand: str, to_cpp: OperandToCpp) -> tuple[str, str, int]:
    """Return the map, the coordinates and the number of coordinates of an operand `[map, {x, y}]`."""
    first, *rest = re.findall(r"[^,{}\s\[\]]+", operand)
    return f"::opb_ptx::address({to_cpp(first)})", _int_initializer(rest, to_cpp), len(rest)


def _load_tensor(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of a `cp.async.bulk.tensor` from global to shared memory."""
    rank, im2col, multicast, has_cache_hint = int(match[1]), match[2] == ".im2col", bool(match[3]), bool(match[4])
    destination, source, barrier, *further_operands = operands[: len(operands) - has_cache_hint]
    tensor, coordinates, count = _tensor(source, to_cpp)
    offsets = re.findall(r"[^,{}\s]+", further_operands.pop(0)) if im2col else []
    if count != rank or len(further_operands) != multicast or len(offsets) != (rank - 2 if im2col else 0):
        raise UnknownInstruction
    load_mode = "OPB_LOAD_IM2COL" if im2col else "OPB_LOAD_TILE"
    rank_mask = to_cpp(further_operands[0]) if multicast else "0"
    coordinates = f"{{{rank}, {coordinates}, {_int_initializer(offsets, to_cpp)}}}"
    return (
        f"::opb_ptx::load_tensor({load_mode}, {_address(destination, to_cpp)}, {tensor}, {coordinates}, "
        f"{_address(barrier, to_cpp)}, {rank_mask})"
    )


def _store_tensor(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of a `cp.async.bulk.tensor` from shared to global memory, with or without a reduction."""
    target, source = operands[: len(operands) - bool(match[4])]
    tensor, coordinates, count = _tensor(target, to_cpp)
    if count != int(match[2]) or bool(match[1]) != bool(match[3]):
        raise UnknownInstruction
    store_mode = f"OPB_REDUCE_{match[3].upper()}" if match[1] else "OPB_STORE"
    return (
        f"::opb_ptx::store_tensor({store_mode}, {tensor}, {{{count}, {coordinates}, {{}}}}, {_address(source, to_cpp)})"
    )


def _load_bulk(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of a `cp.async.bulk` to shared memory."""
    destination, source, byte_count, barrier, *mask_operands = operands[: len(operands) - bool(match[3])]
    if len(mask_operands) != bool(match[2]) or (mask_operands and match[1] != "global"):
        raise UnknownInstruction
    is_global = "true" if match[1] == "global" else "false"
    rank_mask = to_cpp(mask_operands[0]) if mask_operands else "0"
    addresses = f"{_address(destination, to_cpp)}, {_address(source, to_cpp)}"
    return (
        f"::opb_ptx::load_bulk({is_global}, {addresses}, {to_cpp(byte_count)}, {_address(barrier, to_cpp)}, "
        f"{rank_mask})"
    )


def _store_bulk(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of a `cp.async.bulk` to global memory, with or without a reduction."""
    destination, source, byte_count = operands[: len(operands) - bool(match[2])]
    if bool(match[1]) != bool(match[3]):
        raise UnknownInstruction
    store_mode = f"OPB_REDUCE_{match[3].upper()}" if match[1] else "OPB_STORE"
    element = f"OPB_{match[4].upper()}" if match[1] else "OPB_U8"
    return (
        f"::opb_ptx::store_bulk({store_mode}, {element}, {_address(destination, to_cpp)}, "
        f"{_address(source, to_cpp)}, {to_cpp(byte_count)})"
    )


def _ignored(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return a C++ call without effect, for a prefetch or a hint."""
    target = operands[:1] if match[0].startswith("createpolicy") else []
    return f"::opb_ptx::nothing({', '.join(map(to_cpp, target))})"


def _product(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of a `wgmma.mma_async`."""
    columns, depth, (left, right) = int(match[1]), int(match[2]), match.group(4, 5)
    accumulators, a, b, *further_operands = operands
    accumulator_arguments = [to_cpp(register) for register in re.findall(r"[^,{}\s]+", accumulators)]
    a_arguments = [to_cpp(register) for register in re.findall(r"[^,{}\s]+", a)]
    scales = 0 if left == "s8" else 2
    transposes = [to_cpp(further_operands.pop()) for _ in range(len(further_operands) - 1 - scales)][::-1]
    # Products of whole numbers have no scales of 1 or -1.
    add, scale_a, scale_b = (to_cpp(operand) for operand in (*further_operands, *(("1", "1") if left == "s8" else ())))
    transpose_count = 0 if left not in TRANSPOSABLE else 1 if a.startswith("{") else 2
    is_invalid_mix = (
        (left != right and not left[0] == right[0] == "e")
        or (match[3] == "f16" and left in ("bf16", "tf32"))
        or (match[3] == "s32") != (left == "s8")
    )
    if (
        len(transposes) != transpose_count
        or len(accumulator_arguments) * (4 if match[3] == "f16" else 2) != columns
        or len(a_arguments) not in (1, 4)
    ):
        raise UnknownInstruction
    if depth != PRODUCT_DEPTH[left] or is_invalid_mix or columns % 8 or not 8 <= columns <= 256:
        raise UnknownInstruction
    a_transposed = transposes[0] if transpose_count == 2 else "0"
    b_transposed = transposes[-1] if transpose_count else "0"
    types = f"OPB_{left.upper()}, OPB_{right.upper()}, {columns}, {depth}"
    scalar_arguments = f"{b}, {add}, {scale_a}, {scale_b}, {a_transposed}, {b_transposed}".replace(b, to_cpp(b), 1)
    matrix = (
        f"{{0, (unsigned)({'), (unsigned)('.join(a_arguments)})}}" if len(a_arguments) == 4 else f"{{{a_arguments[0]}}}"
    )
    return (
        f"::opb_ptx::product<{types}, {int(len(a_arguments) == 4)}>({matrix}, {scalar_arguments}, "
        f"{', '.join(accumulator_arguments)})"
    )


def _store_async(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of an `st.async`."""
    destination, values, barrier = operands
    cpp_type = REGISTER_TYPES[match[1]]
    values_text = ", ".join(f"({cpp_type})({argument})" for argument in _arguments_of(values, to_cpp))
    return (
        f"::opb_ptx::store_async<{cpp_type}>({_address(destination, to_cpp)}, {_address(barrier, to_cpp)}, "
        f"{values_text})"
    )


def _barrier(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of a `bar.sync` or `bar.arrive`."""
    return f"::opb_ptx::bar_{match[1]}({', '.join(map(to_cpp, operands))})"


def _cluster_barrier(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call of a `barrier.cluster`."""
    return f"::opb_ptx::cluster_{'wait' if match['wait'] else 'arrive_relaxed' if match['relaxed'] else 'arrive'}()"


def _comparison(match: re.Match[str], operands: list[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ assignment of a `setp`."""
    cpp_operator = {
        "eq": "==",
        "ne": "!=",
        "lt": "<",
        "le": "<=",
        "gt": ">",
        "ge": ">=",
        "lo": "<",
        "ls": "<=",
        "hi": ">",
        "hs": ">=",
    }[match[2]]
    cpp_type = REGISTER_TYPES[match[3]]
    target, left, right = (to_cpp(operand) for operand in operands)
    if match[1] == "set":
        raise UnknownInstruction
    return f"{target} = ({cpp_type})({left}) {cpp_operator} ({cpp_type})({right})"


FAMILIES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], list[str], OperandToCpp], str]], ...] = (
    (LOAD_TENSOR, _load_tensor),
    (STORE_TENSOR, _store_tensor),
    (LOAD_BULK, _load_bulk),
    (STORE_BULK, _store_bulk),
    (IGNORED_INSTRUCTION, _ignored),
    (PRODUCT, _product),
    (STORE_ASYNC, _store_async),
    (BARRIER, _barrier),
    (CLUSTER_BARRIER, _cluster_barrier),
    (COMPARISON, _comparison),
)
