"""Advise on the cases of a run: name what limits each kernel, from its memory accesses, counted at a small problem."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from opbench.backend.counts import Traffic
from opbench.checking.checking import trace_case
from opbench.errors import OpbenchError, UsageError, unknown_name
from opbench.gpu.compile.resources import Resources, resources_of
from opbench.gpu.limits.ceilings import Peaks, committed_ceilings
from opbench.gpu.limits.products import product
from opbench.insight.advice import NEAR_FRACTION
from opbench.insight.subject import Subject
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.paths import next_command
from opbench.results.advice import (
    NEAR_BOUND,
    CaseAdvice,
    advise_counted,
    advise_measured,
    over_bound,
    shared_modes,
)
from opbench.results.files import read_run
from opbench.results.result import Result
from opbench.results.run_data import RunData
from opbench.running.explaining import sources_of
from opbench.running.shapes import FEW_WARPS, examples_of, reduced_problem
from opbench.running.targets import is_file, own_variants

PAGE_CASES = 12
"""Most cases of a page that are counted: each takes a second or two, to build and run a small problem."""
PAGE_TIME_S = 120.0
"""Most seconds that the advice of a page takes; a case that is not counted by then has none."""


def advise_run(
    folder: Path,
    names: Sequence[str],
    catalog: Catalog,
    gpu: str = "h200",
    read_case_run: Callable[[Path], RunData] = read_run,
) -> list[CaseAdvice]:
    """Return advice on the named variants, files and cases of a run.

    Without names, the user's files of the run are judged; in a run without any, the fastest variant of each problem
    that is no library. `read_case_run` returns the run in a folder.

    For a run on the CPU, return advice on all variants, with times modelled for `gpu`. Raises UsageError if the run
    has neither times nor counts, or has none for a name.
    """
    run = read_case_run(folder)
    is_counted = run.header.backend == "cpu"
    if is_counted and not run.traffic:
        measure_command = next_command("run", run.header.suite or "OPERATOR")
        raise UsageError(
            f"{folder}: this run of the cpu backend has neither counts nor times, so opbench has nothing to judge; run "
            f"the suite again, on a GPU if possible: {measure_command}",
            kind="no-times",
            subject=str(folder),
            value=0,
            allowed="a case with a time or with counts",
        )
    files = [Path(name) for name in names if is_file(name)]
    variants_of = {path: own_variants(path, catalog) for path in dict.fromkeys((*files, *_own_files(run)))}
    own = [variant for variants in variants_of.values() for variant in variants]
    named = {name for name in names if not is_file(name)} | {v.id for path in files for v in variants_of[path]}
    wanted_names = named or set(run.header.own)
    cases_to_count = list(_counted_results(run, wanted_names) if is_counted else _fastest_results(run, wanted_names))
    if not cases_to_count:
        timed = {r.operator: f"{r.operator}/{r.variant}" for r in run.results if r.status == "right" and not r.library}
        operators = {name.partition("/")[0] for name in wanted_names} & timed.keys()
        right_names = {f"{r.operator}/{r.variant}" for r in run.results if r.operator in operators and not r.library}
        listing = next_command("best", folder)
        raise UsageError(
            unknown_name(
                "right variant or case", ", ".join(sorted(wanted_names)), right_names or timed.values(), listing
            )
        )
    if is_counted:
        peaks = committed_ceilings(gpu)
        return [_advise_counted(result, run.traffic[result.case], peaks, catalog, own) for result in cases_to_count]
    device = product(run.header.environment.gpu)
    return [_advise(result, run, device.name if device else gpu, catalog, own) for result in cases_to_count]


def _is_wanted(result: Result, wanted_names: set[str]) -> bool:
    """Return whether a result's case or variant is in `wanted_names`; True for every result if that set is empty."""
    return not wanted_names or bool({result.case, f"{result.operator}/{result.variant}"} & wanted_names)


