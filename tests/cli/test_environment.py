"""Faults of the machine: exit 3 and how to mend them; interrupts: exit 130 and what was kept."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from opbench.results.files import FILE, read_run
from support.checks.command_line import command, heed_interrupts, own_folder, refused
from support.common import HANGS, Cli, until

# Environment: exit 3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("ceiling",), ("selftest",), ("selftest", "--only", "aa")], ids=" ".join)
def test_what_only_a_gpu_can_do_names_no_run_on_a_cpu(cli: Cli, args: tuple[str, ...]) -> None:
    done = cli(*args, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    refused(done, 3, "no CUDA device")
    assert "--backend cpu" not in done.stderr


def test_no_gpu_names_the_way_without_one(cli: Cli) -> None:
    done = cli("run", "quick", "--backend", "cuda", env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    refused(done, 3)
    assert re.search(r"--backend cpu|pip install", done.stderr)


@pytest.mark.parametrize("args", [("run", "quick", "--backend", "cpu"), ("check", "relu/scalar")], ids=" ".join)
def test_no_compiler_names_how_to_get_one(cli: Cli, tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "ziglang.py").touch()  # a module of that name that holds no compiler
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    environment.pop("OPBENCH_CXX", None)
    done = cli(*args, env=environment)
    refused(done, 3, "no C++ compiler", "pip install ", "[compiler]'", "OPBENCH_CXX")
    broken = cli(*args, env={**environment, "OPBENCH_CXX": "/nowhere/g++"})
    refused(broken, 3, "OPBENCH_CXX='/nowhere/g++' is no working g++")


def test_a_folder_that_cannot_be_written_is_named(cli: Cli, tiny_suite: Path) -> None:
    (tiny_suite.parent / "file").touch()
    refused(
        cli("run", tiny_suite, "--backend", "cpu", "--out", "file/out"), 3, "file/out", "cannot be written", "--out DIR"
    )


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(cli: Cli, tiny_suite: Path) -> None:
    folder = tiny_suite.parent / "locked"
    folder.mkdir(mode=0o500)
    refused(cli("run", tiny_suite, "--backend", "cpu", "--out", folder / "out"), 3, "locked/out", "Permission denied")


def test_a_full_disk_ends_in_3_and_what_was_written_can_be_completed(cli: Cli, tiny_suite: Path) -> None:
    cli("run", tiny_suite, "--backend", "cpu", "--out", "warm")  # from here on the compiler writes nothing
    size = (tiny_suite.parent / "warm" / FILE).stat().st_size
    names = [r.case for r in read_run(tiny_suite.parent / "warm").results]

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * 2 // 3, size * 2 // 3))

    done = cli("run", tiny_suite, "--backend", "cpu", "--out", "out", preexec_fn=small_files)
    refused(done, 3, f"out/{FILE}: this file cannot be written", "--resume")
    kept = [r.case for r in read_run(tiny_suite.parent / "out").results]
    assert 0 < len(kept) < len(names) and kept == names[: len(kept)]
    assert (tiny_suite.parent / "out" / FILE).read_bytes().endswith(b"\n")
    done = cli("run", tiny_suite, "--backend", "cpu", "--out", "out", "--resume")
    assert done.returncode == 0, done.stderr
    assert [r.case for r in read_run(tiny_suite.parent / "out").results] == names


@pytest.mark.parametrize(
    ("args", "file", "remedy"),
    [
        (("import", "inline", "model.py", "--out", "new/k.cu"), "new/k.cu", "choose another --out FILE.cu"),
        (("adopt", "own.cu", "--operator", "none", "--write"), "own.cu", "without --write"),
    ],
    ids=["import inline", "adopt"],
)
def test_a_source_file_on_a_full_disk_is_named(
    cli: Cli, here: Path, args: tuple[str, ...], file: str, remedy: str
) -> None:
    kernel = "__global__ void twice(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }\n"
    launch = "void run(float* x, int n) { twice<<<1, 64>>>(x, n); }\n"
    (here / "own.cu").write_text(kernel + launch)
    imports = "from torch.utils.cpp_extension import load_inline\n"
    (here / "model.py").write_text(f"{imports}load_inline('m', cpp_sources='', cuda_sources={kernel!r})\n")

    def full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = cli(*args, preexec_fn=full_disk)
    refused(done, 3, f"{file}: this file cannot be written: File too large; free some space or ", remedy)
    assert (here / "own.cu").read_text() == kernel + launch
    assert not list(here.rglob("*k.cu*"))
    done = cli(*args)
    assert done.returncode == 0, done.stderr


def test_a_report_on_a_full_disk_leaves_no_half_page(cli: Cli, tiny_suite: Path) -> None:
    cli("run", tiny_suite, "--backend", "cpu", "--out", "out")
    page = tiny_suite.parent / "out" / "report.html"
    whole = page.read_bytes()

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) // 2, len(whole) // 2))

    refused(
        cli("report", "out", preexec_fn=small_files), 3, "report.html: this file cannot be written", "opbench report"
    )
    assert page.read_bytes() == whole
    assert sorted(p.name for p in page.parent.iterdir()) == ["report.html", FILE, "worker-nvrtc.log", "worker.log"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_stdout_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("list"), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 3
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


# Interrupts ---------------------------------------------------------------------------------------------------------


def test_an_interrupt_keeps_what_was_measured_and_says_where(tmp_path: Path) -> None:
    own_folder(tmp_path / "mine", zz_hangs=HANGS)
    suite = tmp_path / "s.toml"
    suite.write_text(
        '[[run]]\noperator = "relu"\nvariants = ["scalar", "zz_hangs"]\nproblems = [{ n = 7 }]\nconfigs = "default"\n'
    )
    args = command("run", suite, "--variants", "mine", "--backend", "cpu")
    process = subprocess.Popen(
        args,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 (it starts no thread)
    )
    lines = tmp_path / "reports"
    until(lambda: any(p.read_text().count('"type":"result"') for p in lines.glob(f"*/{FILE}")))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr
    (path,) = lines.glob(f"*/{FILE}")
    assert (
        "opbench: interrupted; finished measurements are stored; complete with --resume --out "
        f"reports/{path.parent.name}" in stderr
    )
    assert [r.status for r in read_run(path.parent).results] == ["right"]


def test_an_interrupted_check_promises_nothing(tmp_path: Path, relu_file: Path) -> None:
    relu_file.write_text(HANGS)
    process = subprocess.Popen(
        command("check", relu_file),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509
    )
    assert process.stderr
    assert "build" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.splitlines()[-1]) == (130, "opbench: interrupted")
