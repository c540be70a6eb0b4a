"""Messages between the ranks of a training and its main process, which also sums buffers if no library can.

Each rank has one pair of connected sockets, which only that rank inherits, so no other process can send
messages. Each rank sends heartbeats, so a rank that is stopped, or that waits for its device forever, ends the
training as a crash does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from opbench.backend.base import Buffer
from opbench.errors import LaunchError, OpbenchError, UsageError
from opbench.networks.plan.data import DataSet
from opbench.networks.train.train_options import TrainingProgress, TrainingSettings
from opbench.running.runner import OnProgress, Progress
from opbench.timing.clock import Launch

T = TypeVar("T")


HEARTBEAT_S = 1.0
"""Seconds between two heartbeats of a rank."""
SILENCE_LIMIT_S = 8.0
"""Seconds without a heartbeat after which a rank counts as hanging: stopped, or in a call that blocks all its threads.
"""
START_LIMIT_S = 60.0
"""Seconds until the first heartbeat of a process, and until the first wait for its device ends."""
WAIT_FACTOR = 4.0
"""A wait for the device may last this many times the longest one so far, or SILENCE_LIMIT_S, before the rank counts as
hanging."""


class RankLost(LaunchError):
    """A rank crashed or hung, and the other ranks were ended."""


@dataclass(frozen=True)
class Job:
    """The task of a rank: its number, and the network, data and options of the training."""

    rank: int
    network: Path
    data: DataSet
    options: TrainingSettings


@dataclass(frozen=True)
class SumRequest:
    """Request the sum of an array over all ranks; the float32 array follows this message."""


@dataclass(frozen=True)
class GatherRequest:
    """Request the values that all ranks send, as a list in rank order."""

    value: object


@dataclass(frozen=True)
class RankFailed:
    """Report the error that ended a rank."""

    error: OpbenchError


@dataclass(frozen=True)
class RankDone:
    """Report that a rank has ended normally."""


@dataclass(frozen=True)
class Heartbeat:
    """Report that a rank is alive, and how long it has waited for its device."""

    waited_s: float
    """Seconds of the current wait for the device."""
    allowed_s: float
    """Seconds that this wait may take."""


GroupRequest = SumRequest | GatherRequest
"""A request that all ranks make together."""


class RankGroup:
    """A rank's connection to the group; all ranks must make the same requests in the same order."""

    def __init__(self, pipe: Connection, rank: int, ranks: int) -> None:
        self._pipe, self.rank, self.ranks = pipe, rank, ranks
        self._sending = threading.Lock()
        self._since, self._longest = 0.0, 0.0
        """The time when the current wait for the device began, 0 for none, and the longest wait so far, in seconds."""

    def start_heartbeat(self) -> None:
        """Start a thread that sends heartbeats."""

        def beating() -> None:
            with contextlib.suppress(OSError):  # The other end is closed.
                while True:
                    self._send(self._heartbeat())
                    time.sleep(HEARTBEAT_S)

        threading.Thread(target=beating, daemon=True).start()

    def _heartbeat(self) -> Heartbeat:
        since = self._since
        waited_s = time.monotonic() - since if since else 0.0
        return Heartbeat(
            waited_s, max(SILENCE_LIMIT_S, WAIT_FACTOR * self._longest) if self._longest else START_LIMIT_S
        )

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Report the time within the `with` block, in heartbeats, as waiting for the device.

        The wait ends when the device's work does, unless this or another rank has stopped.
        """
        self._since = time.monotonic()
        yield
        self._longest, self._since = max(self._longest, time.monotonic() - self._since), 0.0

    def _send(self, message: object, array: np.ndarray | None = None) -> None:
        with self._sending:  # one message at a time, whichever thread sends it
            self._pipe.send(message)
            if array is not None:
                self._pipe.send_bytes(np.ascontiguousarray(array).data.cast("B"))

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over all ranks, in rank order, rounded once per rank."""
        self._send(SumRequest(), array)
        return np.frombuffer(self._pipe.recv_bytes(), np.float32).reshape(array.shape)

    def all_reduce(self, buffer: Buffer) -> Launch:
        """Return a launch that sums a buffer over all ranks, in place."""
        return lambda: buffer.write(self.sum(buffer.read()))

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        self._send(GatherRequest(value))
        return cast(list[T], self._pipe.recv())

    def broadcast(self, value: T) -> T:
        """Return on every rank the value that rank 0 passes."""
        return self.gather(value)[0]

    def require_equal(self, label: str, value: object) -> None:
        """Raise UsageError unless all ranks pass the same value; `label` says in the message what the value is."""
        first_value, *other_values = self.gather(value)
        if any(other_value != first_value for other_value in other_values):
            raise UsageError(
                f"the ranks differ in their {label}; start all ranks with the same version of opbench, the same plan "
                "and the same data set",
                kind="ranks-differ",
                subject=label,
            )

    def send_progress(self, progress: TrainingProgress | Progress) -> None:
        """Report the progress of the training, or of --tune, to the main process."""
        self._send(progress)

    def send_done(self) -> None:
        """Tell the main process that this rank has ended normally; no message follows."""
        self._send(RankDone())

    def failed(self, error: BaseException) -> None:
        """Tell the main process which exception ends this rank; no message follows."""
        known = error if isinstance(error, OpbenchError) else OpbenchError(f"{type(error).__name__}: {error}")
        self._send(RankFailed(known))


DescribeDeath = Callable[[int, str], str]
"""Returns the message for a lost rank, from its number and how it hangs; the second is empty for a crash."""


