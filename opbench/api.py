"""The Python interface; the command line is a thin layer over it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opbench import backends
from opbench.catalog.case import Case, select
from opbench.catalog.folders import Catalog
from opbench.catalog.variant import Variant
from opbench.errors import UsageError
from opbench.gpus.ceilings import committed
from opbench.results.files import Result, Run, read_run
from opbench.runs.options import RunOptions, default_out, earlier_run
from opbench.runs.runner import Progress, Tell, run_suite
from opbench.runs.suite import Suite, read_suite, suite_for_variants
from opbench.timing.processes import PROCESSES
from opbench.timing.sampling import TimingOptions

if TYPE_CHECKING:
    import pandas

    from opbench.catalog.operator import Operator


MODULES = 48
"""A variant that compiles more modules than this for its checks has its configs take turns at the problems."""
INTERPRETED = 12
"""The same for pairs of config and problem where instructions of newer GPUs are interpreted, lane by lane."""


def silent(progress: Progress) -> None:
    """Tell nothing."""


def run(
    target: str | Path,
    *,
    backend: str = "auto",
    cases: Iterable[str] = (),
    variants: Sequence[str | Path] = (),
    out: str | Path | None = None,
    resume: bool = False,
    seed: int = 20260,
    time_limit_s: float | None = None,
    mode: str | None = None,
    publish: bool = False,
    report: bool = True,
    gpu: str = "h200",
    command: Sequence[str] = (),
    tell: Tell = silent,
) -> Run:
    """Check and measure a suite, or one .cu or .py file of your own; returns the finished run.

    `target` is a suite's file or name; `cases` are printed names or globs; `variants` are further folders laid out
    as variants/; `out` is the run's folder; `mode` is one of `timing.MODES` in place of the suite's; with `publish`
    each case is measured in three processes. Raises UsageError and EnvironmentFault; a case that is wrong or fails is
    no exception but a result.
    """
    suite, roots, backend = expand(target, backend, cases, variants)
    timing = replace(suite.timing, mode=mode or suite.timing.mode)
    suite = replace(suite, time_limit_s=time_limit_s or suite.time_limit_s, timing=timing)
    folder = Path(out) if out else default_out(suite, backend)
    processes = PROCESSES if publish else 1
    options = RunOptions(backend, folder, resume, True, seed, roots, tuple(command), processes=processes, gpu=gpu)
    # Whatever is refused is refused before anything runs.
    earlier_run(suite, options)
    if report and backend == "cpu":
        committed(gpu)
    ceilings = None
    if backend == "cuda" and suite.name != "ceilings":
        from opbench.runs.probes import ceilings_for_run

        ceilings = ceilings_for_run(folder, tell)
    finished = run_suite(suite, options, tell, ceilings)
    if report:
        from opbench.report import write_report

        write_report(finished, folder, gpu)
    return finished


def expand(
    target: str | Path, backend: str = "auto", cases: Iterable[str] = (), variants: Sequence[str | Path] = ()
) -> tuple[Suite, tuple[Path, ...], str]:
    """A target's cases, the extra variant folders as absolute paths, and the backend by name."""
    roots = tuple(Path(v).resolve() for v in variants)
    catalog = Catalog(roots)
    backend = backends.resolve(backend)
    path = Path(target)
    if path.suffix in (".cu", ".py"):
        suite = suite_for_variants(own_variants(path, catalog), catalog, backend)
    else:
        suite = read_suite(path, catalog, backend)
    patterns = list(cases)
    chosen = tuple(select(suite.cases, patterns))
    met = {f"{case.variant.operator}{case.problem}" for case in chosen}
    left_out = {problem: why for problem, why in suite.left_out.items() if problem in met or not patterns}
    return replace(suite, cases=chosen, left_out=left_out), roots, backend


def own_variants(path: Path, catalog: Catalog) -> tuple[Variant, ...]:
    """A user's own file as its variants; its header names the operator unless its folder is one's."""
    if not path.exists():
        raise UsageError(
            f"{path}: no such file; a kernel of your own is a .cu file with an opbench header "
            "(see 'Write your own kernel' in README.md)"
        )
    folder = path.resolve().parent
    operator = folder.name if folder in [f.resolve() for fs in catalog.folders.values() for f in fs] else ""
    return catalog.own_variants(path.resolve(), operator)


