"""Explain kernels: count their memory traffic on the cpu backend, and compare the traffic of kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.adopting.memory_plan import MemoryPlan
from opbench.backend.counts import Traffic
from opbench.backend.findings import Finding
from opbench.checking.checking import DEFAULT_SEED, trace_case
from opbench.checking.memory import trace_memory
from opbench.errors import CompileError, OpbenchError
from opbench.gpu.compile.resources import Resources, resources_of
from opbench.gpu.limits.capability import capability_of
from opbench.gpu.limits.ceilings import Peaks, committed_ceilings
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.gpu.limits.products import product
from opbench.insight.advice import advise_lines
from opbench.insight.explain import Explanation, explain
from opbench.insight.subject import Subject
from opbench.insight.summary import summarise
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import print_config
from opbench.results.advice import CaseAdvice, advise_counted
from opbench.results.own_variants import VariantComparison
from opbench.results.result import Result
from opbench.running.options import RunSetup
from opbench.running.runner import run_suite
from opbench.running.suite import Suite
from opbench.running.targets import case_of, cases_to_compare, read_bare_file
from opbench.timing.sampling import TimingOptions

MAX_TRACED_WORK = 1e9
"""Most FLOPs and elements of a case that a worker traces: minutes, which the time limit of a case ends earlier."""


@dataclass(frozen=True)
class ExplainedKernel:
    """A kernel with its counted traffic, explanation and advice."""

    operator: str
    problem: str
    variant: str
    config: str
    """As printed behind the variant, such as "[TILE=16]"."""
    path: Path
    explanation: Explanation
    traffic: Traffic
    advised: CaseAdvice
    """The advice on the case, from the same counts, the strongest first."""
    without_operator: bool = False
    """Whether the launches of the file's host code were explained, because no operator fits."""


def explain_in_worker(case: Case, catalog: Catalog, gpu: str, untrusted: bool, time_limit_s: float) -> ExplainedKernel:
    """Check a case in a worker process of the cpu backend, and explain its counted traffic.

    With `untrusted` the worker is confined. Raises NotExplained for a case that is not right: its traffic would
    be misleading.
    """
    suite = Suite("explain", "one case", (case,), TimingOptions(), time_limit_s, traced_work=MAX_TRACED_WORK)
    with tempfile.TemporaryDirectory(prefix="opbench-explain-") as folder:
        setup = RunSetup(
            "cpu",
            Path(folder),
            measure=False,
            roots=catalog.extra_roots,
            keep=False,
            capability=capability_of(gpu),
            untrusted=untrusted,
            compile_for="" if untrusted else gpu,
        )
        run = run_suite(suite, setup)
    (result,) = run.results
    traffic = run.traffic.get(case.name)
    if result.status != "right" or traffic is None:
        raise NotExplained(result)
    compiled = Resources(result.resources, missing=result.resources_missing)
    return _explained(case, traffic, (), compiled, committed_ceilings(gpu), catalog)


def _explained(
    case: Case, traffic: Traffic, findings: Sequence[Finding], compiled: Resources, ceilings: Peaks, catalog: Catalog
) -> ExplainedKernel:
    """Return the explanation of a counted case, the advice on it, and the parts of its name."""
    variant = case.variant
    subject = Subject.of_case(case, catalog.variants(variant.operator))
    sources = sources_of(variant.path, traffic)
    return ExplainedKernel(
        variant.operator,
        str(case.problem),
        variant.name,
        print_config(case.config),
        variant.path,
        explain(subject, traffic, findings, sources, ceilings, compiled.kernels),
        traffic,
        advise_counted(case, traffic, compiled.kernels, ceilings, subject, sources, compiled.missing),
    )


class NotExplained(OpbenchError):
    """A case cannot be explained, because it is not right or its memory accesses were not counted."""

    def __init__(self, result: Result) -> None:
        reason = f"{result.status}: {result.reason}" if result.reason else "its accesses were not counted"
        super().__init__(f"{result.case}: {reason}")
        self.result = result


