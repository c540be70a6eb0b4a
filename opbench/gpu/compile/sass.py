"""Read the machine code (SASS) of a cubin with nvdisasm: instruction mix, access widths, source lines."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from opbench import paths
from opbench.errors import EnvironmentFault
from opbench.gpu.compile.cubin import read_cubin
from opbench.gpu.compile.installed import find_programs
from opbench.gpu.limits.resources import OUTSIDE_KERNEL, BasicBlock, MachineCode
from opbench.paths import MissingExtra

TIME_LIMIT_S = 120.0
"""Time limit of one call of nvdisasm in seconds."""

MEMORY = {
    **{name: name for name in ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LDGSTS", "LDSM", "STSM", "RED", "LD", "ST")},
    **dict.fromkeys(("ATOM", "ATOMG", "ATOMS"), "ATOM"),
    "REDG": "RED",
    "REDS": "RED",
    "UREDGR": "RED",
}
"""Instructions that access memory, with the class in which each is counted."""

LOADS = ("LDG", "LDS")
"""Classes of loads that the compiler can sink below a branch."""

OPCODES_BY_CLASS = {
    "FFMA": "FFMA FFMA2",
    "FADD/FMUL": "FADD FMUL FADD2 FMUL2",
    "other fp32": "FMNMX FMNMX3 FSETP FSEL FSET FCHK FSWZADD",
    "fp64": "DFMA DADD DMUL DSETP DMNMX",
    "fp16": "HFMA2 HADD2 HMUL2 HSETP2 HSET2 HMNMX2 HADD2_32I",
    "tensor": "HMMA IMMA BMMA DMMA QMMA OMMA HGMMA IGMMA BGMMA QGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA",
    "IMAD": "IMAD",
    "IADD": "IADD IADD3 VIADD IADD32I IADD64",
    "other integer": "ISETP LEA LOP LOP3 LOP32I SHF SHL SHR IMNMX IMNMX3 VIMNMX VIMNMX3 IABS ISCADD IDP BMSK POPC FLO "
    "BREV PRMT VIADDMNMX SGXT VABSDIFF VABSDIFF4 ISETP64 SZEXT",
    "move": "MOV SEL CS2R S2R S2UR R2UR R2P P2R PLOP3 R2B B2R MOV32I PSETP",
    "convert": "F2I I2F I2FP I2I F2IP I2IP",
    "float convert": "F2F F2FP FRND",
    "MUFU": "MUFU",
    "SHFL": "SHFL",
    "other warp": "VOTE VOTEU MATCH REDUX CREDUX ELECT",
    "BAR": "BAR",
    "other synchronisation": "MEMBAR DEPBAR LDGDEPBAR SYNCS ERRBAR FENCE CCTL CCTLL WARPSYNC WARPGROUP UCGABAR_ARV "
    "UCGABAR_WAIT ARRIVES",
    "branch": "BRA BRX JMP JMX CALL RET EXIT BSSY BSYNC BREAK BMOV KILL YIELD NANOSLEEP BRXU BPT RPCMOV",
    "constant load": "LDC LDCU",
    "TMA": "UTMALDG UTMASTG UTMAREDG UTMAPF UTMACMDFLUSH UTMACCTL UBLKCP UBLKPF UBLKRED",
}
"""The opcodes of each class that does not access memory, also for the uniform path, where `U` precedes them."""

CLASS_BY_OPCODE = {name: family for family, names in OPCODES_BY_CLASS.items() for name in names.split()} | MEMORY


@dataclass(frozen=True)
class Instruction:
    """One machine instruction, as nvdisasm prints it."""

    predicate: str
    """The predicate that guards the instruction, such as "@!P0"; empty for none."""
    opcode: str
    """The opcode with its modifiers, such as "LDG.E.128.CONSTANT"."""
    operands: str
    line: int
    """Line of the kernel's own file or of one of its headers; 0 if not known. Code inlined from the compiler's own
    headers counts for the line that uses it."""
    file: str = ""
    """Name of the header with this line; empty for the kernel's own file."""

    @property
    def location(self) -> str:
        """Return the source line as "14", or as "tile.cuh:20" in a header; empty if unknown."""
        return f"{self.file}:{self.line}" if self.file else str(self.line or "")

    @property
    def base(self) -> str:
        """Return the opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def is_idle(self) -> bool:
        """Return whether the instruction does nothing and only delays dependent instructions."""
        return self.base == "NOP" or self.predicate in ("@!PT", "@!UPT")

    @property
    def kind(self) -> str:
        """Return the class in which the instruction is counted."""
        base = self.base
        if self.opcode.startswith("IMAD.MOV") or (base == "HFMA2" and "-RZ, RZ" in self.operands):
            return "move"  # The compiler chooses the execution pipe.
        return CLASS_BY_OPCODE.get(base) or CLASS_BY_OPCODE.get(base.removeprefix("U"), "other")

    @property
    def bits_per_thread(self) -> int:
        """Return the bits that one thread transfers; 0 if the instruction does not access memory."""
        if self.kind not in MEMORY.values():
            return 0
        modifiers = self.opcode.split(".")[1:]
        if self.kind in ("LDSM", "STSM"):
            return 32 * next((int(modifier) for modifier in modifiers if modifier in ("2", "4")), 1)
        matches = (re.fullmatch(r"[US]?(8|16|64|128|256)", modifier) for modifier in modifiers)
        return next((int(match[1]) for match in matches if match), 32)

    @property
    def product_flops(self) -> tuple[str, int]:
        """Return precision and FLOPs of a warp's matrix instruction; an empty precision if its rate is unknown."""
        if self.base not in ("HMMA", "HGMMA"):
            return "", 0
        text = f"{self.opcode}{self.operands}"  # nvdisasm may print the shape among the operands.
        precision = "tf32" if "TF32" in text else "bf16"
        if match := _WARPGROUP_TILE.search(text):
            return precision, 2 * 64 * int(match[1]) * int(match[2]) // 4
        shape_names = self.opcode.split(".")[1:2]
        return precision, 2 * _MULTIPLY_ADDS.get(shape_names[0], 0) if shape_names else 0

    @property
    def access(self) -> str:
        """Return the access with its width, such as "LDG.128"; empty if the instruction does not access memory."""
        return f"{self.kind}.{self.bits_per_thread}" if self.bits_per_thread else ""


