"""`opbench net train --gpus` on the CPU: what it leaves, and that no process outlives an interrupt or a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.checks.command_line import heed_interrupts
from support.common import Cli, alive


def train(out: Path, steps: int, *arguments: str) -> list[str]:
    data, rng = out.with_suffix(".npz"), np.random.default_rng(0)
    images, classes = rng.random((24, 1, 28, 28), np.float32), np.arange(24) % 10
    np.savez(data, images=images[:20], targets=classes[:20], held_images=images[20:], held_targets=classes[20:])
    shape = ["--data", str(data), "--batch", "4", "--backend", "cpu", "--evaluate-every", "1000"]
    command = [sys.executable, "-m", "opbench", "net", "train", "lenet", *shape, "--steps", str(steps)]
    return [*command, "--out", str(out), *arguments]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_process_and_no_loss(tmp_path: Path, number: signal.Signals) -> None:
    """Also of a killed command, which cannot end its ranks itself."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        train(out, 4000, "--gpus", "2", "--checkpoint-every", "0"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 (it starts no thread)
    )
    deadline = time.monotonic() + 60
    while not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    names = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2].decode() for pid in ranks]
    assert sorted(names) == ["rank0", "rank1"]
    process.send_signal(number)
    try:
        said = process.communicate(timeout=60)[
            1
        ].decode()  # a rank that syncs a checkpoint to a busy disk dies after that
    finally:
        process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else -number) and "Traceback" not in said
    deadline = time.monotonic() + 60
    while any(map(alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in ranks if alive(pid)]
    assert (out / "losses.jsonl").exists()


def test_what_it_says_and_what_it_leaves(cli: Cli, tmp_path: Path) -> None:
    done = cli(*train(tmp_path / "run", 3, "--gpus", "2")[3:])
    assert done.returncode == 0 and "2 ranks" in done.stdout, done.stderr
    assert "exchange" in (tmp_path / "run" / "train.html").read_text()
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "checkpoint.safetensors",
        "losses.jsonl",
        "loss.png",
        "plan.json",
        "training-memory.png",
        "train.html",
        "train.json",
    }