def serve_ranks(
    pipes: Sequence[Connection],
    tell: Callable[[TrainingProgress], None],
    describe_death: DescribeDeath,
    progress: OnProgress = lambda progress: None,
) -> None:
    """Receive and answer the messages of all ranks, in the main process, until every rank has ended.

    `tell` gets the progress of the training, `progress` that of the measurements of --tune. Raises
    the exception of a rank, and RankLost for one that crashed or hangs.
    """
    server = _Server(pipes, describe_death)
    for rank, message in server.messages():
        if isinstance(message, TrainingProgress):
            tell(message)
        elif isinstance(message, Progress):
            progress(message)
        elif isinstance(message, RankFailed):
            raise message.error
        elif isinstance(message, RankDone):
            server.done.add(rank)
        elif len(server.requests) == len(pipes):
            server.answer()


@dataclass
class _Server:
    """The main process's connections to all ranks."""

    pipes: Sequence[Connection]
    describe_death: DescribeDeath
    requests: dict[int, tuple[GroupRequest, np.ndarray | None]] = field(default_factory=dict)
    """The requests that wait for other ranks, by rank."""
    done: set[int] = field(default_factory=set)
    last_heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    last_message_s: dict[int, float] = field(default_factory=dict)
    """The time of the last message of each rank."""

    def messages(self) -> Iterator[tuple[int, object]]:
        """Yield each message with its rank, in order of arrival.

        Raises RankLost if a rank's process ends or hangs.
        """
        for pipe in self.pipes:
            set_time_limit(pipe, SILENCE_LIMIT_S)
        checked_s = time.monotonic()
        self.last_message_s = dict.fromkeys(range(len(self.pipes)), checked_s)
        while len(self.done) < len(self.pipes):
            running = [rank for rank in range(len(self.pipes)) if rank not in self.done]
            # The time in which this process was stopped or busy does not count as silence of a rank.
            pause_s = time.monotonic() - checked_s
            self.last_message_s = {rank: heard + pause_s for rank, heard in self.last_message_s.items()}
            readable = wait([self.pipes[rank] for rank in running], HEARTBEAT_S)
            checked_s = time.monotonic()
            for rank in running:
                if self.pipes[rank] in readable:
                    yield rank, self._read(rank)
            self._check_for_hang(checked_s)

    def _read(self, rank: int) -> object:
        pipe = self.pipes[rank]
        try:
            message = pipe.recv()
            self.last_message_s[rank] = time.monotonic()
            if isinstance(message, Heartbeat):
                self.last_heartbeats[rank] = message
            elif isinstance(message, GroupRequest):
                self.requests[rank] = message, self._receive_array(pipe) if isinstance(message, SumRequest) else None
        except BlockingIOError:
            raise self._rank_lost(
                rank, f"it did not end within {SILENCE_LIMIT_S:g} s the message that it began"
            ) from None
        except (EOFError, OSError):
            raise self._rank_lost(rank, "") from None
        return message

    def _rank_lost(self, rank: int, hang: str) -> RankLost:
        """Return the error for a rank that crashed (`hang` is empty), or that hangs as the text `hang` describes."""
        return RankLost(self.describe_death(rank, hang), kind="rank-hangs" if hang else "rank-died", subject=rank)

    def _receive_array(self, pipe: Connection) -> np.ndarray:
        return np.frombuffer(pipe.recv_bytes(), np.float32)

    def _check_for_hang(self, now_s: float) -> None:
        running = [rank for rank in range(len(self.pipes)) if rank not in self.done]
        for rank in running:
            allowed_s = SILENCE_LIMIT_S if rank in self.last_heartbeats else START_LIMIT_S
            if now_s - self.last_message_s[rank] > allowed_s:
                raise self._rank_lost(rank, f"it gave no sign of life for {allowed_s:g} s")
        last_heartbeats = {rank: self.last_heartbeats[rank] for rank in running if rank in self.last_heartbeats}
        overdue = [rank for rank, beat in last_heartbeats.items() if beat.waited_s > beat.allowed_s]
        if overdue and all(rank in overdue or rank in self.requests for rank in running):
            hang = f"it has waited for its device for {last_heartbeats[overdue[0]].waited_s:.0f} s"
            raise self._rank_lost(overdue[0], hang)

    def answer(self) -> None:
        """Answer a request once all ranks have made it."""
        requests = [self.requests[rank] for rank in range(len(self.pipes))]
        self.requests.clear()
        messages, arrays = [message for message, _ in requests], [array for _, array in requests if array is not None]
        first_message = messages[0]
        assert all(type(message) is type(first_message) for message in messages), messages
        total = sum_in_order(arrays) if isinstance(first_message, SumRequest) else None
        values = [message.value for message in messages if isinstance(message, GatherRequest)]
        for rank, pipe in enumerate(self.pipes):
            try:
                if total is not None:
                    pipe.send_bytes(total.data.cast("B"))
                else:
                    pipe.send(values)
            except BlockingIOError:
                raise self._rank_lost(rank, f"it took no answer for {SILENCE_LIMIT_S:g} s") from None
            except OSError:
                raise self._rank_lost(rank, "") from None


def set_time_limit(connection: Connection, seconds: float) -> None:
    """Set the limit of a connection's sends and reads: one that blocks longer than `seconds` raises BlockingIOError."""
    timeout = struct.pack("ll", int(seconds), round(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)


def sum_in_order(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays in float32, in order and rounded after each addition."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