@dataclass(frozen=True)
class InstructionMix:
    """Numbers of instructions in the code of a kernel; a loop's body counts once."""

    total: int
    classes: Mapping[str, int]
    accesses: Mapping[str, int]
    """Instructions that touch memory by class and bits a thread: "LDG.128"."""


@dataclass(frozen=True)
class KernelCode:
    """The machine code of one kernel, without the padding at its end."""

    name: str
    instructions: tuple[Instruction, ...]
    sha256: str
    """Hash of instructions and constants; the names of file, kernel and labels do not change it."""
    sunk: Mapping[str, int] = field(default_factory=dict)
    """For each source line whose loads the compiler sank below a branch, the later line of that branch."""

    blocks: tuple[BasicBlock, ...] = ()
    """The basic blocks in the order of the code."""

    @property
    def mix(self) -> InstructionMix:
        """Return the numbers of the kernel's instructions."""
        active_instructions = [instruction for instruction in self.instructions if not instruction.is_idle]
        return InstructionMix(
            len(active_instructions),
            _count_texts(instruction.kind for instruction in active_instructions),
            _count_texts(instruction.access for instruction in active_instructions),
        )

    def lines(self) -> dict[str, dict[str, int]]:
        """Return the memory instructions of each source line, such as {"14": {"LDG.128": 1}}."""
        line_names = {
            (instruction.file, instruction.line): instruction.location
            for instruction in self.instructions
            if instruction.line and instruction.access
        }
        return {
            line_name: _count_texts(
                instruction.access
                for instruction in self.instructions
                if instruction.location == line_name and not instruction.is_idle
            )
            for _, line_name in sorted(line_names.items())
        }

    def summary(self, blocks: bool = False) -> MachineCode:
        """Return the counts, lines and hash as stored in results; with `blocks`, also the basic blocks."""
        mix = self.mix
        return MachineCode(
            mix.total,
            dict(mix.classes),
            dict(mix.accesses),
            self.lines(),
            dict(self.sunk),
            self.sha256,
            self.blocks if blocks else (),
        )


