"""The command lines, word for word: a filter in the wrong order profiles nothing and says so only in passing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from opbench.insight.nsight import commands
from opbench.insight.nsight.commands import ProfileTarget, target_argv
from opbench.insight.nsight.metrics import metric_names

CASE = "matmul/tiled[TILE=16](m=64,n=64,k=64)"
SAFE = "matmul.tiled.TILE-16.m-64.n-64.k-64"
TARGET = ProfileTarget(CASE, target_argv(CASE), chip="GH100")
RUN = Path("reports/run")


def test_the_program_is_this_opbench_with_one_case() -> None:
    assert target_argv(CASE, ["--variants", "mine"]) == (
        sys.executable, "-P", "-m", "opbench", "profile-target", "--case", CASE, "--variants", "mine",
    )  # fmt: skip


def test_ncu_collects_one_range() -> None:
    argv = commands.ncu_profile_command("ncu", TARGET, RUN)
    metrics = ",".join(metric_names("GH100"))
    golden = (
        f"ncu --nvtx --nvtx-include opbench@{SAFE}/ --target-processes all --replay-mode kernel --cache-control all "
        f"--clock-control none --metrics {metrics} -f -o reports/run/profile/{SAFE} {shlex.join(TARGET.argv)}"
    )
    assert shlex.join(argv) == golden


def test_a_set_comes_on_top_of_the_metrics() -> None:
    argv = commands.ncu_profile_command("ncu", TARGET, RUN, "full")
    assert argv[argv.index("--set") + 1] == "full" and "--metrics" in argv


def test_samples_of_warps_come_on_top_of_the_metrics() -> None:
    argv = commands.ncu_profile_command("ncu", TARGET, RUN, source=True)
    text = shlex.join(argv)
    assert "--section SourceCounters --section WarpStateStats --section SpeedOfLight --import-source yes" in text
    assert "--metrics" in argv and "--section" not in commands.ncu_profile_command("ncu", TARGET, RUN)
    report = commands.report_path(TARGET, RUN, "ncu")
    assert shlex.join(commands.ncu_source_command("ncu", report, "cuda,sass")) == (
        f"ncu --import reports/run/profile/{SAFE}.ncu-rep --csv --page source --print-source cuda,sass"
    )


def test_ncu_prints_base_units() -> None:
    report = commands.report_path(TARGET, RUN, "ncu")
    assert shlex.join(commands.ncu_read_command("ncu", report)) == (
        f"ncu --import reports/run/profile/{SAFE}.ncu-rep --csv --page raw --print-units base --print-fp"
    )


def test_nsys_captures_the_same_range_in_its_own_order() -> None:
    assert shlex.join(commands.nsys_profile_command("nsys", TARGET, RUN)) == (
        f"nsys profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=nvtx --nvtx-capture={SAFE}@opbench "
        "--capture-range-end=stop -e NSYS_NVTX_PROFILER_REGISTER_ONLY=0 -f true "
        f"-o reports/run/profile/{SAFE} {shlex.join(TARGET.argv)}"
    )
    assert shlex.join(commands.nsys_read_command("nsys", commands.report_path(TARGET, RUN, "nsys"))) == (
        "nsys stats -f csv -o - -r cuda_gpu_kern_sum -r nvtx_gpu_proj_sum --force-export=true "
        f"reports/run/profile/{SAFE}.nsys-rep"
    )


def test_a_report_keeps_its_name_when_axes_look_like_a_suffix() -> None:
    """`with_suffix` on the report must cut the tool's suffix only."""
    assert commands.ncu_profile_command("ncu", TARGET, RUN)[-len(TARGET.argv) - 1] == f"reports/run/profile/{SAFE}"
