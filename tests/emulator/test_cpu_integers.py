"""Integer PTX: every instruction and type of the table against Python's own arithmetic, and the table against C++."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from opbench.emulator.integers import HEADER, INTEGERS, header
from opbench.emulator.ptx import UnsupportedInstruction, replace_ptx
from opbench.emulator.ptx_functions import FUNCTIONS, PATTERNS
from support.builders.on_cpu import Bench, Tracer, compilers

REGISTERS = {16: ("h", "unsigned short"), 32: ("r", "unsigned"), 64: ("l", "unsigned long long")}
"""The constraint and C++ type of a register of so many bits."""
CASES = [(operation, kind) for operation, integer in INTEGERS.items() for kind in integer.types]
TABLE = 0xCA
"""Of lop3: the second operand where the first is 1, else the third."""


def truncated(a: int, b: int) -> int:
    """Divide as C does: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def saturated(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def extracted(a: int, b: int, c: int, width: int, signed: bool) -> int:
    start, length = b & 255, c & 255
    piece = a >> start & (1 << length) - 1
    top = a >> min(start + length - 1, width - 1) & 1 if length else 0
    return piece - (1 << length) if signed and top else piece


def inserted(a: int, b: int, c: int, d: int, width: int) -> int:
    start, length = c & 255, d & 255
    mask = ((1 << length) - 1) << start & (1 << width) - 1
    return b & ~mask | a << start & mask


def highest(a: int) -> int:
    magnitude = ~a if a < 0 else a
    return magnitude.bit_length() - 1


EXPECTED: Mapping[str, Callable[[int, int, int, int, int, bool], int]] = {
    "add": lambda a, b, c, d, width, signed: a + b,
    "add.sat": lambda a, b, c, d, width, signed: saturated(a + b),
    "sub": lambda a, b, c, d, width, signed: a - b,
    "sub.sat": lambda a, b, c, d, width, signed: saturated(a - b),
    "mul.lo": lambda a, b, c, d, width, signed: a * b,
    "mul.hi": lambda a, b, c, d, width, signed: a * b >> width,
    "mul.wide": lambda a, b, c, d, width, signed: a * b,
    "mad.lo": lambda a, b, c, d, width, signed: a * b + c,
    "mad.hi": lambda a, b, c, d, width, signed: (a * b >> width) + c,
    "mad.hi.sat": lambda a, b, c, d, width, signed: saturated((a * b >> width) + c),
    "mad.wide": lambda a, b, c, d, width, signed: a * b + c,
    "sad": lambda a, b, c, d, width, signed: abs(a - b) + c,
    "div": lambda a, b, c, d, width, signed: truncated(a, b),
    "rem": lambda a, b, c, d, width, signed: a - truncated(a, b) * b,
    "min": lambda a, b, c, d, width, signed: min(a, b),
    "max": lambda a, b, c, d, width, signed: max(a, b),
    "abs": lambda a, b, c, d, width, signed: abs(a),
    "neg": lambda a, b, c, d, width, signed: -a,
    "and": lambda a, b, c, d, width, signed: a & b,
    "or": lambda a, b, c, d, width, signed: a | b,
    "xor": lambda a, b, c, d, width, signed: a ^ b,
    "not": lambda a, b, c, d, width, signed: ~a,
    "cnot": lambda a, b, c, d, width, signed: int(a == 0),
    "shl": lambda a, b, c, d, width, signed: a << b if b < width else 0,
    "shr": lambda a, b, c, d, width, signed: a >> min(b, width),
    "lop3": lambda a, b, c, d, width, signed: a & b | ~a & c,
    "popc": lambda a, b, c, d, width, signed: a.bit_count(),
    "clz": lambda a, b, c, d, width, signed: width - a.bit_length(),
    "brev": lambda a, b, c, d, width, signed: int(f"{a:0{width}b}"[::-1], 2),
    "bfind": lambda a, b, c, d, width, signed: highest(a),
    "bfe": lambda a, b, c, d, width, signed: extracted(a, b, c, width, signed),
    "bfi": lambda a, b, c, d, width, signed: inserted(a, b, c, d, width),
}


def widths(operation: str, kind: str) -> tuple[int, ...]:
    """Bits of the result and of each operand."""
    sizes = {"T": int(kind[1:]), "U": 32, "W": 2 * int(kind[1:])}
    integer = INTEGERS[operation]
    return tuple(sizes[letter] for letter in (integer.result, *integer.operands))


def statement(operation: str, kind: str, place: int) -> str:
    """CUDA that executes an instruction on the operands of a thread, and keeps the result."""
    result, *operands = widths(operation, kind)
    letters = [letter for letter in "abcd"[: len(operands)] if (operation, letter) != ("lop3", "d")]
    given = ", ".join(
        f'"{REGISTERS[bits][0]}"(({REGISTERS[bits][1]}){letter})'
        for bits, letter in zip(operands, letters, strict=False)
    )
    slots = ", ".join(f"%{at + 1}" for at in range(len(letters))) + (f", {TABLE}" if operation == "lop3" else "")
    constraint, register = REGISTERS[result]
    return (
        f'  {{ {register} r; asm("{operation}.{kind} %0, {slots};" : "={constraint}"(r) : {given}); '
        f"out[{place} * count + i] = r; }}\n"
    )


KERNEL = (
    'extern "C" __global__ void k(const unsigned long long* in, unsigned long long* out, int count) {\n'
    "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i >= count) return;\n"
    "  const unsigned long long a = in[4 * i], b = in[4 * i + 1], c = in[4 * i + 2], d = in[4 * i + 3];\n"
    + "".join(statement(operation, kind, place) for place, (operation, kind) in enumerate(CASES))
    + "}\n"
)


def numbers() -> np.ndarray:
    """Rows of four operands: numbers at the ends of each type, small ones as shifts and lengths, and drawn ones."""
    chance = random.Random(7)
    ends = [0, 1, 2, 3] + [
        (1 << bits) + more & (1 << 64) - 1 for bits in (15, 16, 31, 32, 63, 64) for more in (-1, 0, 1)
    ]
    rows = [(a, b, chance.choice(ends), chance.randrange(300)) for a in ends for b in ends]
    for _ in range(500):
        a, b, c = (chance.getrandbits(64) for _ in range(3))
        rows.append(
            (
                a,
                chance.choice((b, chance.randrange(80))),
                chance.choice((c, chance.randrange(80))),
                chance.randrange(80),
            )
        )
    return np.array(rows, np.uint64).view(np.int64)


def read(value: int, bits: int, signed: bool) -> int:
    """The number that the low bits of a register are."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def expected(operation: str, kind: str, row: tuple[int, ...]) -> int:
    integer, signed = INTEGERS[operation], kind[0] == "s"
    result, *operands = widths(operation, kind)
    values = [
        read(value, bits, signed and letter != "U")
        for value, bits, letter in zip(row, operands, integer.operands, strict=False)
    ]
    a, b, c, d = (*values, 0, 0, 0)[:4]
    return EXPECTED[operation](a, b, c, d, int(kind[1:]), signed) & (1 << result) - 1


@pytest.mark.parametrize("compiler", compilers())
def test_every_instruction_and_type_computes_as_python_does(
    bench: Bench, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPBENCH_CXX", compiler)
    rows = numbers()
    out = np.zeros(len(CASES) * len(rows), np.int64)
    bench.run(KERNEL, "k", (-(-len(rows) // 128), 1, 1), (128, 1, 1), rows.reshape(-1), out, len(rows))
    wrong = []
    for (operation, kind), results in zip(CASES, out.reshape(len(CASES), -1).tolist(), strict=True):
        for row, result in zip(rows.tolist(), results, strict=True):
            if operation in ("div", "rem") and not read(row[1], int(kind[1:]), False):
                continue  # PTX leaves the result open
            if result & (1 << 64) - 1 != (wanted := expected(operation, kind, tuple(row))):
                wrong.append((f"{operation}.{kind}", [hex(value) for value in row], hex(result), hex(wanted)))
    assert not wrong[:5]


def test_a_traced_build_computes_the_same(tracer: Tracer) -> None:
    rows = numbers()[::40]
    out = np.zeros(len(CASES) * len(rows), np.int64)
    tracer.clean(KERNEL, 1, len(rows), rows.reshape(-1), out, len(rows))
    for place, (operation, kind) in enumerate(CASES):
        if operation not in ("div", "rem"):
            wanted = [expected(operation, kind, tuple(row)) for row in rows.tolist()]
            results = out[place * len(rows) : (place + 1) * len(rows)].view(np.uint64).tolist()
            assert results == wanted, (operation, kind)


def test_the_header_is_generated_from_the_table() -> None:
    assert HEADER.read_text() == header()


def test_an_instruction_is_arithmetic_or_a_function_of_its_own_but_not_both() -> None:
    arithmetic = {f"{operation}.{kind}".replace(".", "_") for operation, kind in CASES}
    assert not arithmetic & FUNCTIONS
    assert len(FUNCTIONS) > 300 > len(PATTERNS)


@pytest.mark.parametrize("opcode", ["add.b32", "and.u32", "popc.b16", "mul.wide.u64", "add.sat.u32", "lop3.b64"])
def test_a_type_that_the_instruction_lacks_is_refused(opcode: str) -> None:
    with pytest.raises(UnsupportedInstruction):
        replace_ptx(f'asm("{opcode} %0, %1, %2;" : "=r"(x) : "r"(y), "r"(z));')


def test_each_function_that_instructions_name_exists(bench: Bench) -> None:
    uses = "".join(f"using opb_ptx::{name};\n" for name in sorted(FUNCTIONS))
    out = np.zeros(1, np.int32)
    bench.run(
        f'namespace every {{\n{uses}}}\nextern "C" __global__ void k(int* out) {{ out[0] = 1; }}\n',
        "k", (1, 1, 1), (1, 1, 1), out,
    )  # fmt: skip
    assert out[0] == 1
