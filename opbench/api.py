"""The Python interface of opbench; the command line calls these functions."""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opbench import paths
from opbench.adopting.memory_plan import MemoryPlans
from opbench.case_names import CASE_NAME
from opbench.checking import backends
from opbench.errors import UsageError
from opbench.gpu.limits.capability import capability_of
from opbench.gpu.limits.ceilings import Peaks, committed_ceilings
from opbench.gpu.limits.products import product
from opbench.kernels.case import Case, select
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
    on, gpu, variants, backend = run_options.on, run_options.gpu, run_options.variants, run_options.backend
    if on and run_options.gpus:
        raise UsageError(
            f"--gpus {run_options.gpus} is not allowed with --on {on}, whose workers have one GPU each; remove --gpus",
            kind="exclusive",
            subject=("--gpus", "--on"),
            value=run_options.gpus,
        )
    if on and backend == "auto":
        backend = "cuda"  # The remote workers have GPUs, even if this machine has none.
    targets = target_names(target)
    require_confinable(targets, run_options, "cuda" if on else backends.resolve_name(backend))
    suite, roots, backend = expand_target(targets, backend, run_options.cases, variants, run_options.problems)
    timing = replace(suite.timing, mode=run_options.mode or suite.timing.mode)
    if run_options.samples:
        timing = timing.with_samples(run_options.samples)
    suite = replace(suite, time_limit_s=run_options.time_limit_s or suite.time_limit_s, timing=timing)
    folder = run_options.out or paths.new_run_folder(f"{suite.name}-{backend}")
    processes = PROCESSES if run_options.publish else 1
    if run_options.report and backend == "cpu":
        committed_ceilings(gpu)  # An unknown GPU raises UsageError before anything runs.
    setup = RunSetup(
        backend,
        folder,
        run_options.resume,
        seed=run_options.seed,
        roots=roots,
        command=run_options.command,
        workers=_worker_count(backend),
        processes=processes,
        gpu=gpu,
        target=(targets[0], *(paths.path_from_here(str(root)) for root in variants)),
        targets=tuple(targets[1:] and targets),
        compile_for="" if run_options.cpu_only or run_options.untrusted else gpu,
        capability=capability_of(gpu) if backend == "cpu" else None,
        untrusted=run_options.untrusted,
        devices=choose_devices(run_options.gpus, backend),
    )

    if run_options.report:
        # This process waits while workers measure. Import the report's modules, which take seconds, during that time.
        threading.Thread(target=importlib.import_module, args=("opbench.report.run.page",), daemon=True).start()

    def ceilings(devices: Sequence[ChosenGpu]) -> list[Peaks]:
        from opbench.running.probes import ceilings_for_run

        return ceilings_for_run(folder, tell, devices)

    if on:
        from opbench.running.cluster import run_on_cluster
        from opbench.running.clusters import connect

        with connect(on, run_options.tls) as (client, wait_s):
            finished = run_on_cluster(suite, setup, client, wait_s, tell)
    else:
        finished = run_suite(suite, setup, tell, ceilings if backend == "cuda" and suite.name != "ceilings" else None)
    if run_options.report:
        from opbench.report import write_report
        from opbench.running.advising import advise_page

        def tell_advice(text: str) -> None:
            tell(Progress("advise", text, len(suite.cases), len(suite.cases)))

        write_report(finished, folder, gpu, roots, advise_page(finished, gpu, roots, tell_advice))
    return finished


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
    backend, gpu, seed, problems = (
        backends.resolve_name(check_options.backend),
        check_options.gpu,
        check_options.seed,
        check_options.problems,
    )
    require_confinable(targets, check_options, backend, check_options.huge)
    catalog = Catalog(check_options.variants)
    patterns = list(check_options.cases)
    huge = check_options.huge or (
        check_options.every and backend == "cpu" and not problems and not check_options.untrusted
    )
    capability = capability_of(gpu) if backend == "cpu" else None
    time_limit_s = check_options.time_limit_s or Suite.time_limit_s

    every = check_options.every or bool(patterns)
    searched_targets = targets or _operators_named(patterns, catalog)
    chosen, plans = _cases_of(
        catalog,
        searched_targets,
        check_options.random_shapes,
        seed,
        every,
        problems,
        note,
        huge,
        check_options.memory,
        check_options.sizes,
    )
    if patterns:
        plans = [plan for plan in plans if any(plan.is_named(pattern) for pattern in patterns)]
        patterns = [pattern for pattern in patterns if not any(plan.is_named(pattern) for plan in plans)]
    memory_results = []
    if plans:
        session_request = OpenBackend(backend, (), seed, capability=capability, untrusted=check_options.untrusted)
        memory_results = run_in_memory_mode(plans, session_request, time_limit_s, tell, note)
    if plans and not chosen:
        return memory_results
    _require_distinct_names([(case.variant.id, case.variant.path) for case in chosen])
    list_command = next_command("check", *target_names(targets), variants=check_options.variants, list=True)
    selected = select(chosen, patterns, list_command)
    results = check_cases(selected, replace(check_options, backend=backend, every=every), on_progress=tell)
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
            capability=capability_of(gpu) if backend == "cpu" else None,
            every_module=options.every,
            untrusted=options.untrusted,
        )
        results = {result.case: result for result in run_suite(suite, setup, on_progress).results}
    return [results[case.name] for case in suite.cases if case.name in results]


def names_of_cases_to_check(
    targets: Sequence[str | Path] = (),
    *,
    variants: Sequence[str | Path] = (),
    problems: Sequence[str] = (),
    random_shapes: int = 3,
    huge: bool = False,
    seed: int = 20260,
    note: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Return the names of all cases that `check` with the same arguments would check."""
    catalog = Catalog(variants)
    chosen, _ = _cases_of(catalog, targets, random_shapes, seed, True, problems, note, huge, False, {})
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
    catalog: Catalog,
    targets: Sequence[str | Path],
    random_shapes: int,
    seed: int,
    every: bool,
    problems: Sequence[str],
    note: Callable[[str], None],
    huge: bool,
    memory: bool,
    sizes: Mapping[str, int],
) -> tuple[list[Case], list[MemoryPlans]]:
    """Return the cases that a check of the targets runs, and the plans of the files that run in memory mode."""

    def cases_of(target: str | Path) -> list[Case]:
        return cases_to_check(catalog, target, random_shapes, seed, every, problems, note, huge)

    chosen: list[Case] = []
    plans: list[MemoryPlans] = []
    for target in targets or catalog.operator_names():
        cases_of_bare_file, plan = read_bare_file(Path(target), catalog, cases_of, memory, sizes, note)
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
