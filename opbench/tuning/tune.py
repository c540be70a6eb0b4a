"""One search from its options to its record: open or resume it, run it, and measure its best configs."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

from opbench._version import __version__
from opbench.backend.environment import Environment
from opbench.errors import EnvironmentFault, SettingDiffers, UsageError
from opbench.gpu.compile.fitting import GpuTarget
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant
from opbench.records import to_json
from opbench.results.files import Run, RunWriter
from opbench.results.tuning import (
    FILE,
    FORMAT,
    ConfigEnergy,
    Energies,
    Finals,
    SearchEnd,
    SearchHeader,
    Trial,
    Tuning,
    read_tuning,
)
from opbench.running.header import run_start
from opbench.running.options import RunSetup
from opbench.running.protocol import OpenBackend
from opbench.running.runner import OnProgress, Progress, run_suite
from opbench.running.suite import Suite
from opbench.running.worker import Worker
from opbench.timing.energy import NO_COUNTER
from opbench.timing.racing import RaceOptions, RaceSamples
from opbench.timing.sampling import TimingOptions
from opbench.tuning.bench import GpuBench
from opbench.tuning.candidates import Candidates, candidates
from opbench.tuning.compiling import Compilers
from opbench.tuning.options import TuneOptions
from opbench.tuning.search import RACE_SIZE, Search
from opbench.tuning.strategies import STRATEGIES

FINALISTS = 8
FINALS = "finals"
FINAL_SHARE, LONGEST_FINAL_S = 0.25, 30.0
"""Share of the time budget for measuring the best configs again (the finals), and the maximum time in seconds."""


def tune(
    variant: Variant, problem: Operator, options: TuneOptions, on_progress: OnProgress = lambda progress: None
) -> tuple[Tuning, Run | None]:
    """Search a variant's configs on this GPU; return the record, and the run of the finalists (None without finalists).

    Raises EnvironmentFault without a GPU, and UsageError for a folder with another search.
    """
    start_s = time.perf_counter()
    space = candidates(variant, problem)
    writer = RunWriter(options.out, FILE)
    worker = Worker(OpenBackend("cuda", options.variants), options.out / "worker.log")
    compilers = Compilers(options.variants, options.out, options.compile_limit_s)
    try:
        earlier = _earlier(writer, options, variant, problem)
        environment = worker.open()
        if options.energy and not environment.energy_counted:
            raise EnvironmentFault(NO_COUNTER, kind="no-energy-counter", subject="--energy")
        begun = _search_header(variant, problem, options, space, environment)
        if earlier is None:
            writer.write("tuning", {**to_json(begun), "environment": begun.environment.to_json()})
        else:
            _require_same(earlier.begun, begun, options.out)
        target = _target(environment)
        bench = GpuBench(
            variant, problem, space, worker, compilers, target, _racing(options), options.mode, options.energy
        )
        search = _search(space, options, bench, earlier, writer, on_progress)
        search.start_s = start_s - search.spent_s  # start-up counts towards the budget
        final_s = min(FINAL_SHARE * options.budget_s, LONGEST_FINAL_S)
        # The model's matrices are small: several threads of a BLAS only wait for each other, and for the compilers.
        with threadpool_limits(limits=1, user_api="blas"):
            reason = search.run(options.budget_s - final_s)
        compilers.close()
        finals = _finals(search, bench, options, earlier)
        if finals and (earlier is None or finals != earlier.finals):
            writer.write("finals", to_json(finals))
        energies = earlier.energies if earlier else None
        if finals and options.energy and (energies is None or energies.folder != finals.folder):
            writer.write("energies", to_json(_energies(search, bench, finals, final_s)))
        worker.end()
        run = _measured(finals, variant, problem, options, final_s, on_progress) if finals else None
        folder = finals.folder if finals else ""
        spent_s = bench.now() - search.start_s
        writer.write("stopped", to_json(SearchEnd(round(spent_s, 3), options.budget_s, reason, folder)))
    except KeyboardInterrupt:
        message = f"tried configs are stored; continue with --resume --out {shlex.quote(str(options.out))}"
        raise KeyboardInterrupt(message) from None
    finally:
        compilers.close()
        worker.end()
        writer.close()
    return read_tuning(options.out), run


def _earlier(writer: RunWriter, options: TuneOptions, variant: Variant, problem: Operator) -> Tuning | None:
    """Read the trials of an earlier process; None for a new search."""
    if writer.was_empty or not writer.path.stat().st_size:
        return None
    if not options.resume:
        raise UsageError(
            f"{writer.path}: this file already has a search; add --resume to continue the search, or choose another "
            "--out DIR",
            kind="run-exists",
            subject=writer.path,
        )
    return read_tuning(options.out)


def _search_header(
    variant: Variant, problem: Operator, options: TuneOptions, space: Candidates, environment: Environment
) -> SearchHeader:
    return SearchHeader(
        format=FORMAT,
        variant=variant.id,
        problem=str(problem),
        tune={name: tuple(values) for name, values in variant.tune.items()},
        where=variant.where,
        allowed=len(space),
        strategy=options.strategy,
        seed=options.seed,
        unit="J" if options.energy else "s",
        mode=options.mode,
        source_sha256=variant.source_sha256,
        environment=environment,
        **run_start(),
        command=shlex.join(["opbench", *options.command]) if options.command else "",
        opbench=__version__,
    )


def _require_same(earlier: SearchHeader, current: SearchHeader, out: Path) -> None:
    """Raise UsageError if the search in `out` differs in variant, problem, unit, mode, source or GPU.

    Its scores would not be comparable. Another strategy or a larger space is allowed.
    """
    settings = [(key, getattr(earlier, key), getattr(current, key)) for key in ("variant", "problem", "unit", "mode")]
    settings.append(("the source's checksum", earlier.source_sha256[:12], current.source_sha256[:12]))
    settings.append(("gpu", earlier.environment.gpu, current.environment.gpu))
    for name, earlier_value, current_value in settings:
        if earlier_value != current_value:
            raise SettingDiffers(out / FILE, name, earlier_value, current_value)


def _target(environment: Environment) -> GpuTarget:
    if environment.capability is None:
        raise EnvironmentFault(
            "the compute capability of the GPU is unknown; check the machine with: opbench doctor",
            kind="unknown-capability",
            subject=environment.gpu or "GPU",
        )
    return GpuTarget(environment.capability, environment.sm_count)


def _search(
    space: Candidates,
    options: TuneOptions,
    bench: GpuBench,
    earlier: Tuning | None,
    writer: RunWriter,
    on_progress: OnProgress,
) -> Search:
    """Return a search that writes each trial to disk before the next one, with the earlier trials loaded."""

    def keep(trial: Trial) -> None:
        writer.write("trial", to_json(trial, omit_defaults=True))
        on_progress(Progress("tune", f"{len(search.trials) + 1} tried", int(trial.at_s), int(options.budget_s)))

    strategy = STRATEGIES[options.strategy](space, options.seed)
    search = Search(space, strategy, bench, keep, earlier.spent_s if earlier else 0.0)
    search.max_started_ahead = max(search.max_started_ahead, os.cpu_count() or 1)
    search.load_trials(earlier.trials if earlier else ())
    search.first_configs = best_elsewhere(space, options.start_from)
    return search


def best_elsewhere(space: Candidates, folders: Sequence[Path]) -> list[int]:
    """Return the candidates that are among the best configs of earlier searches, the best first, each once.

    The searches may be of another problem, GPU or version of the variant. Raises UsageError if a folder has no search,
    or no search has a config of this space.
    """
    records = [read_tuning(folder) for folder in folders]
    best_of_record = [[trial.config for trial in record.ranked_trials[:RACE_SIZE]] for record in records]
    configs = [
        config for same_rank in itertools.zip_longest(*best_of_record) for config in same_rank if config is not None
    ]
    config_numbers = [config_number for config in configs if (config_number := space.number_of(config)) is not None]
    if folders and not config_numbers:
        names = ", ".join(map(str, folders))
        raise UsageError(
            f"--start-from {names}: none of the best configs in these results is a config of this search; remove "
            "--start-from, or name results of a search with the same tunables",
            kind="nothing-to-start-from",
            subject=names,
        )
    return list(dict.fromkeys(config_numbers))


def _finals(search: Search, bench: GpuBench, options: TuneOptions, earlier: Tuning | None) -> Finals | None:
    """Choose the configs to measure to the target, and their folder; None without any.

    Returns the earlier finals if no config was tried since.
    """
    if earlier and earlier.finals and len(search.trials) == len(earlier.trials):
        return earlier.finals
    config_numbers = search.finalists(FINALISTS)
    if not config_numbers:
        return None
    names = (FINALS if k == 1 else f"{FINALS}-{k}" for k in itertools.count(1))
    folder = next(name for name in names if not (options.out / name).exists())
    spent_s = round(bench.now() - search.start_s, 3)
    return Finals(folder, tuple(search.space[config_number] for config_number in config_numbers), spent_s)


ENERGY_RACE = RaceOptions(max_rounds=4, min_samples_for_interval=2, drop_factor=1.25, warm_up_rounds=0)
"""A sample of joules takes half a second, and its error is a few per cent."""
ENERGY_FINALS = RaceOptions(max_rounds=6, min_samples_for_interval=7, drop_factor=math.inf, warm_up_rounds=0)
"""In the finals no config drops out."""


def _racing(options: TuneOptions) -> RaceOptions:
    return ENERGY_RACE if options.energy else RaceOptions()


def _energies(search: Search, bench: GpuBench, finals: Finals, final_s: float) -> Energies:
    """Return the joules of the finals' configs, sampled in rounds."""
    config_numbers = [
        config_number for config in finals.configs if (config_number := search.space.number_of(config)) is not None
    ]
    outcomes = bench.race(config_numbers, None, bench.now() + 0.5 * final_s, ENERGY_FINALS)
    energies = []
    for config_number, samples_of_config in outcomes.items():
        if isinstance(samples_of_config, RaceSamples) and samples_of_config.samples:
            interval = samples_of_config.interval
            samples = tuple(samples_of_config.samples)
            energies.append(
                ConfigEnergy(
                    search.space[config_number], samples_of_config.median, interval.low, interval.high, samples
                )
            )
    return Energies(finals.folder, tuple(energies))


def _measured(
    finals: Finals, variant: Variant, problem: Operator, options: TuneOptions, final_s: float, on_progress: OnProgress
) -> Run:
    """Check the best configs in full and measure them to the target, interleaved, as a run in the folder of the finals.

    Results that a killed process has already measured are reused.
    """
    cases = tuple(Case(variant, config, problem) for config in finals.configs)
    timing = TimingOptions(mode=options.mode, budget_s=max(0.2, 0.5 * final_s / len(cases)))
    suite = Suite(finals.folder, f"the best of {variant.id}", cases, timing)
    folder = options.out / finals.folder
    return run_suite(
        suite, RunSetup("cuda", folder, resume=True, roots=options.variants, command=options.command), on_progress
    )
