"""Several ranks as processes on the CPU: the same bits as micro-batches in turn, and what the loss of one costs."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from opbench.errors import LaunchError, NotFinite, UsageError
from opbench.graph.recipe import Recipe
from opbench.networks.records.checkpoints import Checkpoint, CheckpointFacts, TrainingIdentity, read_checkpoint
from opbench.networks.train import group, resuming
from opbench.networks.train.group import RankGroup, RankLost, serve_ranks, sum_in_order
from opbench.networks.train.train_options import TrainingProgress
from support.builders.trainings import train_on, training_files
from support.checks.errors import refuses
from support.checks.rank_signals import RankSignal

train = functools.partial(train_on, "cpu")


@pytest.mark.parametrize(("name", "count", "clip"), [("unet", 2, 0.0), ("dropping", 3, 0.05)])
def test_ranks_give_the_bits_of_micro_batches_in_turn(tmp_path: Path, name: str, count: int, clip: float) -> None:
    """With batch norm, whose statistics ride with the gradients, and with dropout, whose masks differ by rank.

    Clipped by the norm of the gradients' sum.
    """
    progress_seen: list[TrainingProgress] = []
    record = train(tmp_path / "ranks", name, progress_seen.append, ranks=count, clip=clip)
    train(tmp_path / "turns", name, accumulate=count, clip=clip)
    assert training_files(tmp_path / "ranks") == training_files(tmp_path / "turns")
    assert record.recipe["ranks"] == str(count) and progress_seen[-1].step == 4
    names = {path.name for path in (tmp_path / "ranks").iterdir()}
    assert names == {path.name for path in (tmp_path / "turns").iterdir()}


def test_a_training_of_ranks_goes_on_with_fewer(tmp_path: Path) -> None:
    """To the same bits with micro-batches in their place; else it says that the bits are others."""
    train(tmp_path / "whole", "unet", accumulate=2)
    saved: list[TrainingProgress] = []

    def cut(standing: TrainingProgress) -> None:
        saved.append(standing)
        if standing.step >= 3:
            raise KeyboardInterrupt

    for folder in ("same", "other"):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / folder, "unet", cut, ranks=2, checkpoint_every_s=0.0)
        found = read_checkpoint(tmp_path / folder)
        assert found and found.facts.step >= 1 and found.facts.ranks == 2
    same = train(tmp_path / "same", "unet", accumulate=2, resume=True)
    assert same.notes == () and training_files(tmp_path / "same") == training_files(tmp_path / "whole")
    other = train(tmp_path / "other", "unet", resume=True)
    assert [("not to the same bits; for those: --accumulate 2" in line) for line in other.notes] == [True]
    assert len(other.losses) == 4 and np.isfinite(other.losses).all()


def test_a_rank_that_dies_ends_the_others_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = RankSignal(monkeypatch, signal.SIGKILL, step=2)
    with refuses("rank-died", 1, error=RankLost):
        train(tmp_path / "run", tell=kill.tell, ranks=2, steps=400, checkpoint_every_s=0.0, evaluate_every=1)
    assert kill.seconds_since() < 30
    assert None not in kill.return_codes() and kill.still_listed() == []
    assert issubclass(RankLost, LaunchError) and RankLost.exit_code == 1
    assert read_checkpoint(tmp_path / "run")


def test_a_rank_that_is_stopped_ends_the_training_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not die, so that nobody hears of it but by its silence; of 8 s, were it not for this test's time."""
    assert group.SILENCE_LIMIT_S + group.HEARTBEAT_S < 10
    monkeypatch.setattr(group, "SILENCE_LIMIT_S", 3.0)
    stop = RankSignal(monkeypatch, signal.SIGSTOP, step=2)
    with refuses("rank-hangs", 1, error=RankLost):
        train(tmp_path / "run", tell=stop.tell, ranks=2, steps=4000, checkpoint_every_s=0.0, evaluate_every=1)
    assert stop.seconds_since() < 30
    assert None not in stop.return_codes() and stop.still_listed() == []