def explain_targets(
    names: Sequence[str], pattern: str, gpu: str, catalog: Catalog, note: Callable[[str], None]
) -> list[ExplainedKernel]:
    """Trace each target on the cpu backend and explain its traffic.

    A target is a case, a variant or a .cu file; the launches of a file that no operator fits are explained
    without an operator. `pattern` selects the problem, `gpu` names the GPU whose peaks give lower bounds;
    `note` receives remarks for the user. Raises UsageError for an unknown name.
    """

    def cases_of(path: Path) -> list[Case]:
        return [case_of(path, pattern, catalog, "quick")]

    plans = {}
    for name in names:
        _, plan = read_bare_file(Path(name), catalog, cases_of, False, {}, note)
        if plan is not None:
            plans[name] = plan
    with_operator = [name for name in names if name not in plans]
    cases = dict(zip(with_operator, cases_to_compare(with_operator, pattern, catalog), strict=True))
    for name, case in cases.items():
        if case.name != name and not pattern:
            note(f"case {case.name}; for other sizes add --case '{case.problem}' with your numbers")
    ceilings, modelled_gpu = committed_ceilings(gpu), product(gpu)
    limits = modelled_gpu.limits if modelled_gpu else None
    return [
        _explain_launches(plans[name].reduced, ceilings, limits, note)
        if name in plans
        else _explain(name, cases[name], gpu, ceilings, limits, catalog)
        for name in names
    ]


def _explain(
    target: str, case: Case, gpu: str, ceilings: Peaks, limits: DeviceLimits | None, catalog: Catalog
) -> ExplainedKernel:
    try:
        traffic, findings = trace_case(case, modelled_gpu=limits)
    except CompileError as error:
        message = f"{error.message}\ncorrect the file, then check it with: {catalog.command('check', target)}"
        raise CompileError(message, error.location, cause=error) from None
    _, compiled = next(resources_of([case], gpu, blocks=True), (0, Resources()))
    return _explained(case, traffic, findings, compiled, ceilings, catalog)


def _explain_launches(
    plan: MemoryPlan, ceilings: Peaks, limits: DeviceLimits | None, note: Callable[[str], None]
) -> ExplainedKernel:
    """Explain the launches of a file without an operator, so without a lower bound of its traffic."""
    for text in plan.notes:
        note(text)
    traffic, findings = trace_memory(plan, DEFAULT_SEED, limits)
    operator, _, problem_text = plan.name.partition("/")
    problem = problem_text.removeprefix(plan.path.stem)
    subject = Subject(plan.name, f"the launches of {plan.path.name}, without an operator", plan.array_bytes)
    explanation = explain(subject, traffic, findings, sources_of(plan.path.resolve(), traffic), ceilings)
    advice = tuple(advise_lines(explanation.problems))
    advised = CaseAdvice(plan.name, operator, problem, 0.0, 0.0, advice, plan.name, modelled=True)
    return ExplainedKernel(
        operator, problem, plan.path.stem, "", plan.path, explanation, traffic, advised, without_operator=True
    )


def compare_explained(explained: Sequence[ExplainedKernel]) -> list[VariantComparison]:
    """Compare the traffic of each kernel with that of the first kernel on the same problem."""
    first_on_problem: dict[tuple[str, str], ExplainedKernel] = {}
    comparisons = []
    for explanation in explained:
        base = first_on_problem.setdefault((explanation.operator, explanation.problem), explanation)
        if base is not explanation:
            comparisons.append(
                VariantComparison(
                    operator=explanation.operator,
                    problem=explanation.problem,
                    base=base.variant + base.config,
                    new=explanation.variant + explanation.config,
                    base_traffic=summarise(base.traffic),
                    new_traffic=summarise(explanation.traffic),
                )
            )
    return comparisons


def sources_of(own_file: Path, traffic: Traffic) -> dict[str, str]:
    """Return the kernel's own file, then the other files that the traffic names and that can be read."""
    texts = {}
    files = [str(own_file), *(e.file for e in traffic.lines), *(e.file for e in traffic.branches)]
    for path in dict.fromkeys(files):
        try:
            texts[path] = Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
        except OSError:
            continue
    return {path: text for path, text in texts.items() if text}
