"""Judge a submission with a secret seed: check it, launch it again, time it, compare it, and read its code."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opbench._version import __version__
from opbench.checking import backends
from opbench.gpu.limits.capability import capability_of
from opbench.judging import sections
from opbench.judging.code import require_cage, start_reading_code
from opbench.judging.document import FORMAT, Fault, Judged, Settings, VerdictDocument
from opbench.judging.faults import code_of, faults_of
from opbench.judging.options import JudgeOptions
from opbench.judging.sizes import JudgedProblem, judged_problems
from opbench.judging.submission import SubmittedKernels, read_submission
from opbench.judging.task import Task, read_task
from opbench.kernels.case import Case
from opbench.paths import PACKAGE
from opbench.results.files import Run
from opbench.results.winners import entries_of
from opbench.running.options import RunSetup
from opbench.running.progress import OnProgress, silent
from opbench.running.revision import revision
from opbench.running.runner import run_suite
from opbench.running.suite import Suite, suite_for_variants
from opbench.running.targets import cases_to_check
from opbench.timing.sampling import TimingOptions

MAX_CPU_TASK_BYTES = 1 << 20
"""Most bytes of a PyTorch task's own sizes that the CPU checks, too; problems that the user names are all checked."""
SEED_BITS = 53
"""Every seed is a whole number that JSON readers of any language represent exactly."""


def judge(
    targets: Sequence[str | Path], options: JudgeOptions | None = None, *, on_progress: OnProgress = silent
) -> VerdictDocument:
    """Judge kernels of one operator and return the verdict.

    A target is a .cu file or a variant such as "relu/vec4". Raises UsageError for an unknown name or for host code, and
    EnvironmentFault if this machine lacks a C++ compiler.
    """
    options = options or JudgeOptions()
    task = read_task(options.task) if options.task else Task()
    task_file = options.task if options.task and options.task.suffix == ".toml" else None
    if options.problems:
        task = replace(task, problems=options.problems)
    names = [str(target) for target in targets]
    submitted = read_submission(names, task, task_file, options.variants, options.trust)
    if not options.trust:
        require_cage()
    seed = secrets.randbits(SEED_BITS) if options.seed is None else options.seed
    settings = Settings(
        backend=backends.resolve(options.backend),
        gpu=options.gpu,
        drawn=options.drawn,
        time_limit_s=options.time_limit_s or task.limits.check_s or Suite.time_limit_s,
        variants=tuple(map(str, options.variants)),
        trust=options.trust,
    )
    return judge_submission(submitted, settings, seed, options.seed is not None, on_progress)


def judge_submission(
    submitted: SubmittedKernels, settings: Settings, seed: int, seed_given: bool, on_progress: OnProgress = silent
) -> VerdictDocument:
    """Judge a submission that was read already, with the given seed."""
    from opbench.running.header import run_start

    at = run_start()["started"]
    named = submitted.named or [p for p in submitted.operator.task_problems() if p.bytes() <= MAX_CPU_TASK_BYTES]
    problems = {v.id: judged_problems(v, submitted.operator, named, seed, settings.drawn) for v in submitted.variants}
    cases = _cases(submitted, problems, seed)
    with start_reading_code(cases, settings.gpu, submitted.catalog.extra_roots, confined=not settings.trust) as reading:
        ran = _cpu_run(submitted, settings, cases, seed, on_progress)
        facts = sections.Facts(submitted, settings, problems, cases, ran, reading.result())
    faults = _faults(facts)
    if settings.backend == "cuda" and not faults:  # a kernel with a fault could do anything to a GPU
        checked, timed = _gpu_runs(submitted, settings, cases, seed, on_progress)
        facts = replace(facts, gpu_checks=checked, gpu_times=timed)
        faults = _faults(facts)
    return _document(facts, faults, seed, seed_given, at)


def _faults(facts: sections.Facts) -> list[Fault]:
    """Return the reasons to refuse the submission, from all checks that ran."""
    faults = [*facts.unsupported_problems(), *facts.false_claims(), *facts.refused_by_compiler()]
    return [*faults, *faults_of(facts.own_results), *facts.beyond_limits(), *facts.lower_classes()]


