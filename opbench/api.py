"""The Python interface of opbench; the command line calls these functions."""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opbench import paths
from opbench.adopting.memory_plan import MemoryPlans
from opbench.checking import backends
from opbench.errors import UsageError
from opbench.gpu.limits.capability import capability_of
from opbench.gpu.limits.ceilings import Peaks, committed_ceilings
from opbench.gpu.limits.products import product
from opbench.kernels.case import Case, select
from opbench.kernels.case_names import CASE_NAME
from opbench.kernels.folders import Catalog
from opbench.paths import next_command
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.running.devices import ChosenGpu, choose_devices
from opbench.running.memory import run_in_memory_mode
from opbench.running.options import CheckOptions, RunOptions, RunSetup
from opbench.running.progress import Progress, silent
from opbench.running.protocol import OpenBackend
from opbench.running.runner import OnProgress, run_suite
from opbench.running.suite import (
    NoFittingProblem,
    Suite,
    read_suite,
    suite_for_case,
    suite_for_operator,
    suite_for_variants,
)
from opbench.running.targets import cases_to_check, is_file, no_problem_message, own_variants, read_bare_file
from opbench.running.untrusted import require_confinable
from opbench.timing.processes import PROCESSES
from opbench.timing.sampling import TimingOptions


def run(
    target: str | Path | Sequence[str | Path],
    options: RunOptions | None = None,
    *,
    tell: OnProgress = silent,
    **changes: Any,
) -> Run:
    """Check and time the cases of a suite, an operator or files, and return the finished run.

    `target` is the name or file of a suite, the name of an operator, a case as printed, a .cu or .py file of a kernel,
    or a list of such files. Files are compared with each other (`opbench.results.own_variants.compare_own_variants`).

    `changes` are fields of `RunOptions` and override those of `options`. `cases` are printed names or globs. `variants`
    are extra folders, laid out as variants/. `problems` such as "(n=1000)" give the sizes for a file. `out` is the
    folder of the run. `mode` is "cold", "hot" or "graph" and overrides the suite's. `publish` measures each case in
    three processes. `samples` is the number of samples of each case. `gpus` is "all" or a list such as "0,1": each
    GPU gets a worker and a share of the problems.
    `untrusted` compiles and runs kernels in confined processes, on the cpu backend only.
    `on` is "dask://HOST:PORT" or "slurm:FILE.toml" and runs the cases on the workers of that cluster; `tls` is for a
    scheduler that requires it. With `cpu_only` a run without a GPU does not compile with NVRTC.

    `tell` receives the progress. Times in the results are in seconds. Raises UsageError for an unknown name or option
    and EnvironmentFault for a missing GPU or compiler. A case that is wrong or fails raises nothing: its result says
    so.
    """
    run_options = replace(options or RunOptions(), **changes)
    suite, setup = _suite_and_setup(target_names(target), run_options)
    if run_options.report:
        # This process waits while workers measure. Import the report's modules, which take seconds, during that time.
        threading.Thread(target=importlib.import_module, args=("opbench.report.run.page",), daemon=True).start()
    if run_options.on:
        from opbench.running.cluster import run_on_cluster
        from opbench.running.clusters import connect

        with connect(run_options.on, run_options.tls) as (client, wait_s):
            finished = run_on_cluster(suite, setup, client, wait_s, tell)
    else:
        measures_ceilings = setup.backend == "cuda" and suite.name != "ceilings"
        ceilings = functools.partial(_ceilings, setup.out, tell) if measures_ceilings else None
        finished = run_suite(suite, setup, tell, ceilings)
    if run_options.report:
        _write_report(finished, setup, len(suite.cases), tell)
    return finished