@pytest.mark.parametrize("others_wait", [True, False])
def test_ranks_that_wait_for_their_devices_for_ever_hang(others_wait: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or all but those that wait for them; not while another is busy, such as with what is held out."""
    for name, seconds in (("HEARTBEAT_S", 0.02), ("SILENCE_LIMIT_S", 1.0), ("START_LIMIT_S", 1.0)):
        monkeypatch.setattr(group, name, seconds)
    end = threading.Event()
    errors: list[BaseException] = []

    def act(own: RankGroup) -> None:
        own.start_heartbeat()
        with own.waiting():
            pass
        with own.waiting() if own.rank == 0 or others_wait else contextlib.nullcontext():
            end.wait(2.4 if own.rank == 0 else 4.8)  # a rank that ends first would leave only late ones

    try:
        group_of(2, act)
    except RankLost as error:
        errors.append(error)
    end.set()
    assert [str(error) for error in errors] == (["0 it has waited for its device for 1 s"] if others_wait else [])


def test_what_one_rank_refuses_is_raised_here(tmp_path: Path) -> None:
    with refuses("batch-too-large"):
        train(tmp_path / "large", ranks=3, accumulate=3)
    with refuses("not-finite", error=NotFinite):
        train(tmp_path / "infinite", ranks=2, optimizer="sgd", learning_rate=1e30, steps=6)
    with refuses("compare-on-ranks"):
        train(tmp_path / "compared", ranks=2, accumulate=2, compare=("torch",))


def test_sums_are_in_the_order_of_the_ranks() -> None:
    arrays = [np.array(values, np.float32) for values in ([1e8, 1.0], [1.0, 2.0], [-1e8, 3.0])]
    assert sum_in_order(arrays).tolist() == [0.0, 6.0]
    assert (
        sum_in_order(arrays[::-1]).tolist() == [0.0, 6.0] and sum_in_order([arrays[0], arrays[2], arrays[1]])[0] == 1.0
    )


def group_of(count: int, act: Callable[[RankGroup], object]) -> list[object]:
    """What each rank's part gives, as threads."""
    pipes = [Pipe() for _ in range(count)]
    found: list[object] = [None] * count

    def rank(number: int) -> None:
        own = RankGroup(pipes[number][1], number, count)
        try:
            found[number] = act(own)
            own.send_done()
        except UsageError as error:
            found[number] = error
            own.send_done()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    serve_ranks([ours for ours, _ in pipes], lambda standing: None, lambda rank, how: f"{rank} {how}")
    for thread in threads:
        thread.join()
    return found


def test_a_group_shares_sums_and_agrees() -> None:
    assert group_of(3, lambda own: own.broadcast(f"of {own.rank}")) == ["of 0"] * 3
    sums = group_of(2, lambda own: own.sum(np.full((2, 3), own.rank + 1, np.float32)).tolist())
    assert sums == [[[3.0] * 3] * 2] * 2
    assert group_of(2, lambda own: own.require_equal("plan", "one")) == [None, None]
    apart = group_of(2, lambda own: own.require_equal("plan", own.rank))
    assert all("the ranks differ in their plan" in str(error) for error in apart)


@pytest.mark.parametrize(
    ("before", "now", "backend", "said"),
    [
        ((2, 1), (1, 2), "cuda", ""),
        ((3, 1), (1, 3), "cpu", ""),
        ((3, 1), (1, 3), "cuda", "more than two GPUs the library adds in an order of its own"),
        ((4, 1), (2, 2), "cpu", "4 ranks x 1 micro-batches, now 2 ranks x 2 micro-batches, in another order"),
        ((2, 2), (2, 1), "cpu", "not to the same bits; for those: --accumulate 4"),
        ((2, 2), (2, 2), "cuda", ""),
    ],
)
def test_it_says_where_other_ranks_mean_other_bits(
    before: tuple[int, int], now: tuple[int, int], backend: str, said: str
) -> None:
    identity = TrainingIdentity("lenet", {}, {}, "")
    facts = CheckpointFacts(identity, 1, 0, (), "", "cpu", ranks=before[0], accumulate=before[1])
    checkpoint = Checkpoint(facts, {})
    trainer = SimpleNamespace(recipe=Recipe(ranks=now[0], accumulate=now[1]), name=backend, notes=[])
    resuming._note_changed_micro_batches(trainer, checkpoint)  # type: ignore[arg-type]
    assert [line for line in trainer.notes if said and said in line] == trainer.notes
    assert len(trainer.notes) == bool(said)
