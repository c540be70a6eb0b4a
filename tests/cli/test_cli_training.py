"""`opbench net train` as a user calls it: what it leaves, what it refuses, and what a killed one loses."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from opbench.networks.plan.data import digit_set
from opbench.records import to_json
from opbench.running.revision import revision
from support.builders.trainings import training_files
from support.common import Cli
from support.prestarted import Prestarted

TINY = ["--batch", "4", "--steps", "8", "--backend", "cpu", "--lr", "2e-3"]
DATA = Path(tempfile.gettempdir()) / f"opbench-test-{os.getuid()}" / "tiny.npz"


def train(*arguments: str) -> list[str]:
    """The command on the first digits, a few of them held out, so that most of its time is its start."""
    if not DATA.exists():
        found = digit_set(0, 28, "digits")
        DATA.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=DATA.parent, suffix=".npz", delete=False) as file:
            np.savez(
                file,
                images=found.images[:40],
                targets=found.targets[:40],
                test_images=found.test_images[:8],
                test_targets=found.test_targets[:8],
            )
        Path(file.name).replace(DATA)
    return [sys.executable, "-m", "opbench", "net", "train", "lenet", "--data", str(DATA), *TINY, *arguments]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prestarted: Prestarted) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    done = prestarted.run(*train("--out", str(out))[1:], cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return out


def test_it_says_what_was_learnt_and_leaves_its_files(cli: Cli, undisturbed: Path) -> None:
    names = {path.name for path in undisturbed.iterdir()}
    pictures = {"loss.png", "training-memory.png"}
    assert names - pictures == {"checkpoint.safetensors", "losses.jsonl", "plan.json", "train.html", "train.json"}
    record = json.loads((undisturbed / "train.json").read_text())
    assert record["revision"] == to_json(revision()), "of the folder it was begun in"
    assert len(record["losses"]) == 8 and record["scores"][-1][0] == 8
    lines = [json.loads(line) for line in (undisturbed / "losses.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [np.float32(line["loss"]) for line in lines] == [np.float32(loss) for loss in record["losses"]]
    page = (undisturbed / "train.html").read_text()
    for text in ("lenet trained on ", "conv2.conv2d_wgrad", "optimizer", "net train lenet"):
        assert text in page
    again = cli("report", undisturbed)
    assert again.returncode == 0 and "Test accuracy" in again.stdout and "wrote" in again.stderr
    assert json.loads(cli("report", undisturbed, "--json").stdout) == json.loads(json.dumps(record))


def test_a_trained_network_can_be_run(cli: Cli, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = cli("net", "run", "lenet", "--weights", undisturbed, "--backend", "cpu", "--no-check", "--out", out)
    assert done.returncode == 0, done.stderr


def test_what_was_trained_in_bf16_is_run_in_it(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "trained"
    trained = cli(*train("--out", str(out), "--precision", "bf16")[3:])
    assert trained.returncode == 0, trained.stderr
    record = json.loads((out / "train.json").read_text())
    assert record["precision"] == record["recipe"]["dtype"] == "bf16" and len(record["losses"]) == 8
    assert "copy=bf16" in record["nodes"][-1]["case"] and "dtype=bf16" in (out / "train.html").read_text()
    arguments = ["--weights", out, "--precision", "bf16", "--backend", "cpu", "--no-check", "--out", tmp_path / "run"]
    done = cli("net", "run", "lenet", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("moment", range(4))
def test_a_killed_training_goes_on_to_the_same_bits(cli: Cli, undisturbed: Path, tmp_path: Path, moment: int) -> None:
    """At three random moments, and once inside the write of a checkpoint."""
    out = tmp_path / "run"
    arguments = train("--out", str(out), "--checkpoint-every", "0")
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    if moment:
        time.sleep(random.Random(moment).random() * 0.4)
    else:
        while process.poll() is None and not list(out.glob(".checkpoint*")):
            pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = cli(*train("--out", str(out))[3:], "--resume")
    assert done.returncode == 0 and "note:" not in done.stderr, done.stderr
    assert training_files(out) == training_files(undisturbed)


def test_a_full_disk_ends_in_3_and_it_goes_on_when_there_is_room(cli: Cli, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(train("--out", str(out)), capture_output=True, text=True, check=False, preexec_fn=small_files)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert (
        "checkpoint.safetensors: this file cannot be written: File too large" in done.stderr
        and "--resume" in done.stderr
    )
    assert {path.name for path in out.iterdir()} == {"losses.jsonl", "plan.json"}
    done = cli(*train("--out", str(out))[3:], "--resume")
    assert done.returncode == 0, done.stderr
    assert training_files(out) == training_files(undisturbed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "digit"), "unknown data set 'digit'"),
        (("--data", "digits:56"), "are [1, 56, 56], and lenet needs [1, 28, 28]"),
        (("--data", "nowhere.npz"), "nowhere.npz: cannot be read"),
        (("--data", "digits", "--loss", "mse"), "--loss mse needs targets of float32[10]"),
        (("--data", "digits", "--clip", "0"), "0 is not allowed; give a number above 0"),
        (("--data", "digits", "--optimizer", "adams"), "unknown optimizer 'adams'"),
        (("--data", "digits", "--disable", "fuse"), "unknown pass 'fuse'"),
        (("--data", "digits", "--batch", "2000"), "a batch of 2000 is larger than the data set, which has 1437"),
        (("--data", "digits", "--epochs", "1", "--steps", "1"), "--epochs and --steps both set the length"),
        (
            ("--data", "digits", "--tune"),
            "--tune measures, and the cpu backend measures no times; use measured times",
        ),
        (("--data", "digits", "--exclude", "conv2d/*"), "--exclude has an effect only with --tune"),
        (("--data", "digits", "--plan", "nowhere.json"), "nowhere.json: cannot be read"),
        (
            ("--data", "digits", "--compare", "torch", "--gpus", "2"),
            "--compare measures a training step on one GPU, not on 2; replace --gpus 2 by --accumulate 2",
        ),
        (("--data", "digits", "--resume"), "--resume continues the training of a folder; name that folder: --out DIR"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("net", "train", "lenet", "--backend", "cpu", *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_arrays_and_folders_of_ones_own_train(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((20, 1, 28, 28), np.float32)
    np.savez(tmp_path / "own.npz", images=images, targets=np.arange(20) % 10)
    shorter = ["--batch", "4", "--steps", "2", "--backend", "cpu"]
    done = cli("net", "train", "lenet", "--data", tmp_path / "own.npz", *shorter, "--out", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    for name in ("cats", "dogs"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            np.save(tmp_path / "pictures" / name / f"{number}.npy", images[number, 0])
    done = cli("net", "train", "lenet", "--data", tmp_path / "pictures", *shorter, "--out", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    np.save(tmp_path / "pictures" / "dogs" / "9.npy", images[0, 0, :20])
    done = cli("net", "train", "lenet", "--data", tmp_path / "pictures", *shorter, "--out", tmp_path / "c")
    assert done.returncode == 2 and "magick mogrify -resize" in done.stderr


def test_a_loss_that_is_no_number_ends_it_with_1(cli: Cli, tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--batch", "4", "--steps", "6", "--backend", "cpu", "--optimizer", "sgd"]
    done = cli("net", "train", "lenet", *arguments, "--lr", "1e30", "--out", tmp_path / "run")
    assert done.returncode == 1 and "the loss is not finite; the first value that is not is" in done.stderr
