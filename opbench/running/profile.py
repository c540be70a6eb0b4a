"""Run one case under a profiler and add the hardware counters to the run's results."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opbench.errors import EnvironmentFault, OpbenchError
from opbench.gpu.compile.sass import Instruction
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.gpu.limits.products import product_key
from opbench.insight.instructions import ExecutedInstructions
from opbench.insight.levels import Bound, Levels, case_bounds, counted_bounds
from opbench.insight.nsight import commands, parse, tools
from opbench.insight.nsight.commands import ProfileTarget, Tool
from opbench.insight.nsight.metrics import TIME, TRAFFIC, KernelCounters, chip_of, derive, metric_names, total
from opbench.insight.nsight.operands import read_operands
from opbench.insight.nsight.source_page import SampledKernel, read_sampled, with_lines, with_texts
from opbench.insight.source_profile import SourceProfile, source_profile
from opbench.insight.subject import Subject
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.nvtx import SWITCH_VARIABLE
from opbench.paths import next_command
from opbench.records import JSON
from opbench.results.files import RunWriter, make_folder
from opbench.running.targets import is_file

PrintLine = Callable[[str], None]
MACHINE_PREFIXES = ("device__", "nvlink__", "numa__", "c2clink__")
"""Prefixes of machine attributes that Nsight Compute repeats for every kernel; the run's environment has them."""
LINE_KINDS: dict[Tool, str] = {"ncu": "counters", "nsys": "timeline"}
"""The type of each tool's line in the results: a timeline must not replace a case's counters."""

NO_RANGE_REMEDY = (
    "install the package nvtx for this Python (pip install nvtx), then check the machine with: opbench doctor"
)


@dataclass(frozen=True)
class ProfileOptions:
    """The options of a profiler run."""

    tool: Tool = "ncu"
    metric_set: str = ""
    """An additional metric set of Nsight Compute, such as "full", for its user interface."""
    time_limit_s: float = 600.0
    source: bool = False
    """Whether Nsight Compute also samples warps, for `read_source`."""


def target_of(case: Case, name: str, roots: Sequence[Path]) -> ProfileTarget:
    """Return the command that the profiler runs for a case.

    `name` is the case, variant or file as the user wrote it.
    """
    own_file = is_file(name)
    extra = [argument for root in roots for argument in ("--variants", str(root.resolve()))]
    extra += ["--file", str(case.variant.path)] if own_file else []
    return ProfileTarget(
        case.name,
        commands.target_argv(case.name, extra),
        precision="f64" if case.problem.storage == "f64" else case.variant.precision,
        check=next_command("check", name if own_file else case.variant.id, variants=roots, problem=case.problem),
        chip=tools.current_chip(),
        experiment=next_command("explain", name if own_file else case.name, variants=roots, experiment=True),
    )


def profile_case(
    target: ProfileTarget, folder: Path, options: ProfileOptions, writer: RunWriter | None, print_line: PrintLine
) -> dict[str, Any]:
    """Profile one case; store the tool's report in `folder`/profile, append a line to the results and return it.

    Raises EnvironmentFault with the remedy if the tool fails, and the program's own error if the program fails.
    """
    tools.require_no_profiler()
    binary = tools.find_tool(options.tool)
    report = commands.report_path(target, folder, options.tool)
    make_folder(report.parent)
    # An old report must not be taken for the new one.
    report.unlink(missing_ok=True)
    if options.tool == "ncu":
        collect_command = commands.ncu_profile_command(binary, target, folder, options.metric_set, options.source)
        read_command = commands.ncu_read_command(binary, report)
    else:
        collect_command = commands.nsys_profile_command(binary, target, folder)
        read_command = commands.nsys_read_command(binary, report)
    output = run_tool(collect_command, options, print_line)
    if fault := _fault(options.tool, target, output.returncode, output.lines):
        raise fault
    if not report.exists():
        raise EnvironmentFault(
            f"{target.case}: {options.tool} wrote no report, because {options.tool} did not see the NVTX range of "
            f"the case; {NO_RANGE_REMEDY}. "
            f"To see the messages of {options.tool}: {shlex.join(collect_command)}",
            kind="no-report",
            subject=target.case,
        )
    table = _read_report(read_command, target, options, print_line)
    line = {
        "case": target.case,
        "tool": options.tool,
        "command": shlex.join(collect_command),
        "report": str(report.relative_to(folder)),
        **_counters_of_report(options.tool, target, table),
    }
    if writer is not None:
        writer.write(LINE_KINDS[options.tool], line)
    return line


