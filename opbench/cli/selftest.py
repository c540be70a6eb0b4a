"""`opbench selftest`, and the hidden command that its reference timers measure."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench.cli.options import Number, json_option
from opbench.cli.run import show_and_exit
from opbench.errors import EnvironmentFault

if TYPE_CHECKING:
    from opbench.gpu.driver import CudaBackend
    from opbench.results.files import Run
    from opbench.results.result import Result
    from opbench.running.profile import PrintLine
    from opbench.selftest import Cell, Part, Selftest, SelftestDevice
    from opbench.timing.clock import Launch

DEFAULT_FOLDER = Path("reports") / "selftest"


@click.command("selftest")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    show_default=True,
    metavar="DIR",
    help="Folder for selftest.html, selftest.png and selftest.json.",
)
@click.option(
    "--only",
    default="",
    metavar="PARTS",
    help="Parts to run, separated by commas: floor (an empty kernel), stamps (clock stamps), flush (a cold L2), aa "
    "(identical kernels), slowdown (known slow-downs), clocks (other timers), wall (the time to measure), cheats "
    "[default: all].",
)
@click.option(
    "--budget",
    "budget_s",
    type=Number(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the parts that measure. More time gives more pairs and narrower intervals (at least 40 pairs).",
)
@click.option(
    "--results",
    "run_folder",
    type=click.Path(path_type=Path, exists=True),
    metavar="DIR",
    help="The folder of an earlier run on this GPU, such as one of suites/full.toml. The self-test compares the wall "
    "time of that run with an estimate for cuda.bench, which starts one process per case.",
)
@json_option
def selftest_command(out: Path, only: str, budget_s: float, run_folder: Path | None, as_json: bool) -> None:
    """Test the accuracy of opbench on this GPU: false differences, missed slow-downs, other timers, cheats.

    \b
    Exit codes: 0 all tests pass · 1 a test fails · 2 usage · 3 no GPU.
    """
    from opbench import selftest
    from opbench.gpu import driver as cuda
    from opbench.report.selftest import part_lines, write_selftest, write_selftest_results
    from opbench.results.files import read_run

    names = selftest.chosen_parts(only)
    run = read_run(run_folder) if run_folder else None
    if reason := cuda.why_missing():
        raise EnvironmentFault(
            f"{reason}, but the self-test needs a GPU; see what is missing with: opbench doctor", kind="needs-gpu"
        )
    device: SelftestDevice = cuda.CudaBackend()
    outcome = _empty_selftest(device, budget_s)

    def store_part(selftest: Selftest, part: Part) -> None:
        write_selftest_results(selftest, out)
        for line in part_lines(part):
            click.echo(line, err=as_json)

    selftest.run_parts(_parts(device, lambda line: click.echo(line, err=True), run), names, outcome, store_part)
    for path in write_selftest(outcome, out):
        click.echo(f"wrote {path}", err=True)
    text = json.dumps(outcome.to_json(), indent=1) if as_json else outcome.summary()
    show_and_exit(outcome.exit_code, lambda: click.echo(text))


def _empty_selftest(device: SelftestDevice, budget_s: float) -> Selftest:
    """Return a self-test without parts, for this device and this date."""
    from datetime import UTC, datetime

    from opbench._version import __version__
    from opbench.selftest import Selftest

    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Selftest(device.environment(), budget_s, __version__, date)


def _parts(device: SelftestDevice, print_line: PrintLine, run: Run | None = None) -> dict[str, Callable[[float], Part]]:
    """Return a function for each part, with the reference timers and cheats that need a GPU."""
    from opbench import selftest
    from opbench.selftest.children import times_by_ncu, times_in_child
    from opbench.selftest.race import compare_engines_in_child, time_in_own_processes

    timers = [
        selftest.ReferenceTimer("cuda.bench", "span", 0.25e-6, functools.partial(times_in_child, "bench")),
        selftest.ReferenceTimer("CUPTI", "kernel", 0.3e-6, functools.partial(times_in_child, "cupti")),
        selftest.ReferenceTimer("ncu", "kernel", None, functools.partial(times_by_ncu)),
    ]
    files = time_cheats()
    return {
        "floor": lambda seconds: selftest.check_floor(device, seconds),
        "stamps": lambda seconds: selftest.check_stamps(device, seconds),
        "flush": lambda seconds: selftest.check_flush(device, seconds),
        "aa": lambda seconds: selftest.measure_identical_pairs(device, seconds),
        "slowdown": lambda seconds: selftest.measure_slow_downs(device, seconds),
        "clocks": lambda seconds: selftest.clocks(device, seconds, timers),
        "wall": lambda seconds: selftest.wall_time(compare_engines_in_child, time_in_own_processes, run),
        "cheats": lambda seconds: selftest.cheats(files, functools.partial(judge_cheat, print_line=print_line)),
    }


def time_cheats() -> list[Path]:
    """Return the shipped kernels that try to fool a timer, and their honest counterparts; in a clone, those of its
    tests.
    """
    from opbench.paths import shipped_folder

    folders = (shipped_folder("cheats"), shipped_folder("tests") / "cheats" / "time")
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".cu"))


def judge_cheat(path: Path, problems: Sequence[str], print_line: PrintLine) -> Sequence[Result]:
    """Return the results of running one cheat as a user's file."""
    from opbench import api

    print_line(f"cheat: {path.stem}")
    with tempfile.TemporaryDirectory(prefix="opbench-cheat-") as folder:
        run = api.run(
            path, backend="cuda", cases=[f"*/{path.stem}*"], problems=problems, out=Path(folder), report=False
        )
    return run.results


@click.command("selftest-target", hidden=True)
@click.argument("timer", type=click.Choice(["cupti", "bench", "ncu"]))
@click.option("--cell", "texts", multiple=True, required=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False))
def selftest_target_command(timer: str, texts: tuple[str, ...], out: Path | None) -> None:
    """Launch the self-test's kernels for a reference timer; `opbench selftest` runs this command in its own process."""
    from opbench.gpu import driver as cuda
    from opbench.selftest import Cell, reference_timers, untouched

    backend = cuda.CudaBackend()
    clock = backend.clock()
    cells = [Cell.from_text(text) for text in texts]
    launches = {cell.name: cell.launch(untouched(backend)) for cell in cells}
    if timer == "ncu":
        _launch_in_range(backend, cells, launches)
        return
    if timer == "cupti":
        times = reference_timers.cupti_times(clock, launches)
    else:
        # The kernels that nvbench calls must already be loaded.
        for launch in launches.values():
            clock.sample(launch, hold_stream=False)
        times = reference_timers.bench_times(backend.stream_handle, launches)
    if out is not None:
        out.write_text(json.dumps(times))


def _launch_in_range(backend: CudaBackend, cells: Sequence[Cell], launches: Mapping[str, Launch]) -> None:
    """Launch each kernel `REPEATS` times within the range that ncu watches."""
    from opbench.nvtx import case_range
    from opbench.selftest.children import RANGE, REPEATS

    backend.synchronize()
    with case_range(RANGE, "selftest"):
        for cell in cells:
            for _ in range(REPEATS):
                launches[cell.name]()
        backend.synchronize()
