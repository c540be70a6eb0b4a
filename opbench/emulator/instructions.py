"""Translate the text of an inline PTX statement to C++: registers, predicates, labels and instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opbench.emulator.arithmetic import Words, arithmetic
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
"""Both state spaces are one here: the upper byte of a shared address encodes the block of the cluster."""
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
    written: list[str] = []
    for brace, label, closed, open_ended in PIECE.findall(COMMENT.sub(" ", template)):
        instruction = " ".join((closed or open_ended).split())
        if brace == "{":
            scopes.append({})
            written.append("{")
        elif brace == "}":
            scopes.pop()
            written.append("}")
        elif label:
            labels.append(_label(label))
            written.append(f"{_label(label)}:;")
        elif declared := DECLARATION.match(instruction):
            written.append(_declare(declared[1], declared[2], scopes[-1]))
        elif instruction:
            names = {name: made for scope in scopes for name, made in scope.items()}
            written.append(_statement(instruction, names, expressions))
    declared_labels = f"__label__ {', '.join(labels)}; " if labels else ""
    return declared_labels + " ".join(written)


def _label(name: str) -> str:
    return "opb_label_" + re.sub(r"\W", "_", name)


def _declare(type_name: str, names: str, scope: dict[str, str]) -> str:
    if type_name not in REGISTER_TYPES:
        raise UnknownInstruction(f".reg .{type_name}")
    lines: list[str] = []
    for _, name, count in REGISTER.findall(names):
        for number in range(int(count)) if count else ("",):
            scope[f"{name}{number}"] = f"opb_{name}{number}"
            lines.append(f"opb_{name}{number}")
    # No initialiser: C++ does not allow a goto to jump over one.
    return f"{REGISTER_TYPES[type_name]} {', '.join(lines)};"


def _statement(instruction: str, names: dict[str, str], expressions: Sequence[str]) -> str:
    if guard := GUARD.match(instruction):
        condition = guard[1] + _operand(guard[2], names, expressions)
        return f"if ({condition}) {{ {_statement(guard[3], names, expressions)} }}"
    opcode, _, rest = instruction.partition(" ")
    if re.fullmatch(r"bra(\.uni)?", opcode):
        return f"goto {_label(rest.strip())};"
    try:
        return _call(opcode, rest, lambda operand: _operand(operand, names, expressions)) + ";"
    except (IndexError, ValueError, KeyError, UnknownInstruction):
        raise UnknownInstruction(instruction) from None


def _call(opcode: str, rest: str, words: Words) -> str:
    operands = OPERAND.findall(rest)
    for pattern, family in FAMILIES:
        if match := pattern.fullmatch(opcode):
            return family(match, operands, words)
    if call := arithmetic(opcode, operands, words):
        return call
    name = function_name(opcode)
    special = SPECIAL.fullmatch(operands[-1]) if operands else None
    if special and not _is_register(operands[-1], words):
        name += "_" + special.group(1).replace(".", "_")
        operands = operands[:-1]
    elif name.startswith(("mov_b64", "mov_b32")) and "{" in rest:
        name += "_unpacked" if operands[0].startswith("{") else "_packed"
    if name not in FUNCTIONS:
        raise UnknownInstruction(opcode)
    call = f"::opb_ptx::{name}({', '.join(word for operand in operands for word in _words_of(operand, words))})"
    order = memory_order(opcode)
    return f"::opb_ptx::order_next({order}), {call}" if order else call


def memory_order(opcode: str) -> str:
    """Return the C++ `opb_access_word` of a load, store or atomic operation; "" for no qualifier (device scope)."""
    first, *parts = SHARED.sub(".shared", opcode).split(".")
    orders = [ORDERS[part] for part in parts if part in ORDERS]
    return " | ".join(orders) if first in ORDERED else ""


def _is_register(operand: str, words: Words) -> bool:
    """Return whether an operand is a declared register or asm operand, rather than a special register of PTX."""
    try:
        return bool(words(operand))
    except ValueError:
        return False


def _words_of(operand: str, words: Words) -> list[str]:
    """Return the C++ arguments of an operand: the elements of a vector, both parts of `d|p`, an address or a value."""
    if operand.startswith("{"):
        return [words(part) for part in re.findall(r"[^,{}\s]+", operand)]
    if "|" in operand:
        return [words(part) for part in operand.split("|")]
    return [_address(operand, words) if operand.startswith("[") else words(operand)]


def _address(operand: str, words: Words) -> str:
    base, plus, offset = operand[1:-1].partition("+")
    address = f"::opb_ptx::address({words(base.strip())})"
    return f"{address} + {int(offset, 0)}" if plus else address


def _operand(operand: str, names: dict[str, str], expressions: Sequence[str]) -> str:
    if operand == "_":
        return "::opb_ptx::sink{}"
    if operand.startswith("!"):
        return "!" + _operand(operand[1:], names, expressions)
    if re.fullmatch(r"%\d+", operand):
        return expressions[int(operand[1:])]
    if (register := REGISTER.fullmatch(operand)) and register[2] in names and not operand.isdigit():
        return names[register[2]]
    if operand.startswith(("0f", "0F")):
        return f"__uint_as_float(0x{operand[2:]}u)"
    if re.fullmatch(r"-?\d+\.\d*", operand):
        return f"{operand}f"
    return str(int(operand.rstrip("Uu"), 0))


def function_name(opcode: str) -> str:
    """Return the C++ function name of an opcode without hints: `ld.global.nc.L1::no_allocate.v4.f32` →
    `ld_global_v4_f32`."""
    parts = SHARED.sub(".shared", CACHE_QUALIFIER.sub("", opcode)).split(".")
    if MEMORY.match(parts[0]):
        parts = [part for part in parts if part not in HINTS | SCOPES | {"acq_rel"}]
    if parts[0] in ORDERED and not SPACES & set(parts):
        parts.insert(1, "global")  # generic addresses are ordinary pointers here
    if parts[0] == "mbarrier":
        parts = [part for part in parts if part not in {"shared", "b64"}]
    if parts[0] in ("ldmatrix", "stmatrix"):
        # PTX allows their qualifiers in any order; the function names have one.
        order = ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "b16")
        parts[1:] = sorted(parts[1:], key=lambda part: order.index(part) if part in order else len(order))
    return re.sub(r"\W+", "_", "_".join(parts))


# Families -------------------------------------------------------------------------------------------------------------


def _int_initializer(operands: Sequence[str], words: Words) -> str:
    """Return a C++ initializer list such as "{(int)(x), (int)(y)}" for the operands of an instruction."""
    return "{" + ", ".join(f"(int)({words(operand)})" for operand in operands) + "}"


def _tensor(operand: str, words: Words) -> tuple[str, str, int]:
    """Return the map, the coordinates and the number of coordinates of an operand `[map, {x, y}]`."""
    first, *rest = re.findall(r"[^,{}\s\[\]]+", operand)
    return f"::opb_ptx::address({words(first)})", _int_initializer(rest, words), len(rest)


def _load_tensor(match: re.Match[str], operands: list[str], words: Words) -> str:
    rank, im2col, multicast, hinted = int(match[1]), match[2] == ".im2col", bool(match[3]), bool(match[4])
    to, source, barrier, *rest = operands[: len(operands) - hinted]
    tensor, place, count = _tensor(source, words)
    offsets = re.findall(r"[^,{}\s]+", rest.pop(0)) if im2col else []
    if count != rank or len(rest) != multicast or len(offsets) != (rank - 2 if im2col else 0):
        raise UnknownInstruction
    kind = "OPB_LOAD_IM2COL" if im2col else "OPB_LOAD_TILE"
    ranks = words(rest[0]) if multicast else "0"
    place = f"{{{rank}, {place}, {_int_initializer(offsets, words)}}}"
    return (
        f"::opb_ptx::load_tensor({kind}, {_address(to, words)}, {tensor}, {place}, {_address(barrier, words)}, {ranks})"
    )


def _store_tensor(match: re.Match[str], operands: list[str], words: Words) -> str:
    target, source = operands[: len(operands) - bool(match[4])]
    tensor, place, count = _tensor(target, words)
    if count != int(match[2]) or bool(match[1]) != bool(match[3]):
        raise UnknownInstruction
    kind = f"OPB_REDUCE_{match[3].upper()}" if match[1] else "OPB_STORE"
    return f"::opb_ptx::store_tensor({kind}, {tensor}, {{{count}, {place}, {{}}}}, {_address(source, words)})"


def _load_bulk(match: re.Match[str], operands: list[str], words: Words) -> str:
    to, source, count, barrier, *ranks = operands[: len(operands) - bool(match[3])]
    if len(ranks) != bool(match[2]) or (ranks and match[1] != "global"):
        raise UnknownInstruction
    where = "true" if match[1] == "global" else "false"
    masks = words(ranks[0]) if ranks else "0"
    addresses = f"{_address(to, words)}, {_address(source, words)}"
    return f"::opb_ptx::load_bulk({where}, {addresses}, {words(count)}, {_address(barrier, words)}, {masks})"


def _store_bulk(match: re.Match[str], operands: list[str], words: Words) -> str:
    to, source, count = operands[: len(operands) - bool(match[2])]
    if bool(match[1]) != bool(match[3]):
        raise UnknownInstruction
    kind = f"OPB_REDUCE_{match[3].upper()}" if match[1] else "OPB_STORE"
    element = f"OPB_{match[4].upper()}" if match[1] else "OPB_U8"
    return f"::opb_ptx::store_bulk({kind}, {element}, {_address(to, words)}, {_address(source, words)}, {words(count)})"


def _nothing(match: re.Match[str], operands: list[str], words: Words) -> str:
    target = operands[:1] if match[0].startswith("createpolicy") else []
    return f"::opb_ptx::nothing({', '.join(map(words, target))})"


def _product(match: re.Match[str], operands: list[str], words: Words) -> str:
    columns, depth, (left, right) = int(match[1]), int(match[2]), match.group(4, 5)
    sums, a, b, *rest = operands
    sums_words = [words(part) for part in re.findall(r"[^,{}\s]+", sums)]
    a_words = [words(part) for part in re.findall(r"[^,{}\s]+", a)]
    scales = 0 if left == "s8" else 2
    transposes = [words(rest.pop()) for _ in range(len(rest) - 1 - scales)][::-1]
    # Products of whole numbers have no scales of 1 or -1.
    add, scale_a, scale_b = (words(operand) for operand in (*rest, *(("1", "1") if left == "s8" else ())))
    wanted = 0 if left not in TRANSPOSABLE else 1 if a.startswith("{") else 2
    mixed = (
        (left != right and not left[0] == right[0] == "e")
        or (match[3] == "f16" and left in ("bf16", "tf32"))
        or (match[3] == "s32") != (left == "s8")
    )
    if (
        len(transposes) != wanted
        or len(sums_words) * (4 if match[3] == "f16" else 2) != columns
        or len(a_words) not in (1, 4)
    ):
        raise UnknownInstruction
    if depth != PRODUCT_DEPTH[left] or mixed or columns % 8 or not 8 <= columns <= 256:
        raise UnknownInstruction
    a_transposed = transposes[0] if wanted == 2 else "0"
    b_transposed = transposes[-1] if wanted else "0"
    types = f"OPB_{left.upper()}, OPB_{right.upper()}, {columns}, {depth}"
    numbers = f"{b}, {add}, {scale_a}, {scale_b}, {a_transposed}, {b_transposed}".replace(b, words(b), 1)
    matrix = f"{{0, (unsigned)({'), (unsigned)('.join(a_words)})}}" if len(a_words) == 4 else f"{{{a_words[0]}}}"
    return f"::opb_ptx::product<{types}, {int(len(a_words) == 4)}>({matrix}, {numbers}, {', '.join(sums_words)})"


def _store_async(match: re.Match[str], operands: list[str], words: Words) -> str:
    to, values, barrier = operands
    kind = REGISTER_TYPES[match[1]]
    stored = ", ".join(f"({kind})({word})" for word in _words_of(values, words))
    return f"::opb_ptx::store_async<{kind}>({_address(to, words)}, {_address(barrier, words)}, {stored})"


def _barrier(match: re.Match[str], operands: list[str], words: Words) -> str:
    return f"::opb_ptx::bar_{match[1]}({', '.join(map(words, operands))})"


def _cluster_barrier(match: re.Match[str], operands: list[str], words: Words) -> str:
    return f"::opb_ptx::cluster_{'wait' if match['wait'] else 'arrive_relaxed' if match['relaxed'] else 'arrive'}()"


def _setting(match: re.Match[str], operands: list[str], words: Words) -> str:
    sign = {
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
    kind = REGISTER_TYPES[match[3]]
    target, left, right = (words(operand) for operand in operands)
    if match[1] == "set":
        raise UnknownInstruction
    return f"{target} = ({kind})({left}) {sign} ({kind})({right})"


FAMILIES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], list[str], Words], str]], ...] = (
    (LOAD_TENSOR, _load_tensor),
    (STORE_TENSOR, _store_tensor),
    (LOAD_BULK, _load_bulk),
    (STORE_BULK, _store_bulk),
    (IGNORED_INSTRUCTION, _nothing),
    (PRODUCT, _product),
    (STORE_ASYNC, _store_async),
    (BARRIER, _barrier),
    (CLUSTER_BARRIER, _cluster_barrier),
    (COMPARISON, _setting),
)
