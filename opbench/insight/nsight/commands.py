"""Build the command lines of Nsight Compute and Nsight Systems for one case.

Their filters name one range in opposite orders: Nsight Compute takes `domain@range/` (the slash says push/pop), Nsight
Systems `range@domain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opbench.child_process import python
from opbench.insight.nsight.metrics import metric_names
from opbench.nvtx import NVTX_DOMAIN, safe_name

Tool = Literal["ncu", "nsys"]
FOLDER = "profile"
"""Subfolder of a run's folder for the tools' reports."""


@dataclass(frozen=True)
class ProfileTarget:
    """One case to profile, and the program that runs it once inside its NVTX range."""

    case: str
    argv: tuple[str, ...]
    precision: str = "f32"
    check: str = ""
    """The command that checks the case without a tool."""
    chip: str = ""
    """The chip, such as "GH100"; if empty, tensor counters are skipped, because their names differ between chips."""
    experiment: str = ""
    """The command that finds the limit of the case by experiments, which need no permission for counters."""

    @property
    def safe_name(self) -> str:
        """Return the case's name in a form that is valid for a range and for a file."""
        return safe_name(self.case)


def target_argv(case: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command line of the program that the tools profile: this Python, this opbench, one case."""
    return tuple(python("-m", "opbench", "profile-target", "--case", case, *extra))


def report_path(target: ProfileTarget, folder: Path, tool: Tool) -> Path:
    """Return the path of the report that the tool writes, within the run's folder."""
    return folder / FOLDER / f"{target.safe_name}.{'ncu-rep' if tool == 'ncu' else 'nsys-rep'}"


def ncu_filter(target: ProfileTarget) -> str:
    """Return the filter for kernels within the case's push/pop range."""
    return f"{NVTX_DOMAIN}@{target.safe_name}/"


def nsys_capture(target: ProfileTarget) -> str:
    """Return the name of the case's range, at which recording starts."""
    return f"{target.safe_name}@{NVTX_DOMAIN}"


SAMPLING_SECTIONS = ("SourceCounters", "WarpStateStats", "SpeedOfLight")
"""Sections of Nsight Compute that sample warps and count instructions, with the rules that read them."""


def ncu_profile_command(
    ncu: str, target: ProfileTarget, folder: Path, metric_set: str = "", source: bool = False
) -> list[str]:
    """Return the command that collects the counters: caches flushed before each pass, clocks not locked.

    Options whose default changed between releases are stated, so that the command is the same in all of them. A metric
    set, and with `source` the samples of warps, are collected in addition to opbench's own metrics, which the report
    needs.
    """
    sections = [word for section in SAMPLING_SECTIONS for word in ("--section", section)] if source else []
    return [
        ncu, "--nvtx", "--nvtx-include", ncu_filter(target), "--target-processes", "all", "--replay-mode", "kernel",
        "--cache-control", "all", "--clock-control", "none", *(["--set", metric_set] if metric_set else []),
        *sections, *(["--import-source", "yes"] if source else []),
        "--metrics", ",".join(metric_names(target.chip, target.precision)),
        "-f", "-o", str(report_path(target, folder, "ncu").with_suffix("")), *target.argv,
    ]  # fmt: skip


def ncu_read_command(ncu: str, report: Path) -> list[str]:
    """Return the command that prints a report's metrics as CSV in base units."""
    return [ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base", "--print-fp"]


def ncu_source_command(ncu: str, report: Path, view: str) -> list[str]:
    """Return the command that prints a report's samples as CSV: `view` is "sass" or "cuda,sass"."""
    return [ncu, "--import", str(report), "--csv", "--page", "source", "--print-source", view]


def nsys_profile_command(nsys: str, target: ProfileTarget, folder: Path) -> list[str]:
    """Return the command that records a timeline of the case's range, without sampling.

    The environment variable allows the capture to match strings that are not registered with NVTX.
    """
    return [
        nsys, "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "--capture-range=nvtx",
        f"--nvtx-capture={nsys_capture(target)}", "--capture-range-end=stop",
        "-e", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        "-f", "true", "-o", str(report_path(target, folder, "nsys").with_suffix("")), *target.argv,
    ]  # fmt: skip


def nsys_read_command(nsys: str, report: Path) -> list[str]:
    """Return the command that prints a report's time per kernel and per range as CSV."""
    return [nsys, "stats", "-f", "csv", "-o", "-", "-r", "cuda_gpu_kern_sum", "-r", "nvtx_gpu_proj_sum",
            "--force-export=true", str(report)]  # fmt: skip
