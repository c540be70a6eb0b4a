"""Reject instructions and functions that GPUs of an older compute capability lack."""

from __future__ import annotations

import re

from opbench.emulator.ptx import UnsupportedInstruction, instructions_of, is_in_system_header, locate, outside_strings
from opbench.kernels.capability import missing_capability

MINIMUM_OF_OPCODE = (
    (re.compile(r"wgmma\.|setmaxnreg\."), "9.0a"),
    (
        re.compile(
            r"cp\.(reduce\.)?async\.bulk|mbarrier\.(try_wait|\w+\.expect_tx|expect_tx)|barrier\.cluster|mapa\b|getctarank\b"
            r"|elect\.sync|griddepcontrol\.|(st|red)\.async|fence\.(proxy\.(async|tensormap)|mbarrier_init)|stmatrix\."
            r"|multimem\.|tensormap\.|prefetch\.\S*tensormap|\S*\.shared::cluster|(ld|st|atom|red|fence)\.\S*\bcluster\b"
        ),
        "9.0",
    ),
    (re.compile(r"mma\.sync\S*\.e[45]m[23]"), "8.9"),
    (re.compile(r"cp\.async|mbarrier\.|redux\.sync|createpolicy\.|mma\.sync\S*\.(bf16|tf32|m16n8k16)"), "8.0"),
    (re.compile(r"ldmatrix\.|mma\.sync\S*\.m16n8k8"), "7.5"),
    (re.compile(r"wmma\.|mma\.sync|fence\.|(ld|st|atom|red)\.\S*(relaxed|acquire|release|acq_rel)|nanosleep"), "7.0"),
)
"""The minimum compute capability of opcodes (PTX ISA, "Target ISA Notes"), the newest first."""
MINIMUM_OF_FUNCTION = (
    (re.compile(r"\b(?:this_cluster|cluster_group|map_shared_rank|__cluster\w+)\b"), "9.0"),
    (re.compile(r"\b__reduce_(?:add|min|max|and|or|xor)_sync\b"), "8.0"),
)
"""The minimum compute capability of CUDA C++ functions (CUDA C++ Programming Guide)."""
OLDEST_WITH_ALL = (9, 0)
"""The compute capability that has all features except architecture-specific ones, such as those of 9.0a."""


class MissingFeature(UnsupportedInstruction):
    """The kernel uses a feature that GPUs of the requested compute capability lack."""

    def __init__(self, feature: str, reason: str, capability: tuple[int, int], file: str, line: int) -> None:
        super().__init__(feature, file, line)
        self.reason = f"'{feature}' {reason}; the chosen GPU has compute capability {capability[0]}.{capability[1]}"
        self.args = (f"{file}:{line}: {self.reason}",)


def require_capability(text: str, capability: tuple[int, int]) -> None:
    """Raise MissingFeature if preprocessed text uses a feature that GPUs of a compute capability lack."""
    if capability == OLDEST_WITH_ALL:
        return
    for instruction, position in instructions_of(text):
        opcode = instruction.split()[0]
        needed = next((needed for pattern, needed in MINIMUM_OF_OPCODE if pattern.match(opcode)), "")
        if reason := missing_capability(capability, needed):
            raise MissingFeature(opcode, reason, capability, *locate(text, position))
    for pattern, needed in MINIMUM_OF_FUNCTION:
        reason = missing_capability(capability, needed)
        for match in outside_strings(pattern, text) if reason else ():
            if not is_in_system_header(text, match.start()):
                raise MissingFeature(match.group(), reason or "", capability, *locate(text, match.start()))