def _suite_and_setup(targets: list[str], options: RunOptions) -> tuple[Suite, RunSetup]:
    """Return the cases of a run, with the options' times and limits, and the settings of the run."""
    on, gpu, backend = options.on, options.gpu, options.backend
    if on and options.gpus:
        raise UsageError(
            f"--gpus {options.gpus} is not allowed with --on {on}, whose workers have one GPU each; remove --gpus",
            kind="exclusive",
            subject=("--gpus", "--on"),
            value=options.gpus,
        )
    if on and backend == "auto":
        backend = "cuda"  # The remote workers have GPUs, even if this machine has none.
    require_confinable(targets, options, "cuda" if on else backends.resolve_name(backend))
    suite, roots, backend = expand_target(targets, backend, options.cases, options.variants, options.problems)
    timing = replace(suite.timing, mode=options.mode or suite.timing.mode)
    if options.samples:
        timing = timing.with_samples(options.samples)
    if options.report and backend == "cpu":
        committed_ceilings(gpu)  # An unknown GPU raises UsageError before anything runs.
    setup = RunSetup(
        backend,
        options.out or paths.new_run_folder(f"{suite.name}-{backend}"),
        options.resume,
        seed=options.seed,
        roots=roots,
        command=options.command,
        workers=_worker_count(backend),
        processes=PROCESSES if options.publish else 1,
        gpu=gpu,
        target=(targets[0], *(paths.path_from_here(str(root)) for root in options.variants)),
        targets=tuple(targets[1:] and targets),
        compile_for="" if options.cpu_only or options.untrusted else gpu,
        capability=_capability(gpu, backend),
        untrusted=options.untrusted,
        devices=choose_devices(options.gpus, backend),
    )
    return replace(suite, time_limit_s=options.time_limit_s or suite.time_limit_s, timing=timing), setup


def _ceilings(folder: Path, tell: OnProgress, devices: Sequence[ChosenGpu]) -> list[Peaks]:
    from opbench.running.probes import ceilings_for_run

    return ceilings_for_run(folder, tell, devices)


def _write_report(finished: Run, setup: RunSetup, case_count: int, tell: OnProgress) -> None:
    from opbench.report import write_report
    from opbench.running.advising import advise_page

    def tell_advice(text: str) -> None:
        tell(Progress("advise", text, case_count, case_count))

    advice = advise_page(finished, setup.gpu, setup.roots, tell_advice)
    write_report(finished, setup.out, setup.gpu, setup.roots, advice)


