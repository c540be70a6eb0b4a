"""Choose a problem's variant without --book: the committed winner, else the variant that is ranked first."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opbench import units
from opbench.backend.environment import Environment
from opbench.errors import UsageError
from opbench.gpu.limits.capability import capability_of
from opbench.gpu.limits.products import product
from opbench.graph.problems import ALLOWED_PRECISIONS
from opbench.insight import defaults
from opbench.kernels.capability import missing_capability
from opbench.kernels.case import Case, fitting_cases
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.results.book import BookEntry
from opbench.results.winners import run_of

PROBLEM_NAME = re.compile(r"(\w+)(\(.*\))")
"""A problem as printed, such as "conv2d(n=16,c=3,h=32,w=32,k=8,r=3,s=3)"."""


@dataclass(frozen=True)
class Choice:
    """The case that was chosen for a problem, with notes on its time and on the reason for the choice."""

    case: Case
    time_note: str
    """Such as "23.0 µs on NVIDIA H200"; empty where nothing was measured."""
    note: str


def problem_named(name: str, catalog: Catalog) -> Operator | None:
    """Return the problem that prints as `name`.

    None if it names no known operator. Raises UsageError for wrong axes.
    """
    match = PROBLEM_NAME.fullmatch(name)
    is_operator = match and match[1] in catalog.operator_names()
    return catalog.operator(match[1]).parse(match[2]) if match and is_operator else None


def choose_case(
    problem: Operator, catalog: Catalog, entry: BookEntry | None, gpu_name: str, arch: str, precision: str
) -> Choice:
    """Return the case of a committed winner; without a winner, the case that the ranking by header puts first."""
    name = f"{problem.name}{problem}"
    if entry is not None:
        case = catalog.case(entry.winner.case)
        time = f"{units.time(entry.winner.median_s)} on {entry.gpu}"
        note = f"{name}: takes {case.variant.name}, the fastest of the committed runs: {time} ({run_of(entry.winner)})"
        if entry.winner.is_of_other_code(case.variant):
            note += "; its code was edited since it was measured"
        return Choice(case, time, note)
    case = _ranked_first(problem, catalog, gpu_name, arch, precision)
    return Choice(
        case,
        "",
        f"{name}: no committed run measured it; takes {case.variant.name}, which opbench ranks first for {gpu_name}. "
        f"Measure it: opbench run, then opbench book RUN --out book.json and --book book.json",
    )


def _ranked_first(problem: Operator, catalog: Catalog, gpu_name: str, arch: str, precision: str) -> Case:
    capability, ladder = capability_of(arch), catalog.choosable_variants(problem.name)
    classes = (problem.storage,) if problem.storage in ("bf16", "f16") else ALLOWED_PRECISIONS[precision]
    runnable = (
        variant
        for variant in ladder
        if variant.precision in classes and not missing_capability(capability, variant.compute_capability)
    )
    fitting = fitting_cases(runnable, [problem])
    if not fitting:
        raise UsageError(
            f"no variant of {problem.name} can compute {problem} in {precision} on {arch}; choose other sizes, another "
            f"--precision or another --gpu (the variants: {catalog.command('list variants', problem.name)})",
            kind="no-variant",
            subject=problem.name,
            value=f"{problem}",
        )
    return defaults.rank_cases(
        fitting, _gpu_for_defaults(gpu_name, arch), product=any(variant.unit for variant in ladder)
    )[0]


def _gpu_for_defaults(gpu_name: str, arch: str) -> defaults.RankingGpu | None:
    major, minor = capability_of(arch)
    known_product = product(gpu_name)
    sm_count = known_product.sm_count if known_product else 1
    return defaults.ranking_gpu(Environment(gpu=gpu_name, compute_capability=f"{major}.{minor}", sm_count=sm_count))
