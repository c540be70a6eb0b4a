"""The whole path on a machine without a GPU: stand-ins on PATH print what the tools would."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opbench import nvtx
from opbench.errors import EnvironmentFault, LaunchError
from opbench.insight.nsight.commands import ProfileTarget
from opbench.results.files import RunWriter, read_run
from opbench.running.profile import ProfileOptions, profile_case
from support.checks.errors import refuses
from support.common import until

Put = Callable[[str, str], None]
CASE = "matmul/split_k[SPLIT=2](m=64,n=64,k=64)"
SAFE = "matmul.split_k.SPLIT-2.m-64.n-64.k-64"
PROGRAM = "import os; print('launched, ranges', os.environ['OPBENCH_NVTX'])"
TARGET = ProfileTarget(CASE, (sys.executable, "-c", PROGRAM), chip="GH100")

FAKE_NCU = r"""#!{python}
import pathlib, subprocess, sys
argv = sys.argv[1:]
if "--import" in argv:
    metrics = pathlib.Path(argv[argv.index("--import") + 1]).read_text().split(",")
    print("==PROF== reading")
    head = ["ID", "Kernel Name", "Block Size", "Grid Size", "CC"]
    quote = lambda cells: ",".join('"%s"' % cell for cell in cells)
    print(quote(head + metrics))
    units = {"duration": "ns", "per_second": "hz", "pct": "%", "bytes": "byte"}
    print(quote([""] * len(head) + [next((u for key, u in units.items() if key in m), "") for m in metrics]))
    for number, name in enumerate(["split_k(const float *, float *)", "reduce ERROR(T1 *)"]):
        cells = [str(number), name, "(256, 1, 1)", "(4, 4, 1)", "9.0"]
        print(quote(cells + ["n/a" if "bank_conflicts" in m and number else "%d,000" % (number + 1) for m in metrics]))
else:
    program = argv[argv.index("-o") + 2:]
    print("==PROF== Connected to process 1", flush=True)
    code = subprocess.call(program)
    if code:
        print("==ERROR== The application returned an error code (%d)." % code)
        sys.exit(code)
    assert argv[argv.index("--nvtx-include") + 1] == "opbench@{safe}/"
    pathlib.Path(argv[argv.index("-o") + 1] + ".ncu-rep").write_text(argv[argv.index("--metrics") + 1])
    print("==PROF== Report: written")
"""

FAKE_NSYS = r"""#!{python}
import pathlib, sys
argv = sys.argv[1:]
if argv[0] == "stats":
    print("Processing [x] with [cuda_gpu_kern_sum.py]...")
    print("Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name")
    print('75.0,"3,000",1,3000.0,3000.0,3000,3000,0.0,split_k')
    print('25.0,"1,000",1,1000.0,1000.0,1000,1000,0.0,reduce')
    print()
    print("Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances")
    print("opbench:{safe},PushPop,4500,90000,1")
else:
    assert "--nvtx-capture={safe}@opbench" in argv
    pathlib.Path(argv[argv.index("-o") + 1] + ".nsys-rep").write_text("report")
"""


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Write a stand-in for a tool and put it first on PATH."""
    for variable in nvtx.TOOL_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(name: str, text: str) -> None:
        path = folder / name
        path.write_text(text.replace("{python}", sys.executable).replace("{safe}", SAFE))
        path.chmod(0o755)

    return write


def run(tmp_path: Path, target: ProfileTarget = TARGET, **options: object) -> tuple[dict[str, object], list[str]]:
    said: list[str] = []
    writer = RunWriter(tmp_path / "run")
    writer.write("run", {"format": 1})
    try:
        line = profile_case(target, tmp_path / "run", ProfileOptions(**options), writer, said.append)  # type: ignore[arg-type]
    finally:
        writer.close()
    return line, said


