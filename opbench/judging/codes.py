"""Codes of refusals, each with its meaning, the section of the verdict that it fails, and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opbench.backend import rules
from opbench.backend.rules import RULES, Rule

SectionName = Literal["compiles", "memory_safe", "race_free", "right", "timed", "compared", "signs"]
"""The sections of a verdict, in the order in which a page shows them."""


@dataclass(frozen=True)
class Code:
    """One reason to refuse a submission, with the section that it fails."""

    name: str
    section: SectionName
    title: str
    remedy: str
    """The next step for the author: one sentence in the imperative."""


RACE_RULES = frozenset(
    {
        rules.SHARED_RACE,
        rules.GLOBAL_RACE,
        rules.BLOCK_RACE,
        rules.DIVERGENT_BARRIER,
        rules.WARP_MASK,
        rules.PARTIAL_WARP,
        rules.DEADLOCK,
        rules.UNFINISHED_COPY,
        rules.UNFINISHED_PRODUCT,
        rules.EARLY_OVERWRITE,
        rules.MISSING_FENCE,
        rules.MBARRIER,
        rules.CLUSTER_EXIT,
        rules.DIFFERENT_PRODUCTS,
        rules.MISSING_WAIT,
    }
)
"""Rules about the order of threads; their findings fail the section `race_free`."""
RESULT_RULES = frozenset({rules.WRONG_RESULT, rules.UNWRITTEN_OUTPUT, rules.NOT_FINITE})
"""Rules about outputs; their findings fail the section `right`."""
BUILD_RULES = frozenset({rules.POINTER_TYPE, rules.FAILED_CASE, rules.ILLEGAL_INSTRUCTION})
"""Rules about compiled code; their findings fail the section `compiles`."""


def _section_of(rule: Rule) -> SectionName:
    """Return the section of the verdict that a finding of a rule fails."""
    if rule in RACE_RULES:
        return "race_free"
    return "right" if rule in RESULT_RULES else "compiles" if rule in BUILD_RULES else "memory_safe"


OWN_CODES = (
    Code("does-not-compile", "compiles", "The kernel does not compile", "Correct the line that the compiler names."),
    Code(
        "gpu-refuses",
        "compiles",
        "The kernel compiles for the CPU, but NVRTC refuses it",
        "Correct the line that NVRTC names, or choose the GPU that the kernel is for (--gpu).",
    ),
    Code(
        "lower-class",
        "compiles",
        "Tensor cores multiply in a lower class than the header claims",
        'Name the type of the factors in the header: product = "…".',
    ),
    Code(
        "lower-claim",
        "compiles",
        "The header claims a lower precision than the task asks for",
        "Multiply in the precision of the task, and say so in the header.",
    ),
    Code(
        "launch-failed",
        "memory_safe",
        "The kernel could not be launched, or the process that ran it died",
        "Correct the launch in the header, or the addresses that the kernel uses.",
    ),
    Code("time-limit", "right", "The kernel did not end within the time limit", "Let every loop end."),
    Code(
        "special-inputs",
        "right",
        "The result is wrong on special inputs",
        "Handle ties, zeros, infinities, subnormal and large numbers as the operator's reference does.",
    ),
    Code(
        "whole-numbers",
        "right",
        "The result is not exact on small whole numbers",
        "Accumulate in float32 at least, and drop no term: sums of small whole numbers are exact.",
    ),
    Code(
        "unsupported-problem",
        "right",
        "The kernel does not accept a problem of the task",
        "Support the sizes of the task, or remove the rule in `requires` that excludes them.",
    ),
    Code(
        "error-limit",
        "right",
        "The error is above the limit of the task",
        "Reduce rounding: accumulate in a wider type, or in more partial sums.",
    ),
    Code(
        "keeps-state",
        "right",
        "The kernel keeps state between launches",
        "Let every launch compute its output from its inputs alone.",
    ),
    Code(
        "old-output",
        "right",
        "The result is wrong when the kernel is launched again",
        "Write every element of the output in every launch, whatever the memory contained before.",
    ),
    Code(
        "impossible-time",
        "timed",
        "The time is below the lower bound of the problem",
        "Do all of the work in every launch; if the kernel does, measure the peaks again: opbench ceiling.",
    ),
    Code("too-slow", "timed", "The time is above the limit of the task", "See the costliest line: opbench explain."),
    Code(
        "too-little-speedup",
        "compared",
        "The speedup is below the limit of the task",
        "See the costliest line: opbench explain.",
    ),
)

CODES = {code.name: code for code in (*OWN_CODES, *(Code(r.name, _section_of(r), r.title, r.remedy) for r in RULES))}
"""Every code by name: those of `OWN_CODES`, and one for each rule of a finding."""