def _counted_results(run: RunData, wanted_names: set[str]) -> Iterator[Result]:
    """Yield the first counted case of each named variant (of all variants if none is named) for each problem."""
    first_of_variant: dict[tuple[str, str], Result] = {}
    for result in run.results:
        if result.status == "right" and result.case in run.traffic and _is_wanted(result, wanted_names):
            first_of_variant.setdefault((f"{result.operator}/{result.variant}", result.problem), result)
    yield from first_of_variant.values()


def _fastest_results(run: RunData, wanted_names: set[str]) -> Iterator[Result]:
    """Yield the fastest case of each named variant, or of all own variants together, for each problem."""
    fastest: dict[tuple[str, str, str], Result] = {}
    for result in run.results:
        if (
            result.status != "right"
            or result.measurement is None
            or result.library
            or not _is_wanted(result, wanted_names)
        ):
            continue
        key = result.operator, result.problem, result.variant if wanted_names else ""
        fastest_so_far = fastest.get(key)
        if fastest_so_far is None or result.measurement.median_s < fastest_so_far.measurement.median_s:  # type: ignore[union-attr]
            fastest[key] = result
    yield from fastest.values()


def _advise(result: Result, run: RunData, gpu: str, catalog: Catalog, own_variants: Sequence[Variant]) -> CaseAdvice:
    peaks = run.ceilings_of(result)
    distance = over_bound(result, peaks)
    assert result.measurement is not None
    time_s = result.measurement.median_s
    advised = CaseAdvice(result.case, result.operator, result.problem, time_s, time_s / distance if distance else 0.0)
    if distance is None:
        return replace(advised, reason="the run has no peaks, so no lower bound is known")
    if distance * NEAR_FRACTION < 1.0:
        return replace(advised, reason=NEAR_BOUND)
    variants = (*catalog.variants(result.operator), *own_variants)
    variant = _variant_of(result, variants)
    if variant is None:
        file = next((name for name in run.header.named_targets if Path(name).stem == result.variant), "FILE.cu")
        command = next_command("advise", run.folder, file)
        return replace(advised, reason=f"its file was not found, so nothing was counted; name the file: {command}")
    counted_case = small_case(variant, result, catalog)
    if counted_case is None:
        return replace(advised, reason="no example of the operator fits the case")
    device = product(gpu)
    try:
        traffic, _ = trace_case(counted_case, modelled_gpu=device.limits if device else None)
    except OpbenchError as error:
        return replace(advised, reason=str(error))
    _, compiled = next(resources_of([counted_case], gpu, blocks=True), (0, Resources()))
    if not result.resources:  # for example a node of a network: its record has no launches
        measured = Case(variant, result.config, catalog.operator(result.operator).from_axes(result.axes))
        result = replace(result, resources=next(resources_of([measured], gpu), (0, Resources()))[1].kernels)
    return advise_measured(
        advised,
        result,
        peaks,
        counted_case,
        traffic,
        compiled.kernels,
        Subject.of_case(counted_case, variants),
        sources_of(counted_case.variant.path, traffic),
        compiled.missing,
        run.counters.get(result.case, {}),
    )


def _advise_counted(
    result: Result, traffic: Traffic, peaks: Peaks, catalog: Catalog, own_variants: Sequence[Variant]
) -> CaseAdvice:
    """Advise on a case of a cpu run: its distance from the lower bound is modelled from its traffic."""
    variants = (*catalog.variants(result.operator), *own_variants)
    variant = _variant_of(result, variants)
    if variant is None:
        unknown_variant = f"{result.variant} is not known here"
        return CaseAdvice(result.case, result.operator, result.problem, 0.0, 0.0, reason=unknown_variant, modelled=True)
    case = Case(variant, result.config, catalog.operator(result.operator).from_axes(result.axes))
    sources = sources_of(variant.path, traffic)
    subject = Subject.of_case(case, variants)
    return advise_counted(case, traffic, result.resources, peaks, subject, sources, result.resources_missing)