def _cases(submitted: SubmittedKernels, problems: dict[str, list[JudgedProblem]], seed: int) -> list[Case]:
    """Return the cases to judge: every config on the problems.

    If each config needs a compilation, they share problems.
    """
    cases: dict[str, Case] = {}
    for target in submitted.targets:
        own = [v for v in submitted.variants if target in (v.id, str(v.path)) or v.path == Path(target).resolve()]
        wanted = dict.fromkeys(str(judged.problem) for variant in own for judged in problems[variant.id])
        if wanted:
            to_check = cases_to_check(submitted.catalog, target, 0, seed, every=False, problems=tuple(wanted))
            cases |= {case.name: case for case in to_check}
    return list(cases.values())


def _cpu_run(
    submitted: SubmittedKernels, settings: Settings, cases: Sequence[Case], seed: int, on_progress: OnProgress
) -> Run:
    """Check the cases on the emulator, tracing small ones, and launch the right ones again."""
    suite = Suite("judge", "examples and drawn sizes", tuple(cases), TimingOptions(), settings.time_limit_s)
    with tempfile.TemporaryDirectory(prefix="opbench-judge-") as folder:
        setup = RunSetup(
            "cpu",
            Path(folder),
            measure=False,
            relaunch=True,
            seed=seed,
            secret=str(seed),
            roots=submitted.catalog.extra_roots,
            keep=False,
            capability=capability_of(settings.gpu),
            untrusted=not settings.trust,
        )
        return run_suite(suite, setup, on_progress)


def _gpu_runs(
    submitted: SubmittedKernels, settings: Settings, cases: Sequence[Case], seed: int, on_progress: OnProgress
) -> tuple[Run, Run]:
    """Check the same cases on the GPU, then time the task's problems together with libraries and known winners."""
    from opbench.running.probes import ceilings_for_run

    suite = Suite("judge", "examples and drawn sizes", tuple(cases), TimingOptions(), settings.time_limit_s)
    roots, secret = submitted.catalog.extra_roots, str(seed)
    with tempfile.TemporaryDirectory(prefix="opbench-judge-") as folder:
        root = Path(folder)
        setup = RunSetup("cuda", root / "check", measure=False, seed=seed, secret=secret, roots=roots, keep=False)
        checked = run_suite(suite, setup, on_progress)
        setup = replace(setup, out=root / "time", measure=True)
        timing = timing_suite(submitted, settings, seed)
        timed = run_suite(
            timing, setup, on_progress, lambda devices: ceilings_for_run(root / "time", on_progress, devices)
        )
    return checked, timed


def timing_suite(submitted: SubmittedKernels, settings: Settings, seed: int) -> Suite:
    """Return the suite to time: the submitted variants, the libraries, and the winners of committed runs."""
    problems = [str(problem) for problem in submitted.named or submitted.operator.task_problems()]
    suite = suite_for_variants(submitted.variants, submitted.catalog, "cuda", problems)
    own = {variant.id for variant in submitted.variants}
    libraries = {c.name: c for c in suite.cases if c.variant.is_library and c.variant.id not in own}
    winners = dict.fromkeys(entry.winner.case for case in suite.cases for entry in entries_of(case.problem))
    known = {name: submitted.catalog.case(name) for name in winners}  # its best config is often not the default one
    rivals = [case for case in (libraries | known).values() if case.variant.id not in own]
    mine = [case for case in suite.cases if case.variant.id in own]
    timing = replace(suite.timing, seed=seed % (1 << 31))
    return replace(suite, cases=(*mine, *rivals), timing=timing, time_limit_s=settings.time_limit_s, own=tuple(own))


def _document(facts: sections.Facts, faults: Sequence[Fault], seed: int, seed_given: bool, at: str) -> VerdictDocument:
    ordered = sections.in_order(faults)
    lacking = facts.lacking(ordered)
    overall, reason = sections.answer(facts, ordered, lacking)
    header = (facts.gpu_times or facts.cpu).header
    return VerdictDocument(
        verdict=FORMAT,
        overall=overall,
        code=ordered[0].code if ordered else "",
        reason=reason,
        lacking=lacking,
        next_step=sections.next_step(facts, ordered, seed),
        seed=seed,
        seed_given=seed_given,
        settings=facts.settings,
        submission=facts.submitted.record,
        compiles=facts.compiles(ordered),
        memory_safe=facts.memory_safe(ordered),
        race_free=facts.race_free(ordered),
        right=facts.right(ordered),
        timed=facts.timed(ordered),
        compared=facts.compared(ordered),
        signs=facts.cheating_signs(ordered),
        cases=facts.judged_cases(code_of),
        judged=Judged(at, __version__, revision(PACKAGE), header.environment.to_json()),
    )
