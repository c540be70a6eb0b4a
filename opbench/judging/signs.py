"""Find signs of cheating in PTX and SASS, with source lines. A sign alone is a note; an effect is a refusal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from opbench.gpu.compile.ptx import Ptx, PtxInstruction
from opbench.gpu.compile.sass import KernelCode
from opbench.kernels.case import Case
from opbench.kernels.tensors import INTEGERS
from opbench.source.precision import OPERAND_ROUNDOFF, PRODUCTS, UNIT_ROUNDOFF

REFUSALS_OF_TIME = ("impossible-time",)
"""Codes of refusals because of an impossible time."""
REFUSALS_OF_RESULT = (
    "wrong-result",
    "unwritten-output",
    "not-finite",
    "whole-numbers",
    "special-inputs",
    "error-limit",
)
"""Codes of refusals because of a wrong or inexact result."""
REFUSALS_OF_STATE = ("keeps-state", "old-output", "wrong-result", "unwritten-output")
"""Codes of refusals because a launch does not compute its output from its inputs alone."""


@dataclass(frozen=True)
class SignRule:
    """A kind of instruction that kernels may use to cheat, but that honest kernels may use, too."""

    name: str
    title: str
    why: str
    """One sentence on how kernels cheat with such instructions."""
    effects: tuple[str, ...]
    """Codes of refusals that show an effect of this sign."""
    ptx: str = ""
    """A regular expression for the text of a PTX instruction."""
    sass: str = ""
    """A regular expression for the opcode and operands of a SASS instruction."""
    refuses: bool = False
    """Whether the sign itself contradicts the header's claim, so that it is a refusal."""


@dataclass(frozen=True)
class DetectedSign:
    """The instructions from one source line that match a sign's rule."""

    rule: SignRule
    kernel: str
    file: str
    line: int
    levels: tuple[str, ...]
    """"PTX", "SASS" or both."""
    instruction: str
    """The first instruction that matches."""
    count: int = 1
    detail: str = ""
    """More on the sign, such as the name of the module variable that is written."""


STATE_RULE = SignRule(
    "module-variable-write",
    "Writes to a module variable",
    "Memory of the module outlives a launch, so a kernel can remember inputs and skip the work.",
    REFUSALS_OF_STATE,
)
TENSOR_RULE = SignRule(
    "lower-class",
    "Tensor cores multiply in a lower class than claimed",
    "Factors of fewer digits multiply faster, and the share of peak refers to another unit.",
    ("lower-class", *REFUSALS_OF_RESULT),
    refuses=True,
)
NARROW_RULE = SignRule(
    "narrow-arithmetic",
    "Rounds or computes in a narrower type than claimed",
    "Numbers of fewer digits are faster to move and to multiply.",
    REFUSALS_OF_RESULT,
)