def _count_texts(texts: Iterable[str]) -> dict[str, int]:
    """Return how often each text occurs, the most frequent first."""
    return dict(sorted(Counter(filter(None, texts)).items(), key=lambda item: (-item[1], item[0])))


# nvdisasm ---------------------------------------------------------------------------------------------------------


@functools.cache
def nvdisasm() -> Path:
    """Return the path of nvdisasm; raise EnvironmentFault with the remedy."""
    for path in find_programs("nvdisasm"):
        return path
    raise not_installed_error()


def not_installed_error() -> MissingExtra:
    """Return the error for a machine without nvdisasm."""
    return MissingExtra("nvdisasm is not installed", "nvrtc")


def disassemble(cubin: bytes, sources: Iterable[Path] = ()) -> dict[str, KernelCode]:
    """Return the machine code of a cubin's kernels by name; raise EnvironmentFault or BadCubin.

    `sources` are the kernel's file and its headers, for the source lines of the instructions. The output of nvdisasm is
    cached.
    """
    cubin_kernels = read_cubin(cubin).kernels
    code = parse(_listing(cubin), {name: kernel.constants for name, kernel in cubin_kernels.items()}, sources)
    return {name: kernel for name, kernel in code.items() if name in cubin_kernels}


def _listing(cubin: bytes) -> str:
    """Return the output of nvdisasm for a cubin."""
    cached = paths.cache_folder("sass") / f"{hashlib.sha256(cubin).hexdigest()[:24]}.sass"
    try:
        return cached.read_text(encoding="utf-8", errors="replace")
    except OSError:
        pass
    program = nvdisasm()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program), "-c", "-gi", file.name]
        try:
            completed = subprocess.run(command, capture_output=True, timeout=TIME_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentFault(
                f"nvdisasm cannot be run: {error}; see which nvdisasm is used with: opbench doctor",
                kind="cannot-start",
                subject="nvdisasm",
            ) from None
    if completed.returncode:
        raise EnvironmentFault(
            f"nvdisasm failed with exit code {completed.returncode}: "
            f"{completed.stderr.decode(errors='replace').strip()[:200]}; see which nvdisasm is used with: opbench "
            "doctor",
            kind="program-failed",
            subject="nvdisasm",
            value=completed.returncode,
        )
    paths.write_atomically(cached, completed.stdout)
    return completed.stdout.decode("utf-8", errors="replace")


# Listings ----------------------------------------------------------------------------------------------------------

_SECTION = re.compile(r"^//-+ \.text\.(\S+)\s")
_OTHER_SECTION = re.compile(r"^//-+ ")
_LABEL = re.compile(r"^([^\s:]+):\s*$")
_FRAME = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_INSTRUCTION = re.compile(r"^\s*(?:\{\s*)?/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
_LOCAL_LABEL = re.compile(r"\.L_\w+")
_TARGET = re.compile(r"`\(([^()\s]+)\)|\.L_\w+")
_PADDING = ("NOP", "BRA")
_JUMPS = ("BRA", "JMP", "CALL", "EXIT", "RET", "BRX", "BRXU", "JMX")
_EXITS = ("EXIT", "RET", "BRX", "BRXU", "JMX")
_ENDS = ("BRA", "JMP", "EXIT", "RET", "BRX", "BRXU", "JMX")
_MULTIPLY_ADDS = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "1684": 16 * 8 * 4, "16832": 16 * 8 * 32, "884": 8 * 8 * 4}
"""Multiply-adds of a warp's matrix instruction by the shape in its name."""
_WARPGROUP_TILE = re.compile(r"\.64x(\d+)x(\d+)")


def _is_conditional(instruction: Instruction) -> bool:
    """Return whether a jump is conditional: it has a predicate, or a condition among its operands."""
    return bool(instruction.predicate) or re.match(r"!?U?P\d|UP\d", instruction.operands) is not None


def _is_reachable(successors: list[set[int]], start: int, target: int) -> bool:
    """Return whether execution that leaves the basic block `start` can come to the block `target`."""
    visited: set[int] = set()
    stack = list(successors[start])
    while stack:
        block = stack.pop()
        if block == target:
            return True
        if block not in visited and block != OUTSIDE_KERNEL:
            visited.add(block)
            stack += successors[block]
    return False


def _code_block(code: list[Instruction], predecessors: set[int], successors: set[int], in_loop: bool) -> BasicBlock:
    """Return a basic block with the counts of its instructions."""
    active_instructions = [instruction for instruction in code if not instruction.is_idle]
    accesses: dict[str, Counter[str]] = {}
    conditional: dict[str, Counter[str]] = {}
    flops: Counter[str] = Counter()
    for instruction in active_instructions:
        if instruction.access and instruction.location:
            (conditional if instruction.predicate else accesses).setdefault(instruction.location, Counter())[
                instruction.access
            ] += 1
        if instruction.kind == "tensor" and not instruction.predicate:
            precision, flop_count = instruction.product_flops
            flops[precision] += flop_count
    return BasicBlock(
        _count_texts(instruction.kind for instruction in active_instructions),
        {location: dict(counts) for location, counts in accesses.items()},
        {location: dict(counts) for location, counts in conditional.items()},
        {precision: flop_count for precision, flop_count in flops.items() if precision},
        tuple(sorted(predecessors)),
        tuple(sorted(successors)),
        in_loop,
    )


class _KernelReader:
    """Read the listing of one kernel, line by line."""

    def __init__(self, name: str, sources: frozenset[str]) -> None:
        self.name = name
        self._sources = sources
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        """The index of the instruction after each label."""
        self._call_chain: list[tuple[str, int]] = []
        self._is_call_chain_open = False
        self._file = ""

    def add_position(self, file: str, line: int) -> None:
        """Add one source position of a chain of inlined calls, the innermost first."""
        if not self._is_call_chain_open:
            self._call_chain = []
        self._call_chain.append((file, line))
        self._is_call_chain_open = True

    def add_label(self, name: str) -> None:
        """Add a label; code after the label of a compiler's function has no source line."""
        self.labels[name] = len(self.instructions)
        if not name.startswith("."):
            self._call_chain = []

    def add_instruction(self, predicate: str, opcode: str, operands: str) -> None:
        """Add one instruction; the first one determines which file is the kernel's own."""
        self._is_call_chain_open = False
        if self._call_chain and not self._file:
            self._file = self._call_chain[-1][0]
        own_files = {self._file, *self._sources}
        file, line = next(((file, line) for file, line in self._call_chain if file in own_files), (self._file, 0))
        header = "" if file == self._file else PurePath(file).name
        self.instructions.append(Instruction(predicate, opcode, re.sub(r"\s+", " ", operands.strip()), line, header))

    def finish(self, constants: bytes) -> KernelCode:
        """Return the kernel without the endless loop and NOPs that pad its last cache line."""
        code = self.instructions
        while code and code[-1].base in _PADDING and (code[-1].base == "NOP" or self._jumps_to_itself(len(code) - 1)):
            code.pop()
        digest = hashlib.sha256(constants)
        for text in self._without_labels(code):
            digest.update(text.encode() + b"\n")
        return KernelCode(self.name, tuple(code), digest.hexdigest(), self._sunk_loads(code), self._blocks(code))

    def _blocks(self, code: list[Instruction]) -> tuple[BasicBlock, ...]:
        """Return the basic blocks of the code; the successors of a call are its target and the instruction after it."""
        jumps = {
            index: self._target(instruction) for index, instruction in enumerate(code) if instruction.base in _JUMPS
        }
        block_starts = {
            0,
            *(target for target in jumps.values() if target is not None),
            *(index + 1 for index in jumps),
        }
        starts_in_order = sorted(start for start in block_starts if start < len(code))
        block_by_start = {start: block for block, start in enumerate(starts_in_order)}
        successors: list[set[int]] = [set() for _ in starts_in_order]
        for block, start in enumerate(starts_in_order):
            end = starts_in_order[block + 1] if block + 1 < len(starts_in_order) else len(code)
            last = code[end - 1] if end > start else None
            target = jumps.get(end - 1)
            if target is not None and target in block_by_start:
                successors[block].add(block_by_start[target])
            if last is not None and last.base in _EXITS:
                successors[block].add(OUTSIDE_KERNEL)
            if last is not None and end in block_by_start and (last.base not in _ENDS or _is_conditional(last)):
                successors[block].add(block_by_start[end])
        predecessors: list[set[int]] = [set() for _ in starts_in_order]
        for block, targets in enumerate(successors):
            for target in targets - {OUTSIDE_KERNEL}:
                predecessors[target].add(block)
        ends = [*starts_in_order[1:], len(code)]
        return tuple(
            _code_block(
                code[start:end], predecessors[block], successors[block], _is_reachable(successors, block, block)
            )
            for block, (start, end) in enumerate(zip(starts_in_order, ends, strict=True))
        )

    def _target(self, instruction: Instruction) -> int | None:
        """Return the index of a jump's target; None if unknown.

        The target of a RET is unknown: it names the start of its kernel.
        """
        if instruction.base not in ("BRA", "JMP", "CALL"):
            return None
        names = [match[1] or match[0] for match in _TARGET.finditer(instruction.operands)]
        return next((self.labels[name] for name in names if name in self.labels), None)

    def _sunk_loads(self, code: list[Instruction]) -> dict[str, int]:
        """Return the source lines whose loads the compiler moved behind a conditional branch of a later source line.

        Each line maps to the line of this branch. A line is omitted if one of its loads is not behind such a branch, or
        if its loads are behind branches of several lines. A label or a barrier ends the part behind a branch.
        """
        joins = set(self.labels.values())
        guards_by_line: dict[str, set[int]] = {}
        guard, file = 0, ""
        for index, instruction in enumerate(code):
            if index in joins or instruction.kind == "BAR":
                guard = 0
            if instruction.kind == "branch":
                guard, file = instruction.line if instruction.predicate else 0, instruction.file
            elif instruction.kind in LOADS and instruction.line and not instruction.is_idle:
                guards_by_line.setdefault(instruction.location, set()).add(
                    guard if guard > instruction.line and file == instruction.file else 0
                )
        return {line: min(guards) for line, guards in guards_by_line.items() if len(guards) == 1 and 0 not in guards}

    def _jumps_to_itself(self, index: int) -> bool:
        """Return whether an instruction jumps to itself."""
        return any(self.labels.get(name) == index for name in _LOCAL_LABEL.findall(self.instructions[index].operands))

    def _without_labels(self, code: list[Instruction]) -> Iterable[str]:
        """Yield the instructions with jump targets as distances instead of label names."""
        for index, instruction in enumerate(code):
            yield f"{instruction.predicate} {instruction.opcode} {self._with_distances(instruction.operands, index)}"

    def _with_distances(self, operands: str, index: int) -> str:
        """Return operands with jump targets as distances instead of label names."""

        def distance(match: re.Match[str]) -> str:
            target = self.labels.get(match[1] or match[0])
            return match[0] if target is None else f"{target - index:+d}"

        return _TARGET.sub(distance, operands)


def parse(
    listing: str, constants: Mapping[str, bytes] | None = None, sources: Iterable[Path] = ()
) -> dict[str, KernelCode]:
    """Read kernels by name from the output of `nvdisasm -c -gi` (or `-g`, or without lines)."""
    kernels: dict[str, KernelCode] = {}
    current: _KernelReader | None = None
    files = frozenset(map(str, sources))
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            _finish_listing(kernels, current, constants)
            current = _KernelReader(section[1], files)
        elif _OTHER_SECTION.match(line):
            _finish_listing(kernels, current, constants)
            current = None
        elif current is None:
            continue
        elif frame := _FRAME.match(line):
            current.add_position(frame[1], int(frame[2]))
        elif label := _LABEL.match(line):
            current.add_label(label[1])
        elif match := _INSTRUCTION.match(line):
            current.add_instruction(match[1] or "", match[2], match[3])
    _finish_listing(kernels, current, constants)
    return kernels


def _finish_listing(
    kernels: dict[str, KernelCode], current: _KernelReader | None, constants: Mapping[str, bytes] | None
) -> None:
    """Add the kernel of the current reader to `kernels`; do nothing without a reader."""
    if current is not None:
        kernels[current.name] = current.finish((constants or {}).get(current.name, b""))
