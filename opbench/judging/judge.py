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
from opbench.judging.next_step import next_step
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
"""Largest problem of a PyTorch task that the CPU also checks, in bytes; problems that the user names have no limit."""
SEED_BITS = 53
"""Bits of a seed: JSON readers of all languages represent such whole numbers exactly."""


def judge(
    targets: Sequence[str | Path], options: JudgeOptions | None = None, *, on_progress: OnProgress = silent
) -> VerdictDocument:
    """Judge kernels of one operator and return the verdict.

    A target is a .cu file or a variant such as "relu/vec4". Raises UsageError for an unknown name or for host code, and
    EnvironmentFault if this machine lacks a C++ compiler, or the GPU that the options require.
    """
    options = options or JudgeOptions()
    backends.require_device(options.backend)  # The checks on the CPU come first, and would be in vain.
    task = read_task(options.task) if options.task else Task()
    task_file = options.task if options.task and options.task.suffix == ".toml" else None
    if options.problems:
        task = replace(task, problems=options.problems)
    target_names = [str(target) for target in targets]
    submitted_kernels = read_submission(target_names, task, task_file, options.variants, options.trust)
    if not options.no_cage:
        require_cage()
    seed = secrets.randbits(SEED_BITS) if options.seed is None else options.seed
    settings = Settings(
        backend=backends.resolve_name(options.backend),
        gpu=options.gpu,
        drawn=options.drawn,
        time_limit_s=options.time_limit_s or task.limits.check_s or Suite.time_limit_s,
        variants=tuple(map(str, options.variants)),
        trust=options.trust,
        no_cage=options.no_cage,
    )
    return judge_submission(submitted_kernels, settings, seed, options.seed is not None, on_progress)


def judge_submission(
    submitted: SubmittedKernels, settings: Settings, seed: int, seed_given: bool, on_progress: OnProgress = silent
) -> VerdictDocument:
    """Judge the kernels of a submission with a seed and return the verdict."""
    from opbench.running.header import run_start

    started = run_start()["started"]
    named_problems = submitted.named_problems or [
        p for p in submitted.operator.task_problems() if p.bytes() <= MAX_CPU_TASK_BYTES
    ]
    problems = {
        v.id: judged_problems(v, submitted.operator, named_problems, seed, settings.drawn) for v in submitted.variants
    }
    cases = _cases(submitted, problems, seed)
    with start_reading_code(
        cases, settings.gpu, submitted.catalog.extra_roots, confined=not settings.no_cage
    ) as code_reader:
        cpu_run = _cpu_run(submitted, settings, cases, seed, on_progress)
        judgement = sections.Judgement(submitted, settings, problems, cases, cpu_run, code_reader.result())
    faults = _faults(judgement)
    if settings.backend == "cuda" and not faults:  # On a GPU, a kernel runs without a cage.
        gpu_check_run, gpu_timing_run = _gpu_runs(submitted, settings, cases, seed, on_progress)
        judgement = replace(judgement, gpu_check_run=gpu_check_run, gpu_timing_run=gpu_timing_run)
        faults = _faults(judgement)
    return _document(judgement, faults, seed, seed_given, started)


def _faults(judgement: sections.Judgement) -> list[Fault]:
    """Return all faults for which the submission is refused."""
    faults = [*judgement.unsupported_problems(), *judgement.false_claims(), *judgement.rejected_by_nvrtc()]
    return [*faults, *faults_of(judgement.own_results), *judgement.exceeded_limits(), *judgement.disproved_precisions()]


def _cases(submitted: SubmittedKernels, problems: dict[str, list[JudgedProblem]], seed: int) -> list[Case]:
    """Return the cases to judge: every config of the submitted variants on the variants' problems.

    Configs that each need a compilation are spread over the problems.
    """
    cases: dict[str, Case] = {}
    for target in submitted.targets:
        target_variants = [
            variant
            for variant in submitted.variants
            if target in (variant.id, str(variant.path)) or variant.path == Path(target).resolve()
        ]
        problem_texts = dict.fromkeys(
            str(judged.problem) for variant in target_variants for judged in problems[variant.id]
        )
        if problem_texts:
            to_check = cases_to_check(submitted.catalog, target, 0, seed, every=False, problems=tuple(problem_texts))
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
            untrusted=not settings.no_cage,
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
        run_folder = Path(folder)
        setup = RunSetup("cuda", run_folder / "check", measure=False, seed=seed, secret=secret, roots=roots, keep=False)
        check_run = run_suite(suite, setup, on_progress)
        setup = replace(setup, out=run_folder / "time", measure=True)
        timed_suite = timing_suite(submitted, settings, seed)
        timed_run = run_suite(
            timed_suite, setup, on_progress, lambda devices: ceilings_for_run(run_folder / "time", on_progress, devices)
        )
    return check_run, timed_run


def timing_suite(submitted: SubmittedKernels, settings: Settings, seed: int) -> Suite:
    """Return the suite to time: the submitted variants, the libraries, and the winners of committed runs."""
    problems = [str(problem) for problem in submitted.named_problems or submitted.operator.task_problems()]
    suite = suite_for_variants(submitted.variants, submitted.catalog, "cuda", problems)
    own_ids = {variant.id for variant in submitted.variants}
    libraries = {case.name: case for case in suite.cases if case.variant.is_library and case.variant.id not in own_ids}
    winners = dict.fromkeys(entry.winner.case for case in suite.cases for entry in entries_of(case.problem))
    # The best config of a winner is often not the default one.
    winner_cases = {name: submitted.catalog.case(name) for name in winners}
    rivals = [case for case in (libraries | winner_cases).values() if case.variant.id not in own_ids]
    own_cases = [case for case in suite.cases if case.variant.id in own_ids]
    timing = replace(suite.timing, seed=seed % (1 << 31))
    return replace(
        suite,
        cases=(*own_cases, *rivals),
        timing=timing,
        time_limit_s=settings.time_limit_s,
        own_variant_ids=tuple(own_ids),
    )


def _document(
    judgement: sections.Judgement, faults: Sequence[Fault], seed: int, seed_given: bool, started: str
) -> VerdictDocument:
    """Return the verdict document for a judgement and its faults."""
    ordered_faults = sections.in_order(faults)
    lacking = judgement.unjudged_parts(ordered_faults)
    overall, reason = sections.overall_verdict(judgement, ordered_faults, lacking)
    header = (judgement.gpu_timing_run or judgement.cpu_run).header
    return VerdictDocument(
        verdict=FORMAT,
        overall=overall,
        code=ordered_faults[0].code if ordered_faults else "",
        reason=reason,
        lacking=lacking,
        next_step=next_step(judgement, ordered_faults, seed),
        seed=seed,
        seed_given=seed_given,
        settings=judgement.settings,
        submission=judgement.submitted.record,
        compiles=judgement.compiles(ordered_faults),
        memory_safe=judgement.memory_safe(ordered_faults),
        race_free=judgement.race_free(ordered_faults),
        right=judgement.right(ordered_faults),
        timed=judgement.timed(ordered_faults),
        compared=judgement.compared(ordered_faults),
        signs=judgement.cheating_signs(ordered_faults),
        cases=judgement.judged_cases(code_of),
        judged=Judged(started, __version__, revision(PACKAGE), header.environment.to_json()),
    )
