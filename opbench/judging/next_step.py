"""Name the next step of a kernel's author: correct the first fault, or apply the strongest advice."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from opbench.backend.counts import Traffic
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.insight.subject import Subject
from opbench.judging.codes import CODES
from opbench.judging.document import Fault, NextStep
from opbench.judging.sections import Judgement
from opbench.judging.signs import STATE_RULE
from opbench.judging.submission import document_path
from opbench.kernels.case import Case
from opbench.kernels.task_file import TASK_PREFIX
from opbench.paths import next_command, path_from_here, portable_path
from opbench.results.advice import NEAR_BOUND, CaseAdvice, advise_counted, advise_measured, over_bound


def next_step(judgement: Judgement, faults: Sequence[Fault], seed: int) -> NextStep:
    """Return the author's next step: correct the first fault, or else apply the strongest advice on memory traffic."""
    if faults:
        fault = faults[0]
        location = f"{fault.place}: " if fault.place else ""
        return NextStep(f"{location}{CODES[fault.code].remedy}", _rerun(judgement, fault, seed))
    target = judgement.submitted.targets[0]
    largest: tuple[float, Case, Traffic] | None = None
    for case in judgement.cases:
        traffic = judgement.cpu_run.traffic.get(case.name)
        if traffic and (largest is None or case.problem.bytes() > largest[0]):
            largest = case.problem.bytes(), case, traffic
    if largest:
        advised = _advised(judgement, *largest[1:])
        if advised.is_near_bound:
            return NextStep(f"{advised.case} is {NEAR_BOUND}.", next_command("explain", target))
        for advice in advised.advice[:1]:
            location = f"{document_path(advice.file)}:{advice.line}: " if advice.line else ""
            example = f"; see {advice.examples[0]}" if advice.examples else ""
            sentence = f"{location}{advice.evidence}: {advice.action}; {advised.gain_text(advice)}{example}"
            return NextStep(sentence, next_command("explain", target))
    if judgement.gpu_timing_run is None:
        return NextStep("Judge the kernel on a machine with a GPU, for its time.", _judge_again(judgement))
    return NextStep("Search for a faster config.", next_command("tune", target))


def _advised(judgement: Judgement, counted: Case, traffic: Traffic) -> CaseAdvice:
    """Return the advice on the timed case that is farthest above its lower bound; without times, on the counted one."""
    texts = {portable_path(str(source.path)): source.text for source in counted.variant.sources}
    subject = Subject.of_case(counted, judgement.submitted.catalog.variants(counted.variant.operator))
    result = next((r for r in judgement.cpu_run.results if r.case == counted.name), None)
    resources = result.resources if result else {}
    distances = [
        (distance, timed)
        for timed in (judgement.gpu_timing_run.results if judgement.gpu_timing_run else ())
        if (timed.operator, timed.variant) == (counted.variant.operator, counted.variant.name)
        and (
            distance := over_bound(
                timed, judgement.gpu_timing_run.ceilings_of(timed) if judgement.gpu_timing_run else None
            )
        )
    ]
    if judgement.gpu_timing_run is None or not distances:
        peaks = committed_ceilings(judgement.settings.gpu)
        return advise_counted(counted, traffic, resources, peaks, subject, texts)
    distance, timed = max(distances, key=itemgetter(0))
    assert timed.measurement is not None
    time_s = timed.measurement.median_s
    advised = CaseAdvice(timed.case, timed.operator, timed.problem, time_s, time_s / distance)
    if advised.is_near_bound:
        return advised
    return advise_measured(
        advised, timed, judgement.gpu_timing_run.ceilings_of(timed), counted, traffic, resources, subject, texts
    )


def _rerun(judgement: Judgement, fault: Fault, seed: int) -> str:
    """Return the command that reproduces a fault."""
    case = next((case for case in judgement.cases if case.name == fault.case), None)
    # The fault depends on the cases that ran before, so one case alone does not show it.
    keeps_state = any(sign.rule == STATE_RULE for sign in judgement.compiled_code.signs) or fault.code in (
        "keeps-state",
        "old-output",
    )
    if case is None or keeps_state:
        return _judge_again(judgement, seed)
    if judgement.submitted.catalog.task(case.variant.operator):  # A confined check loads no Python files of the user.
        return _judge_again(judgement, seed, str(case.problem))
    target = next(
        (t for t in judgement.submitted.targets if Path(t).resolve() == case.variant.path.resolve()), case.variant.id
    )
    problem = str(case.problem)
    settings = judgement.settings
    in_cage = not settings.no_cage
    trust = settings.trust and in_cage
    options = {"problem": problem, "case": case.name, "seed": seed, "untrusted": in_cage, "trust": trust}
    return next_command("check", target, variants=settings.variants, **options)


def _judge_again(judgement: Judgement, seed: int | None = None, problem: str = "") -> str:
    """Return the command that repeats the judgement, with its PyTorch task if it has one."""
    task_operator = judgement.submitted.task.operator
    task = path_from_here(task_operator.removeprefix(TASK_PREFIX)) if task_operator.startswith(TASK_PREFIX) else ""
    settings = judgement.settings
    options = {"task": task, "problem": problem, "seed": seed, "trust": settings.trust, "no_cage": settings.no_cage}
    return next_command("judge", *judgement.submitted.targets, variants=settings.variants, **options)