def target_names(target: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the targets as a list of strings, as the user typed them."""
    return [str(target)] if isinstance(target, (str, Path)) else [str(name) for name in target]


def expand_target(
    target: str | Path | Sequence[str | Path],
    backend: str = "auto",
    cases: Iterable[str] = (),
    variants: Sequence[str | Path] = (),
    problems: Sequence[str] = (),
) -> tuple[Suite, tuple[Path, ...], str]:
    """Return the cases of a target as a suite, the extra variant folders as absolute paths, and the name of the
    backend.

    `backend` may be "auto". Raises UsageError for an unknown target or case.
    """
    target, *others = target_names(target)
    if others and (name := next((name for name in (target, *others) if not is_file(name)), None)):
        raise UsageError(
            f"'{name}' is not a .cu file; several targets must all be .cu files, so name '{name}' in a separate "
            "command",
            kind="not-a-kernel-file",
            subject=name,
        )
    catalog = Catalog(variants)
    backend = backends.resolve_name(backend)
    path, (operator, _, variant) = Path(target), str(target).partition("/")
    if problems and not is_file(target):
        raise UsageError(
            f"--problem {problems[0]}: '{target}' is not a .cu file, and suites and operators define their own "
            "sizes; remove --problem, or select cases with --case PATTERN",
            kind="not-a-kernel-file",
        )
    if is_file(target):
        file_variants = [variant for file in (target, *others) for variant in own_variants(Path(file), catalog)]
        _require_distinct_names([(variant.id, variant.path) for variant in file_variants])
        try:
            suite = suite_for_variants(file_variants, catalog, backend, problems)
        except NoFittingProblem as no_problem:
            file = next(name for name in (target, *others) if Path(name).resolve() == no_problem.variant.path.resolve())
            reason = no_problem_message("run", file, no_problem.variant, catalog, problems, RunSetup.seed)
            raise UsageError(f"{file}: {reason}", kind="unsupported-problem", subject=file) from None
    elif CASE_NAME.match(target):
        suite = suite_for_case(catalog.case(target), catalog)
    elif operator in catalog.operator_names() and not (path.suffix and path.is_file()):
        if variant:
            catalog.variant(operator, variant)
            raise UsageError(
                f"{target}: is one variant; run the variant with: {catalog.command('run', operator, case=target)}",
                kind="not-runnable",
                subject=target,
            )
        suite = suite_for_operator(operator, catalog, backend)
    else:
        suite = read_suite(path, catalog, backend)
    patterns = list(cases)
    chosen = tuple(select(suite.cases, patterns, next_command("list cases", target, *others, variants=variants)))
    chosen_problems = {f"{case.variant.operator}{case.problem}" for case in chosen}
    left_out = {
        problem: reason for problem, reason in suite.left_out.items() if problem in chosen_problems or not patterns
    }
    return replace(suite, cases=chosen, left_out=left_out), catalog.extra_roots, backend


def check(
    targets: Sequence[str | Path] = (),
    options: CheckOptions | None = None,
    *,
    tell: OnProgress = silent,
    note: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> list[Result]:
    """Check every config of the targets for correctness, without timing, and return one result per case.

    A target is an operator, a variant ("matmul/tiled"), a case as printed or a file; no target means every operator.
    Configs run on the examples of the operator and on random shapes. `changes` are fields of `CheckOptions` and
    override those of `options`.

    If each pair of config and problem needs its own compilation, the problems are divided among the configs, unless
    `every` is set or cases are named; `note` receives the reason. `problems` such as "(n=1000)" replace the examples
    and random shapes. With `huge`, or with `every` on the cpu backend, problems beyond 2**31 elements are checked too:
    a sample of their blocks, on sparse memory. With `exit_first` the results end with the first case that is not right.

    On the cpu backend `gpu` is a name or a compute capability such as "8.6" and selects the branch of `__CUDA_ARCH__`.
    With a name, NVRTC, if it is installed, also compiles the kernels, and a kernel that does not compile fails;
    `cpu_only` disables this.

    With `untrusted`, kernels are compiled and run in confined processes on the cpu backend, without NVRTC, and Python
    files of the targets and of `variants` are refused unless `trust` is set.

    A .cu file without a header is checked with the header that `opbench adopt` would propose. If no operator fits, and
    for every file with `memory`, the launches in the file's host code run without a reference: the result is "no fault
    found" or wrong. `sizes` are values of host variables by name.

    Raises UsageError for an unknown name or option, EnvironmentFault for a missing GPU or compiler.
    """
    check_options = replace(options or CheckOptions(), **changes)
    checks_all = check_options.every and not check_options.problems and not check_options.untrusted
    backend = backends.resolve_name(check_options.backend)
    check_options = replace(
        check_options,
        backend=backend,
        every=check_options.every or bool(check_options.cases),
        huge=check_options.huge or (checks_all and backend == "cpu"),
    )
    require_confinable(targets, check_options, backend, check_options.huge)
    catalog, patterns = Catalog(check_options.variants), list(check_options.cases)
    chosen, plans = _cases_of(targets or _operators_named(patterns, catalog), check_options, catalog, note)
    if patterns:
        plans = [plan for plan in plans if any(plan.is_named(pattern) for pattern in patterns)]
        patterns = [pattern for pattern in patterns if not any(plan.is_named(pattern) for plan in plans)]
    memory_results = []
    if plans:
        capability, time_limit_s = _capability(check_options.gpu, backend), check_options.time_limit_s
        request = OpenBackend(backend, (), check_options.seed, capability=capability, untrusted=check_options.untrusted)
        memory_results = run_in_memory_mode(plans, request, time_limit_s or Suite.time_limit_s, tell, note)
    if plans and not chosen:
        return memory_results
    _require_distinct_names([(case.variant.id, case.variant.path) for case in chosen])
    list_command = next_command("check", *target_names(targets), variants=check_options.variants, list=True)
    selected = select(chosen, patterns, list_command)
    results = check_cases(selected, check_options, on_progress=tell)
    if len(results) < len(selected):
        note(f"stopped at the first failure: {len(selected) - len(results)} of {len(selected)} cases not tried")
    return [*memory_results, *results]


def check_cases(cases: Sequence[Case], options: CheckOptions, *, on_progress: OnProgress = silent) -> list[Result]:
    """Check cases for correctness, without timing, and return one result per case that was tried.

    With `options.every` each module is compiled. Raises EnvironmentFault for a missing GPU or compiler.
    """
    backend, gpu = backends.resolve_name(options.backend), options.gpu
    time_limit_s = options.time_limit_s or Suite.time_limit_s
    suite = Suite("check", "examples and random shapes", tuple(cases), TimingOptions(), time_limit_s)
    with tempfile.TemporaryDirectory(prefix="opbench-check-") as folder:
        setup = RunSetup(
            backend,
            Path(folder),
            measure=False,
            seed=options.seed,
            roots=options.variants,
            keep=False,
            exit_first=options.exit_first,
            workers=_worker_count(backend),
            compile_for="" if options.cpu_only or options.untrusted or not product(gpu) else gpu,
            capability=_capability(gpu, backend),
            every_module=options.every,
            untrusted=options.untrusted,
        )
        results = {result.case: result for result in run_suite(suite, setup, on_progress).results}
    return [results[case.name] for case in suite.cases if case.name in results]


def names_of_cases_to_check(
    targets: Sequence[str | Path], options: CheckOptions, *, note: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Return the names of all cases of the targets, which `check` with `every` would check."""
    catalog = Catalog(options.variants)
    all_cases = replace(options, every=True, memory=False, sizes={})
    chosen, _ = _cases_of(targets or catalog.operator_names(), all_cases, catalog, note)
    return [case.name for case in chosen]


def _operators_named(patterns: Sequence[str], catalog: Catalog) -> list[str]:
    """Return the names of the operators that patterns such as "relu/vec4*" begin with.

    If a pattern begins with no operator, the result is all operators. The restriction saves seconds: making the cases
    of all operators is slow.
    """
    operators = catalog.operator_names()
    prefixes = {pattern.partition("/")[0] if "/" in pattern else "" for pattern in patterns}
    return [name for name in operators if name in prefixes] if prefixes and prefixes <= set(operators) else operators


def _cases_of(
    targets: Iterable[str | Path], options: CheckOptions, catalog: Catalog, note: Callable[[str], None]
) -> tuple[list[Case], list[MemoryPlans]]:
    """Return the cases that a check of the targets runs, and the plans of the files that run in memory mode."""

    def cases_of(target: str | Path) -> list[Case]:
        return cases_to_check(
            catalog,
            target,
            options.random_shapes,
            options.seed,
            options.every,
            options.problems,
            note,
            options.huge,
        )

    chosen: list[Case] = []
    plans: list[MemoryPlans] = []
    for target in targets:
        cases_of_bare_file, plan = read_bare_file(Path(target), catalog, cases_of, options.memory, options.sizes, note)
        chosen += cases_of(target) if cases_of_bare_file is None else cases_of_bare_file
        plans += [plan] if plan else []
    return chosen, plans


def _require_distinct_names(variants: Iterable[tuple[str, Path]]) -> None:
    """Raise UsageError if the variants of two files have the same name."""
    files: dict[str, Path] = {}
    for name, path in variants:
        if (other_path := files.setdefault(name, path)) != path:
            raise UsageError(
                f"{other_path} and {path} both define the variant {name}; rename one of the two, or name each file "
                "in a separate command",
                kind="duplicate-variant",
                subject=path,
                value=name,
            )


def _worker_count(backend: str) -> int:
    """Return the number of worker processes that run cases: one per core on the CPU, one on a GPU.

    Two processes would share the GPU's memory and its faults, and GPU work does not wait for a CPU core.
    """
    return os.cpu_count() or 1 if backend == "cpu" else 1


def _capability(gpu: str, backend: str) -> tuple[int, int] | None:
    """Return the compute capability whose code a run on the CPU compiles; None on a GPU."""
    return capability_of(gpu) if backend == "cpu" else None
