"""`opbench check --watch`, run as a user runs it: a process, a file that is saved, and what it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.checks.command_line import command, heed_interrupts, refused

KERNEL = """\
// /// opbench
// operator = "relu"
// title    = "for a watch"
// launch   = [{ kernel = "k", grid = ["cdiv(n, 128)"], block = [128] }]
// ///
#include "help.cuh"
extern "C" __global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = positive(x[i]);
}
"""
RIGHT = "static __device__ float positive(float x) { return fmaxf(x, 0.0f); }\n"
WRONG = RIGHT.replace("0.0f", "1.0f")
ENDLESS = KERNEL.replace("    if (i < n)", "    for (volatile int j = 0;;) j = 0;\n    if (i < n)")
WAIT_S = 120.0
ONE = ("--cpu-only", "--problem", "(n=5)")


class Watch:
    """A watch under way and all that it has printed."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command("check", *args, "--watch", *ONE),
                cwd=folder,
                stdout=log,
                stderr=log,
                preexec_fn=heed_interrupts,  # noqa: PLW1509 (it starts no thread)
            )
        self.seen = 0

    def until(self, *words: str) -> str:
        """What it printed since the last time, as soon as all of that matches, in this order."""
        pattern = re.compile(".*".join(words), re.DOTALL)
        end_s = time.monotonic() + WAIT_S
        while True:
            text = self.log.read_text()
            if found := pattern.search(text, self.seen):
                before, self.seen = self.seen, found.end()
                return text[before : found.end()]
            assert time.monotonic() < end_s, f"{words} not in {text[self.seen :]!r} after {text[: self.seen]!r}"
            assert self.process.poll() is None, text
            time.sleep(0.05)

    def children(self) -> list[int]:
        """Checks of this watch, and what they started."""
        found = {self.process.pid}
        parents = {int(p.name): _parent(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
        while more := {child for child, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found - {self.process.pid})


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watch]]:
    """Starts a watch in a folder with a kernel, its header and a kernel without."""
    (tmp_path / "one.cu").write_text(KERNEL)
    (tmp_path / "two.cu").write_text(KERNEL.replace('#include "help.cuh"\n', "").replace("positive(x[i])", "x[i]"))
    (tmp_path / "help.cuh").write_text(RIGHT)
    started: list[Watch] = []

    def start(*args: str) -> Watch:
        started.append(Watch(tmp_path, *args))
        return started[-1]

    yield start
    for each in started:
        each.process.send_signal(signal.SIGTERM)
        each.process.wait(WAIT_S)


def test_what_was_saved_and_what_includes_it_is_checked_anew(watch: Callable[..., Watch], tmp_path: Path) -> None:
    it = watch("one.cu", "two.cu")
    assert "\033[2J" not in it.until("checking one.cu, two.cu", "relu/one +1 right", "relu/two +1 wrong", "Ctrl-C ends")

    (tmp_path / "help.cuh").write_text(WRONG)
    assert "two" not in it.until("checking one.cu\n", "relu/one +1 wrong", "took").partition("checking")[2]

    (tmp_path / "two.cu").write_text("")  # an editor that writes in two steps, and a swap file that is nobody's
    (tmp_path / ".two.cu.swp").write_text("x")
    (tmp_path / "two.cu").write_text(KERNEL.replace("help.cuh", "more.cuh"))
    assert "Traceback" not in it.until("checking two.cu\n", "positive", "Ctrl-C ends")
    (tmp_path / "more.cuh").write_text(RIGHT)  # a header that was not there
    it.until("checking two.cu\n", "relu/two +1 right", "Ctrl-C ends")

    it.process.send_signal(signal.SIGINT)
    assert it.process.wait(WAIT_S) == 130
    assert "Traceback" not in it.log.read_text()


def test_a_file_may_be_replaced_removed_made_again_and_half_written(
    watch: Callable[..., Watch], tmp_path: Path
) -> None:
    it = watch("one.cu")
    it.until("relu/one +1 right", "Ctrl-C ends")
    file = tmp_path / "one.cu"

    (tmp_path / "4913").write_text(KERNEL.replace("positive(x[i])", "-1.0f"))  # as vim saves
    (tmp_path / "4913").replace(file)
    it.until("relu/one +1 wrong", "Ctrl-C ends")

    file.write_text(KERNEL.replace("x[i]);", "x[i]"))
    it.until("relu/one +1 failed", "one.cu:9", "Ctrl-C ends")
    file.write_text(KERNEL.replace("launch ", "lunch "))
    it.until("opbench: .*lunch", "Ctrl-C ends")

    file.unlink()
    it.until("one.cu: does not exist now; it is checked when it exists again")
    file.write_text(KERNEL)
    it.until("relu/one +1 right", "Ctrl-C ends")
    assert "Traceback" not in it.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_save_ends_the_check_and_an_interrupt_all(
    watch: Callable[..., Watch], tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "one.cu").write_text(ENDLESS)
    it = watch("one.cu")
    it.until("checking one.cu")
    first = _workers(it)

    (tmp_path / "one.cu").write_text(ENDLESS + "\n")
    it.until("one.cu: saved during the check; the check starts again", "checking one.cu")
    assert not [pid for pid in first if alive(pid)]

    second = _workers(it)
    began_s = time.monotonic()
    it.process.send_signal(number)
    assert it.process.wait(WAIT_S) == 130
    assert time.monotonic() - began_s < 50
    assert not [pid for pid in second if alive(pid)]
    assert "Traceback" not in it.log.read_text()


def _workers(it: Watch) -> list[int]:
    """The processes of a check when its worker is among them."""
    end_s = time.monotonic() + WAIT_S
    while len(found := it.children()) < 2:
        assert time.monotonic() < end_s and it.process.poll() is None, it.log.read_text()
        time.sleep(0.05)
    return found


def test_a_terminal_is_cleared_before_each_check(tmp_path: Path) -> None:
    (tmp_path / "one.cu").write_text(KERNEL)
    (tmp_path / "help.cuh").write_text(RIGHT)
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        command("check", "one.cu", "--watch", *ONE), cwd=tmp_path, stdout=theirs, stderr=theirs, stdin=theirs
    )
    os.close(theirs)
    text, end_s = b"", time.monotonic() + WAIT_S
    while b"Ctrl-C ends" not in text and time.monotonic() < end_s:
        text += os.read(ours, 4096)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 130
    assert text.startswith(b"\033[2J") and b"1 right" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("one.cu", "--json"), ("--watch and --json", "remove one of the two options")),
        (("one.cu", "--sarif", "x.sarif"), ("--watch and --sarif",)),
        (("relu",), ("'relu' is not a .cu file",)),
        ((), ("name them",)),
        (("none.cu",), ("the file none.cu does not exist", "opbench new variant")),
    ],
)
def test_what_cannot_be_watched_is_refused(tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    (tmp_path / "one.cu").write_text(KERNEL)
    done = subprocess.run(
        command("check", *args, "--watch"), cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    refused(done, 2, *words)