RULES = (
    SignRule(
        "eviction-policy",
        "Chooses what the L2 cache keeps",
        "A kernel can keep its inputs in the L2 cache, across the flush between timed launches.",
        REFUSALS_OF_TIME,
        ptx=r"^createpolicy|^applypriority|evict_|cache_hint|^(ld|st)\.(global\.)?(cs|lu)\b",
        sass=r"^(LD|LDG|ST|STG|LDGSTS)\.\S*\.(EF|EL|LU|EU)\b",
    ),
    SignRule(
        "l2-prefetch",
        "Prefetches into the L2 cache",
        "A kernel can fill the L2 cache for its next launch.",
        REFUSALS_OF_TIME,
        ptx=r"^prefetchu?\.(global\.)?L[12]|^cp\.async\.bulk\.prefetch",
        sass=r"^CCTL\.\S*PF|^UBLKPF|^UTMAPF",
    ),
    SignRule(
        "clock-read",
        "Reads the clock of a multiprocessor",
        "A kernel can tell a timed launch from a checked one, or idle until it has a believable time.",
        (*REFUSALS_OF_STATE, *REFUSALS_OF_TIME),
        ptx=r"%clock",
        sass=r"\bSR_CLOCK",
    ),
    SignRule(
        "timer-read",
        "Reads the timer of the GPU",
        "A kernel can find out when it was last launched.",
        (*REFUSALS_OF_STATE, *REFUSALS_OF_TIME),
        ptx=r"%globaltimer",
        sass=r"\bSR_GLOBALTIMER",
    ),
    SignRule(
        "sleep",
        "Lets threads sleep",
        "A kernel that does no work can idle for a believable time.",
        (*REFUSALS_OF_STATE, *REFUSALS_OF_TIME),
        ptx=r"^nanosleep",
        sass=r"^NANOSLEEP",
    ),
    STATE_RULE,
    TENSOR_RULE,
    NARROW_RULE,
    SignRule(
        "early-dependents",
        "Lets the next kernel begin early",
        "The event that stops the clock can come before the work is done.",
        REFUSALS_OF_TIME,
        ptx=r"^griddepcontrol\.launch_dependents",
        sass=r"^PREEXIT",
    ),
    SignRule(
        "device-heap",
        "Allocates memory of the device's heap",
        "Memory of the heap outlives a launch.",
        REFUSALS_OF_STATE,
        ptx=r"^call.*\b(malloc|__cuda_syscall_malloc)\b",
    ),
    SignRule(
        "launch-number",
        "Reads a number that differs from launch to launch",
        "A kernel can count its launches and work in some of them only.",
        REFUSALS_OF_STATE,
        ptx=r"%gridid|%envreg",
        sass=r"\bSR_GRIDID",
    ),
    SignRule(
        "device-launch",
        "Launches kernels from the GPU",
        "Work of a kernel that another one launches can end after the clock has stopped.",
        REFUSALS_OF_TIME,
        ptx=r"^call.*\b(cudaLaunchDevice\w*|cudaGetParameterBuffer\w*)\b",
    ),
    SignRule(
        "system-scope",
        "Reaches memory beyond the GPU",
        "A kernel can communicate with the host or with another process.",
        REFUSALS_OF_STATE,
        ptx=r"^(st|ld|atom|red|fence|membar)\.\S*\bsys\b",
    ),
)
"""All rules for signs. A new rule needs a kernel in tests/judging/signs."""