def read_source(
    case: Case, target: ProfileTarget, folder: Path, options: ProfileOptions, print_line: PrintLine, catalog: Catalog
) -> SourceProfile:
    """Read the samples of a report that `profile_case` wrote with `options.source`, and assign them to source lines.

    The sums are compared with the totals of the report; they are in `mismatches` where they differ. Raises
    EnvironmentFault if the report has no samples.
    """
    binary, report = tools.find_tool("ncu"), commands.report_path(target, folder, "ncu")
    pages = [commands.ncu_source_command(binary, report, view) for view in ("sass", "cuda,sass")]
    instructions, lines, totals = (
        _read_report(page, target, options, print_line) for page in (*pages, commands.ncu_read_command(binary, report))
    )
    kernels = [with_texts(kernel, text_of(case)) for kernel in with_lines(read_sampled(instructions), lines)]
    subject = Subject.of_case(case, catalog.variants(case.variant.operator))
    collect = commands.ncu_profile_command(binary, target, folder, options.metric_set, source=True)
    launches = parse.read_ncu(totals)
    profile = source_profile(case.name, case.variant.title, kernels, launches, subject.remedies, shlex.join(collect))
    gpu = launches[0].device if launches else ""
    return replace(
        profile,
        gpu=gpu,
        time_s=total(launches, TIME),
        bounds=tuple(profiled_bounds(case, gpu, derive(launches), executed_instructions(kernels))),
    )


def executed_instructions(kernels: Iterable[SampledKernel]) -> ExecutedInstructions:
    """Return the executed warp instructions of a profile by class, and the FLOPs of tensor-core instructions."""
    classes: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    for sampled in (instruction for kernel in kernels for instruction in kernel.instructions):
        operands = read_operands(sampled.text)
        instruction = Instruction(operands.predicate, operands.opcode, operands.text, sampled.line)
        classes[instruction.kind] += sampled.executed
        precision, flops_each = instruction.product_flops
        flops[precision] += flops_each * sampled.executed
    flops_by_precision = {name: float(count) for name, count in flops.items() if name}
    return ExecutedInstructions({name: float(count) for name, count in classes.items()}, flops_by_precision, "counted")


def profiled_bounds(case: Case, gpu: str, counters: Mapping[str, Any], executed: ExecutedInstructions) -> list[Bound]:
    """Return lower bounds of the time from counted bytes and instructions, without the cost of a launch."""
    key = product_key(gpu)
    if not key:
        return []
    ceilings = committed_ceilings(key)
    limits = counted_bounds(counters, key, ceilings, executed)
    counted = {bound.limit for bound in limits}
    problem = case_bounds(case, Levels(0, 0, 0, 0), ceilings)
    limits += [bound for bound in problem if bound.limit in ("compute", "compulsory") and bound.limit not in counted]
    return sorted(limits, key=lambda bound: -bound.time_s)


