"""What a terminal shows, and streams that are closed early."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import threading
from pathlib import Path

import pytest

from opbench import units
from opbench.cli.progress import plain_progress
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.paths import shipped_folder
from opbench.running.runner import Progress
from support.checks.command_line import command
from support.common import WRONG, Cli


def on_a_terminal(args: list[str], cwd: Path, columns: int = 80) -> tuple[int, str, str]:
    """Exit code, what a terminal of so many columns shows of stdout and, apart from it, of stderr."""
    ends = [pty.openpty() for _ in range(2)]
    for _, slave in ends:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(args, cwd=cwd, stdout=ends[0][1], stderr=ends[1][1], env=environment)
    for _, slave in ends:
        os.close(slave)
    texts: list[list[bytes]] = [[], []]

    def drain(index: int) -> None:
        while True:
            try:
                data = os.read(ends[index][0], 65536)
            except OSError:  # Linux says EIO when the last writer is gone
                return
            if not data:
                return
            texts[index].append(data)

    threads = [threading.Thread(target=drain, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    code = process.wait(timeout=120)
    for thread in threads:
        thread.join()
    for master, _ in ends:
        os.close(master)
    return code, b"".join(texts[0]).decode(), b"".join(texts[1]).decode()


def test_on_a_terminal_the_table_fits_80_columns(tmp_path: Path) -> None:
    wide = tmp_path / "wide.toml"
    wide.write_text(
        '[[run]]\noperator = "conv2d"\nvariants = ["implicit_gemm", "naive_grid3d"]\nconfigs = "default"\n'
        "problems = [{ n = 1, c = 5, h = 17, w = 19, k = 6, r = 3, s = 3, padding = 1 }]\n"
    )
    code, table, progress = on_a_terminal(command("run", wide, "--backend", "cpu", "--out", "out"), tmp_path)
    assert code == 0, progress
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", table)
    # A problem's name is never cut, as it is pasted back; so a heading may be longer.
    rows = [line for line in plain.splitlines() if not line.startswith("conv2d(")]
    assert max(len(line.rstrip()) for line in rows) <= 80
    assert "naive_grid3d" in plain and "right" in plain
    assert "\x1b[" in progress, "a bar is drawn on a terminal"
    assert "Traceback" not in progress


def test_verdicts_are_coloured_on_a_terminal_that_wants_it(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text(WRONG)
    args = command("check", "wrong.cu", "relu/scalar", "--random", "0", "--case", "*(n=31)")
    code, shown, _ = on_a_terminal(args, tmp_path)
    assert code == 1 and "\x1b[31m1 wrong\x1b[0m" in shown and "\x1b[32m" in shown
    _, shown, _ = on_a_terminal(["env", "NO_COLOR=1", *args], tmp_path)
    assert "1 wrong" in shown and "\x1b[3" not in shown


@pytest.mark.parametrize("args", [("explain", "relu/scalar(n=1000)"), ("doctor",), ("run", "--help")], ids=" ".join)
def test_a_terminal_without_the_signs_gets_plain_ones(cli: Cli, args: tuple[str, ...]) -> None:
    done = cli(*args, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    launch = units.time(committed_ceilings("h200").launch_floor_s).replace("µ", "u")
    assert done.stdout.isascii() and (launch in done.stdout or args[0] != "explain")


@pytest.mark.parametrize(
    "args", [("history", "h100/repeat-1", "h100/repeat-2"), ("report", "h200/activations")], ids=" ".join
)
def test_no_sign_of_a_table_is_lost_to_such_a_terminal(cli: Cli, tmp_path: Path, args: tuple[str, ...]) -> None:
    for name in args[1:]:
        shutil.copytree(shipped_folder("reports") / name, tmp_path / name)
    words = [args[0], *(str(tmp_path / name) for name in args[1:])]
    done = cli(*words, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stdout.isascii() and "?" not in done.stdout


def test_progress_says_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    class Clock:
        now_s = 0.0  # builds take what they take; then 20 s a case

    tell = plain_progress(lambda: Clock.now_s)
    for phase, done, now_s in [
        ("build", 0, 0),
        ("check", 0, 100),
        ("done", 1, 120),
        ("done", 2, 140),
        ("done", 4, 180),
    ]:
        Clock.now_s = float(now_s)
        tell(Progress(phase, "relu/x(n=1)", done, 4))
    assert capsys.readouterr().err.splitlines() == [
        "0/4 build relu/x(n=1)",
        "1/4 about 60 s left: done relu/x(n=1)",
        "2/4 about 40 s left: done relu/x(n=1)",
        "4/4 done relu/x(n=1)",
    ]


def with_closed_stdout(folder: Path, *args: str | Path) -> tuple[int, bytes]:
    """Exit code and stderr of a command that cannot print."""
    process = subprocess.Popen(command(*args), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    return process.wait(timeout=60), stderr


@pytest.mark.parametrize(
    "args", [("list", "variants"), ("list", "cases", "full"), ("--help",), ("doctor",)], ids=" ".join
)
def test_stdout_closed_early_is_no_error(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert with_closed_stdout(tmp_path, *args) == (0, b"")


def test_stdout_closed_early_does_not_hide_a_wrong_case(tmp_path: Path, relu_file: Path) -> None:
    relu_file.write_text(WRONG)
    for args in (("check", relu_file, "--random", "0"), ("run", relu_file, "--backend", "cpu", "--out", "o")):
        code, stderr = with_closed_stdout(tmp_path, *args)
        assert code == 1 and b"Broken" not in stderr and b"Traceback" not in stderr