_MMA_TYPES = re.compile(r"\.(bf16|tf32|f16|e4m3|e5m2|e2m1|e3m2|e2m3|s8|u8|s4|u4|b1|f64)\b")
_NARROW_CONVERSION = re.compile(r"^cvt\.\S*?\.(bf16|f16|tf32|e4m3|e5m2)(x2)?\.")
_NARROW_ARITHMETIC = re.compile(r"^(?:add|sub|mul|fma)\.\S*?\.?(bf16|f16)(x2)?$")
_SASS_MMA = re.compile(r"^(?:HMMA|HGMMA|QMMA|QGMMA|UTCHMMA|UTCQMMA)\.")
_SASS_TYPES = {"BF16": "bf16", "TF32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}


def signs_of(case: Case, ptx: Ptx | None, code: Mapping[str, KernelCode]) -> list[DetectedSign]:
    """Return the signs in the PTX and machine code of a case's module, by source line.

    `code` has the machine code by kernel; it is empty without nvdisasm.
    """
    files = {str(source.path) for source in case.variant.sources}
    signs_by_line: dict[tuple[str, str, int], DetectedSign] = {}
    allowed = _allowed_types(case)
    for rule, level, kernel, location, text, detail in (
        *_signs_in_ptx(ptx, allowed, files),
        *_signs_in_sass(case, code, allowed),
    ):
        key = (rule.name, *location)
        if (earlier_sign := signs_by_line.get(key)) is None:
            signs_by_line[key] = DetectedSign(rule, kernel, *location, (level,), text, detail=detail)
        elif level in earlier_sign.levels:
            signs_by_line[key] = replace(earlier_sign, count=earlier_sign.count + (level == earlier_sign.levels[0]))
        else:
            signs_by_line[key] = replace(earlier_sign, levels=(*earlier_sign.levels, level))
    order = [rule.name for rule in RULES]
    return sorted(signs_by_line.values(), key=lambda sign: (order.index(sign.rule.name), sign.file, sign.line))


_SignMatch = tuple[SignRule, str, str, tuple[str, int], str, str]
"""Rule, level, kernel, file and line, instruction, detail: the values of a `DetectedSign`."""


def _signs_in_ptx(ptx: Ptx | None, allowed: frozenset[str], files: set[str]) -> Iterator[_SignMatch]:
    """Yield the signs in a module's PTX."""
    if ptx is None:
        return
    for instruction in ptx.instructions:
        location = _own_location(instruction, files)
        for rule in RULES:
            if rule.ptx and re.search(rule.ptx, instruction.text):
                yield rule, "PTX", instruction.function, location, instruction.text, ""
        for rule, types in (
            (TENSOR_RULE, _matrix_types(instruction.opcode)),
            (NARROW_RULE, _narrow_types(instruction.opcode)),
        ):
            if lower_types := types - allowed:
                yield rule, "PTX", instruction.function, location, instruction.text, ", ".join(sorted(lower_types))
    for instruction, name in ptx.variables_written():
        yield STATE_RULE, "PTX", instruction.function, _own_location(instruction, files), instruction.text, name


def _own_location(ptx_instruction: PtxInstruction, files: set[str]) -> tuple[str, int]:
    """Return the file and line of an instruction.

    For code from a compiler's header, these are the file and line of the call in the kernel's files.
    """
    return (
        ptx_instruction.called_from
        if ptx_instruction.file not in files and ptx_instruction.called_from[0] in files
        else (ptx_instruction.file, ptx_instruction.line)
    )


def _signs_in_sass(case: Case, code: Mapping[str, KernelCode], allowed: frozenset[str]) -> Iterator[_SignMatch]:
    """Yield the signs in a module's machine code."""
    paths_by_name = {source.path.name: str(source.path) for source in case.variant.sources}
    for kernel in code.values():
        for instruction in kernel.instructions:
            text = f"{instruction.opcode} {instruction.operands}".strip()
            location = (
                (paths_by_name.get(instruction.file, instruction.file) if instruction.file else str(case.variant.path)),
                instruction.line,
            )
            for rule in RULES:
                if rule.sass and re.search(rule.sass, text):
                    yield rule, "SASS", kernel.name, location, text, ""
            if lower_types := _sass_types(text) - allowed:
                yield TENSOR_RULE, "SASS", kernel.name, location, text, ", ".join(sorted(lower_types))


def _allowed_types(case: Case) -> frozenset[str]:
    """Return the types in which a case may compute.

    These are the product in its header, the types of its tensors, and all more precise types.
    """
    variant, problem = case.variant, case.problem
    stored_types = {tensor.dtype for tensor in (*problem.input_tensors(), *problem.output_tensors())}
    product_types = set(PRODUCTS[variant.product].operand_types) if variant.product else {case.precision}
    claimed_roundoffs = [OPERAND_ROUNDOFF[name] for name in product_types if name in OPERAND_ROUNDOFF]
    finer_types = {
        name for name, roundoff in UNIT_ROUNDOFF.items() if claimed_roundoffs and roundoff < min(claimed_roundoffs)
    }
    integer_types = {"s8", "u8", "s4", "u4", "b1"} if stored_types & set(INTEGERS) else set()
    return frozenset({*stored_types, *product_types, *finer_types, *integer_types})


def _matrix_types(opcode: str) -> set[str]:
    """Return the operand types of a tensor-core instruction in PTX; empty for other instructions."""
    if not opcode.startswith(("mma.", "wmma.mma", "wgmma.mma", "tcgen05.mma")):
        return set()
    return set(_MMA_TYPES.findall(opcode)) or {"f16"}  # wmma names only the accumulator types.


def _sass_types(text: str) -> set[str]:
    """Return the operand types of a tensor-core instruction in SASS; empty for other instructions."""
    if not _SASS_MMA.match(text):
        return set()
    # nvdisasm prints the shape of wgmma with a space: "HGMMA.64 x128x8.F32.TF32".
    named_types = {_SASS_TYPES[word] for word in re.split(r"[. ]", text) if word in _SASS_TYPES}
    return named_types or {"f16"}


def _narrow_types(opcode: str) -> set[str]:
    """Return the type of 16 bits or less in which a PTX instruction rounds or computes; empty for others."""
    match = _NARROW_CONVERSION.match(opcode) or _NARROW_ARITHMETIC.match(opcode)
    return {match[1]} if match else set()