def text_of(case: Case) -> Callable[[str], str | None]:
    """Return a function that returns a file's text for a path in a report, from the disk or from the variant."""
    own_sources = {source.path.name: source.text for source in case.variant.sources}

    def read(path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return own_sources.get(Path(path).name)

    return read


def _read_report(argv: Sequence[str], target: ProfileTarget, options: ProfileOptions, print_line: PrintLine) -> str:
    """Return the text that a tool prints for a report; raise the tool's error."""
    printed = run_tool(argv, options, lambda line: None, announce=print_line)
    if fault := _fault(options.tool, target, printed.returncode, printed.messages):
        raise fault
    return "\n".join(printed.lines)


def _fault(tool: Tool, target: ProfileTarget, returncode: int, lines: Sequence[str]) -> OpbenchError | None:
    return tools.fault_of(tool, target.case, returncode, lines, target.check, target.experiment)


def _counters_of_report(tool: Tool, target: ProfileTarget, text: str) -> dict[str, JSON]:
    if tool == "nsys":
        timeline = parse.read_nsys(text)
        if not timeline.kernels:
            raise EnvironmentFault(
                f"{target.case}: nsys recorded no kernel within the NVTX range of the case; {NO_RANGE_REMEDY}",
                kind="no-kernel",
                subject=target.case,
            )
        return {
            "source": "traced",
            "time_s": sum(k.total_s for k in timeline.kernels),
            "kernels": [k.to_json() for k in timeline.kernels],
            "ranges": timeline.ranges,
        }
    kernels = parse.read_ncu(text)
    if not kernels:
        raise EnvironmentFault(
            f"{target.case}: the report of ncu contains no kernel; {NO_RANGE_REMEDY}",
            kind="no-kernel",
            subject=target.case,
        )
    capability = kernels[0].compute_capability
    metrics = metric_names(target.chip, target.precision)
    return {
        "source": "counted",
        "cache": "cold",
        "clock_control": "none",
        "compute_capability": capability,
        "chip": chip_of(capability),
        **derive(kernels, target.precision),
        "missing": [name for name in metrics if any(k.get(name) is None for k in kernels)],
        "kernels": [_kernel_line(k, target.precision, metrics) for k in kernels],
    }


def _kernel_line(kernel: KernelCounters, precision: str, metrics: Sequence[str]) -> dict[str, JSON]:
    """Format one launch: its main numbers, and every raw metric that was requested and has a value."""
    figures = derive([kernel], precision)
    main_values = {
        field: figures[field] for field in ("time_s", *TRAFFIC, "flops", "achieved_occupancy", "sm_clock_hz")
    }
    launch = {"kernel": kernel.name, "grid": kernel.grid, "block": kernel.block}
    raw_metrics = {k: v for k, v in kernel.values.items() if v is not None and not k.startswith(MACHINE_PREFIXES)}
    return {**launch, **main_values, "metrics": {**{name: kernel.get(name) for name in metrics}, **raw_metrics}}


@dataclass(frozen=True)
class ToolOutput:
    """The lines that a tool printed, and its exit code."""

    returncode: int
    lines: list[str]

    @property
    def messages(self) -> list[str]:
        """Return only the lines that the tool itself wrote, because kernel names in a table could look like errors."""
        return [line for line in self.lines if line.startswith(("==", "ERROR", "error"))]


def run_tool(
    argv: Sequence[str], options: ProfileOptions, print_line: PrintLine, announce: PrintLine | None = None
) -> ToolOutput:
    """Run a tool; pass its command and then each line to `print_line` as it arrives.

    Raises EnvironmentFault if the tool cannot be started or exceeds the time limit; its process group is then
    killed.
    """
    (announce or print_line)(f"$ {shlex.join(argv)}")
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        reason = error.strerror or error
        raise EnvironmentFault(
            f"{argv[0]}: this program cannot be started: {reason}; check the installation with: opbench doctor",
            kind="cannot-start",
            subject=Path(argv[0]),
        ) from None
    expired = threading.Event()

    def end() -> None:
        expired.set()
        _end_group(process)

    timer = threading.Timer(options.time_limit_s, end)
    timer.start()
    lines: list[str] = []
    with process:
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip("\n"))
                print_line(lines[-1])
            process.wait()
        except BaseException:
            # Ctrl-C reaches only this process, because the tool has its own session.
            _end_group(process)
            raise
        finally:
            timer.cancel()
    if expired.is_set():
        raise EnvironmentFault(
            f"{Path(argv[0]).name} was stopped after {options.time_limit_s:g} s, because counters replay every kernel "
            f"about nine times; choose a smaller problem, or more time: --time-limit {4 * options.time_limit_s:g}",
            kind="time-limit",
            subject="--time-limit",
            value=options.time_limit_s,
        )
    return ToolOutput(process.returncode, lines)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill the tool and the program that it profiles."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with NVTX ranges enabled and the program's output unbuffered."""
    return {**environment, SWITCH_VARIABLE: "1", "PYTHONUNBUFFERED": "1"}