def advise_page(
    run: RunData, gpu: str, roots: Sequence[Path], on_progress: Callable[[str], None] = lambda _: None
) -> dict[str, CaseAdvice]:
    """Return the advice for the page of a GPU run, by case: on the fastest variant of each problem that is no library.

    In a run of the user's files, each of the user's variants counts instead.

    At most `PAGE_CASES` cases are counted, those farthest from their lower bound; {} for a run without times. Each is
    counted in a process of its own with a time limit, so that no kernel can end a run that has been measured.
    """
    if run.header.backend == "cpu" or run.of_network:
        return {}
    distances = {
        result.case: (result, over_bound(result, run.ceilings_of(result)) or 0.0)
        for result in _fastest_results(run, set(run.header.own))
    }
    farthest = sorted(
        (pair for pair in distances.values() if pair[1] * NEAR_FRACTION >= 1.0), key=lambda pair: -pair[1]
    )
    advice_by_case = {}
    for case, (result, distance) in distances.items():
        if 0.0 < distance * NEAR_FRACTION < 1.0 and result.measurement is not None:
            time_s = result.measurement.median_s
            advice_by_case[case] = CaseAdvice(
                case, result.operator, result.problem, time_s, time_s / distance, reason=NEAR_BOUND
            )
    if not farthest:
        return advice_by_case
    counted = [result for result, _ in farthest[:PAGE_CASES]]
    on_progress(f"on {len(counted)} of {len(farthest)} problems far from their lower bound")
    pool = ProcessPoolExecutor(min(len(counted), os.cpu_count() or 1), get_context("spawn"))
    try:
        reduced_run = replace(run, results=[], traffic={})
        tasks = {result.case: pool.submit(_advise_alone, result, reduced_run, gpu, tuple(roots)) for result in counted}
        wait(tasks.values(), PAGE_TIME_S)
        for case, task in tasks.items():
            if task.done() and task.exception() is None:
                advice_by_case[case] = task.result()
    finally:
        # Until Python 3.14 a pool has no public way to end workers, and one may hang in a kernel.
        for process in list(pool._processes.values()):
            process.kill()
        pool.shutdown(cancel_futures=True)
    return advice_by_case


def _advise_alone(result: Result, run: RunData, gpu: str, roots: Sequence[Path]) -> CaseAdvice:
    """Advise on one case in a child process, so that a fault of the kernel ends only that process."""
    catalog = Catalog(roots)
    own = [variant for path in _own_files(run) for variant in own_variants(path, catalog)]
    device = product(run.header.environment.gpu)
    return _advise(result, run, device.name if device else gpu, catalog, own)


def _own_files(run: RunData) -> list[Path]:
    """Return the files that the user named as targets of a run and that are still there, each once."""
    paths = dict.fromkeys(Path(name) for name in run.header.named_targets if is_file(name))
    return [path for path in paths if path.is_file()]


def _variant_of(result: Result, variants: Sequence[Variant]) -> Variant | None:
    return next((v for v in variants if (v.operator, v.name) == (result.operator, result.variant)), None)


def small_case(variant: Variant, result: Result, catalog: Catalog) -> Case | None:
    """Return a case like the measured one that is counted quickly: smaller, or an example; None if none fits."""
    config = {name: value for name, value in result.config.items() if name in (variant.configs or [{}])[0]}
    operator = catalog.operator(variant.operator)
    smaller = reduced_problem(variant, config, operator.from_axes(result.axes))
    if smaller is not None:
        return Case(variant, config, smaller)
    fitting = [
        Case(variant, config, problem)
        for problem in examples_of(variant, operator)
        if variant.unmet_requirement(problem, config) is None
    ]

    def similarity(case: Case) -> tuple[int, int, int]:
        axes = case.problem.axes
        return shared_modes(result.axes, axes), _filled_axes(result.axes, axes), case.problem.bytes()

    return max(fitting, key=similarity, default=None)


def _filled_axes(measured: Mapping[str, int | str], counted: Mapping[str, int | str]) -> int:
    """Return the number of axes that are as large as measured, or that fill a few warps."""
    pairs = [(size, counted.get(name, 0)) for name, size in measured.items()]
    return sum(
        isinstance(size, int) and isinstance(other_size, int) and other_size >= min(size, FEW_WARPS)
        for size, other_size in pairs
    )
