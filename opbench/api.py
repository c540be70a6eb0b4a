"""The Python interface; the command line is a thin layer over it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opbench import backends
from opbench.case import CASE_NAME, Case, select
from opbench.catalog import Catalog
from opbench.ceiling import committed
from opbench.errors import UsageError
from opbench.processes import PROCESSES
from opbench.results import Result, Run, read_run
from opbench.runner import Progress, RunOptions, Tell, default_out, earlier_run, run_suite
from opbench.suite import Suite, read_suite, suite_for_variant
from opbench.timing import TimingOptions
from opbench.variant import Variant, print_config

if TYPE_CHECKING:
    import pandas


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
        from opbench.probes import ceilings_for_run

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
        suite = suite_for_variant(own_variant(path, catalog), catalog, backend)
    else:
        suite = read_suite(path, catalog, backend)
    return replace(suite, cases=tuple(select(suite.cases, cases))), roots, backend


def own_variant(path: Path, catalog: Catalog) -> Variant:
    """One file of a user's own as a variant; its header names the operator unless its folder is one's."""
    if not path.exists():
        raise UsageError(
            f"{path}: no such file; a kernel of your own is a .cu file with an opbench header "
            "(see 'Write your own kernel' in README.md)"
        )
    folder = path.resolve().parent
    operator = folder.name if folder in [f.resolve() for fs in catalog.folders.values() for f in fs] else ""
    return catalog.variant_file(path.resolve(), operator)


def check(
    targets: Sequence[str | Path] = (),
    *,
    backend: str = "cpu",
    cases: Iterable[str] = (),
    variants: Sequence[str | Path] = (),
    random_shapes: int = 3,
    seed: int = 20260,
    time_limit_s: float = Suite.time_limit_s,
    tell: Tell = silent,
) -> list[Result]:
    """Verdicts only: every config of the targets on the operator's examples and on random shapes.

    A target is an operator, a variant ("matmul/tiled") or a file; none means everything.
    """
    roots = tuple(Path(v).resolve() for v in variants)
    catalog = Catalog(roots)
    chosen = [
        case
        for target in (targets or catalog.operator_names())
        for case in cases_to_check(catalog, target, random_shapes, seed)
    ]
    suite = Suite("check", "examples and random shapes", tuple(select(chosen, cases)), TimingOptions(), time_limit_s)
    with tempfile.TemporaryDirectory(prefix="opbench-check-") as folder:
        options = RunOptions(backends.resolve(backend), Path(folder), measure=False, seed=seed, roots=roots, keep=False)
        return run_suite(suite, options, tell).results


def cases_to_check(catalog: Catalog, target: str | Path, random_shapes: int, seed: int) -> list[Case]:
    """Every config of a target's variants on examples and random shapes that the variant says it supports."""
    path = Path(target)
    if path.suffix in (".cu", ".py"):
        found = [own_variant(path, catalog)]
    elif "/" in str(target):
        found = [catalog.variant(*str(target).split("/", 1))]
    else:
        found = catalog.variants(str(target))
    cases = []
    for variant in found:
        operator = catalog.operator(variant.operator)
        problems = [*operator.examples(), *operator.random_problems(seed, random_shapes)]
        for problem in dict.fromkeys(problems):
            cases += [Case(variant, c, problem) for c in variant.configs if variant.unmet(problem, c) is None]
    return cases


def case_named(name: str, variants: Sequence[str | Path] = ()) -> Case:
    """The case that prints as `name`; raises UsageError with the nearest right operator, variant, axis or config."""
    match = CASE_NAME.match(name)
    if not match:
        raise UsageError(
            f"'{name}' is no case; one looks like matmul/shared_tile[TILE=16](m=64,n=64,k=64) (opbench list cases)"
        )
    catalog = Catalog(tuple(Path(v).resolve() for v in variants))
    variant = catalog.variant(match["operator"], match["variant"])
    problem = catalog.operator(match["operator"]).parse(match["problem"])
    for config in variant.configs:
        if not match["config"] or print_config(config) == f"[{match['config']}]":
            return Case(variant, config, problem)
    known = " ".join(print_config(c) for c in variant.configs)
    raise UsageError(f"{variant.id} has no config [{match['config']}]; it has {known}")


def load(folder: str | Path) -> pandas.DataFrame:
    """A run as a pandas frame, one row a case; see `opbench.frame.frame` for the columns."""
    from opbench.frame import frame

    return frame(read_run(Path(folder)))