def test_ncu_from_command_to_results(tmp_path: Path, put: Put) -> None:
    put("ncu", FAKE_NCU)
    line, said = run(tmp_path)
    assert line["time_s"] == pytest.approx(3e-6)
    assert line["dram_bytes"] == 3000
    assert line["flops"] == 3 * (1 + 1 + 2 + 1 + 1 + 2 + 2 + 2 + 4) * 1000 + 3000
    assert line["achieved_occupancy"] == pytest.approx(10 * (1 * 1 + 2 * 2) / 3)
    assert line["bank_conflicts_load"] is None and line["shared_load_wavefronts"] == 3000
    assert (line["tool"], line["cache"], line["chip"], line["source"]) == ("ncu", "cold", "GH100", "counted")
    first, second = line["kernels"]  # type: ignore[misc]
    assert first["kernel"] == "split_k(const float *, float *)" and second["time_s"] == pytest.approx(2e-6)
    assert first["metrics"]["dram__bytes.sum"] == 1000
    assert line["missing"] == [f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st")]
    assert said[0].startswith("$ ") and f"'opbench@{SAFE}/'" not in said[0] and f"opbench@{SAFE}/" in said[0]
    assert "launched, ranges 1" in said and "==PROF== Report: written" in said
    assert any("--import" in text for text in said) and not any(text.startswith('"ID"') for text in said)


def test_the_line_is_read_back_as_the_cases_counters(tmp_path: Path, put: Put) -> None:
    put("ncu", FAKE_NCU)
    line, _ = run(tmp_path)
    stored = read_run(tmp_path / "run").counters[CASE]
    assert stored == json.loads(json.dumps(line))
    assert (tmp_path / "run" / str(stored["report"])).is_file()


def test_nsys_keeps_its_times_apart_from_counters(tmp_path: Path, put: Put) -> None:
    put("nsys", FAKE_NSYS)
    line, _ = run(tmp_path, tool="nsys")
    assert line["time_s"] == pytest.approx(4e-6)
    assert [k["kernel"] for k in line["kernels"]] == ["split_k", "reduce"]  # type: ignore[attr-defined]
    assert line["ranges"] == {f"opbench:{SAFE}": pytest.approx(4.5e-6)}
    assert read_run(tmp_path / "run").counters == {}
    last = (tmp_path / "run/results.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["type"] == "timeline"


def test_no_permission_writes_nothing(tmp_path: Path, put: Put, permission_output: str) -> None:
    put("ncu", f"#!/bin/sh\ncat <<'END'\n{permission_output}\nEND\nexit 1\n")
    experiment = f"opbench explain '{CASE}' --experiment"
    with refuses("no-permission", "ncu", error=EnvironmentFault) as raised:
        run(tmp_path, replace(TARGET, experiment=experiment), source=True)
    assert str(raised.value).endswith(experiment), "the next command"
    assert read_run(tmp_path / "run").counters == {}


def test_a_wrong_case_is_reported_as_such(tmp_path: Path, put: Put) -> None:
    put("ncu", FAKE_NCU)
    program = "import sys; print('wrong at out[3]: got 0, want 1'); sys.exit(1)"
    with refuses("program-failed", CASE, value=1, error=LaunchError) as raised:
        run(tmp_path, ProfileTarget(CASE, (sys.executable, "-c", program)))
    assert "wrong at out[3]: got 0, want 1" in str(raised.value), "what the program printed"


def test_a_report_of_an_earlier_try_does_not_pass_for_this_one(tmp_path: Path, put: Put) -> None:
    put("ncu", FAKE_NCU)
    run(tmp_path)
    put("ncu", "#!/bin/sh\nexit 0\n")
    with refuses("no-report", error=EnvironmentFault):
        run(tmp_path)


def test_an_empty_table_is_a_fault(tmp_path: Path, put: Put) -> None:
    put("nsys", FAKE_NSYS.replace("if argv[0]", "if argv[0] == 'stats': sys.exit()\nif argv[0]"))
    with refuses("no-kernel", error=EnvironmentFault):
        run(tmp_path, tool="nsys")


def test_the_time_limit_ends_the_tool_and_its_program(tmp_path: Path, put: Put) -> None:
    put("ncu", FAKE_NCU)
    started = tmp_path / "process-id"
    program = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    for limit_s in (0.5, 4.0, 32.0):  # on a loaded machine the program may not have begun at the end of the first
        began_s = time.monotonic()
        with refuses("time-limit", "--time-limit", value=limit_s, error=EnvironmentFault):
            run(tmp_path, ProfileTarget(CASE, (sys.executable, "-c", program)), time_limit_s=limit_s)
        assert time.monotonic() - began_s < 300
        if started.exists() and started.read_text():
            break

    def has_ended() -> bool:
        try:
            return not Path(f"/proc/{started.read_text()}/cmdline").read_bytes()  # empty until its parent takes notice
        except ProcessLookupError:
            return True
        except FileNotFoundError:
            return started.exists()

    until(has_ended)


def test_a_tool_that_cannot_be_started(tmp_path: Path, put: Put) -> None:
    put("ncu", "#!/no/such/interpreter\n")
    with refuses("cannot-start", "ncu", error=EnvironmentFault):
        run(tmp_path)


def test_nothing_runs_under_another_profiler(tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("ncu", FAKE_NCU)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/tool.so")
    with refuses("profiler-attached", "NVTX_INJECTION64_PATH", error=EnvironmentFault):
        run(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path, put: Put) -> None:
    put("ncu", FAKE_NCU)
    (tmp_path / "run").write_text("a file")
    with refuses("unwritable", "profile", error=EnvironmentFault):
        profile_case(TARGET, tmp_path / "run", ProfileOptions(), None, lambda line: None)