def check(
    targets: Sequence[str | Path] = (),
    *,
    backend: str = "cpu",
    cases: Iterable[str] = (),
    variants: Sequence[str | Path] = (),
    random_shapes: int = 3,
    every: bool = False,
    exit_first: bool = False,
    seed: int = 20260,
    time_limit_s: float = Suite.time_limit_s,
    tell: Tell = silent,
    note: Callable[[str], None] = lambda words: None,
) -> list[Result]:
    """Verdicts only: every config of the targets on the operator's examples and on random shapes.

    A target is an operator, a variant ("matmul/tiled") or a file; none means everything. Where each pair of config and
    problem compiles a module of its own, configs take turns at the problems unless `every` pair is wanted or cases are
    named; `note` is told of it. With `exit_first` results end with the first case that is not right.
    """
    roots = tuple(Path(v).resolve() for v in variants)
    catalog = Catalog(roots)
    patterns = list(cases)
    chosen = [
        case
        for target in (targets or catalog.operator_names())
        for case in cases_to_check(catalog, target, random_shapes, seed, every or bool(patterns), note)
    ]
    suite = Suite("check", "examples and random shapes", tuple(select(chosen, patterns)), TimingOptions(), time_limit_s)
    backend = backends.resolve(backend)
    # Two processes on one GPU would share its memory and faults; a GPU's work waits for no core either.
    workers = os.cpu_count() or 1 if backend == "cpu" else 1
    with tempfile.TemporaryDirectory(prefix="opbench-check-") as folder:
        options = RunOptions(backend, Path(folder), measure=False, seed=seed, roots=roots, keep=False, workers=workers)
        options = replace(options, exit_first=exit_first)
        results = {result.case: result for result in run_suite(suite, options, tell).results}
        found = [results[case.name] for case in suite.cases if case.name in results]
        if len(found) < len(suite.cases):
            note(f"stopped at the first failure: {len(suite.cases) - len(found)} of {len(suite.cases)} cases not tried")
        return found


def cases_to_check(
    catalog: Catalog,
    target: str | Path,
    random_shapes: int,
    seed: int,
    every: bool = True,
    note: Callable[[str], None] = lambda words: None,
) -> list[Case]:
    """Every config of a target's variants on examples and random shapes that the variant says it supports.

    Unless `every` pair is wanted, configs of a variant that would compile more than `MODULES` modules, as its macros
    follow the problem, take turns at the problems: see `_take_turns`.
    """
    path = Path(target)
    if path.suffix in (".cu", ".py"):
        found = list(own_variants(path, catalog))
    elif "/" in str(target):
        found = [catalog.variant(*str(target).split("/", 1))]
    else:
        found = catalog.variants(str(target))
    cases = []
    for variant in found:
        operator = catalog.operator(variant.operator)
        examples = list(dict.fromkeys(operator.examples()))
        _require_reference(variant.operator, examples, seed)
        shapes = [p for p in dict.fromkeys(operator.random_problems(seed, random_shapes)) if p not in examples]
        pairs = [
            Case(variant, c, problem)
            for problem in (*examples, *shapes)
            for c in variant.configs
            if variant.unmet(problem, c) is None
        ]
        if not pairs:
            refused = (
                variant.unmet(examples[0], variant.configs[0]) if variant.configs else "no config is left by where"
            )
            said = f"{variant.id} fits none of its operator's examples and random shapes: it {refused}"
            if len(found) == 1:
                raise UsageError(f"{said}; more shapes: --random N, or a suite with problems of your own")
            note(said)
            continue
        turns, why = (1, "") if every else _turns(variant, pairs)
        chosen = _take_turns(pairs, shapes, turns) if turns > 1 else pairs
        if len(chosen) < len(pairs):
            note(
                f"{variant.id}: its configs take turns at the problems, {len(chosen)} of {len(pairs)} pairs, "
                f"as {why}; --all checks every one"
            )
        cases += chosen
    return cases


def _require_reference(name: str, examples: Sequence[Operator], seed: int) -> None:
    """Raise UsageError where an operator has no example or its reference fails on one, before cases run."""
    if not examples:
        raise UsageError(f"{name}: examples() gives none; small odd problems are needed (variants/relu/operator.py)")
    by_size = sorted(examples, key=lambda problem: problem.flops() + problem.bytes())
    # The smallest are all ones, of which NumPy makes any shape; the largest take long.
    middle = by_size[len(by_size) // 2]
    middle.reference_outputs(middle.make_inputs(seed))


def _turns(variant: Variant, pairs: Sequence[Case]) -> tuple[int, str]:
    """In how many turns a variant's configs share the problems, and why."""
    modules = len({case.request() for case in pairs}) if variant.define else 0
    if variant.compute_capability and len(pairs) > INTERPRETED:
        return -(-len(pairs) // INTERPRETED), "its instructions are interpreted on the CPU"
    return max(1, -(-modules // MODULES)), "each compiles a module of its own"


def _take_turns(pairs: Sequence[Case], shapes: Sequence[Operator], turns: int) -> list[Case]:
    """Each config on its share of the examples and on one random shape; no problem and no config is left out."""
    kept: list[Case] = []
    for number, config in enumerate(pairs[0].variant.configs):
        own = [case for case in pairs if case.config == config]
        examples = [case for case in own if case.problem not in shapes]
        random = [case for case in own if case.problem in shapes]
        kept += examples[number % turns :: turns] or examples[:1]
        kept += random[number % len(random) :][:1] if random else []
    chosen = {case.name for case in kept}
    met = {case.problem for case in kept}
    for case in pairs:  # what no config's turn fell on goes to the first one that fits
        if case.problem not in met:
            met.add(case.problem)
            chosen.add(case.name)
    return [case for case in pairs if case.name in chosen]


def load(folder: str | Path) -> pandas.DataFrame:
    """A run as a pandas frame, one row a case; see `opbench.results.rows.frame` for the columns."""
    from opbench.results.rows import frame

    return frame(read_run(Path(folder)))
