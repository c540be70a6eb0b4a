"""What ranks and the process that started them say to each other; the group is the all-reduce where no library is.

Messages pass through one pair of connected sockets a rank, which only that rank inherits: nobody else can speak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from opbench.backends.base import Buffer
from opbench.errors import CompileError, EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.nets.data import DataSet
from opbench.nets.train_options import Standing, TrainOptions
from opbench.nets.training_record import NotFinite
from opbench.runs.runner import Progress, Tell
from opbench.timing.clock import Launch

T = TypeVar("T")


class RankLost(LaunchError):
    """A rank died; the others were ended."""


@dataclass(frozen=True)
class Job:
    """What a rank trains."""

    rank: int
    network: Path
    data: DataSet
    options: TrainOptions


@dataclass(frozen=True)
class Sum:
    """An array of float32 follows; the answer is its sum over the ranks, in their order."""


@dataclass(frozen=True)
class Gather:
    """The answer is what all ranks sent, in their order."""

    value: object


@dataclass(frozen=True)
class Failed:
    """What was raised in a rank."""

    kinds: tuple[str, ...]
    """Names of its class and that one's bases."""
    message: str


@dataclass(frozen=True)
class Done:
    """The rank has ended as it should."""


Together = Sum | Gather
"""What all ranks ask at once."""


class RankGroup:
    """A rank's own end: what it asks all others, in the same order as they do."""

    def __init__(self, pipe: Connection, rank: int, ranks: int) -> None:
        self._pipe, self.rank, self.ranks = pipe, rank, ranks

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Its sum over all ranks, rounded once for each, in their order."""
        self._pipe.send(Sum())
        self._pipe.send_bytes(np.ascontiguousarray(array).data.cast("B"))
        return np.frombuffer(self._pipe.recv_bytes(), np.float32).reshape(array.shape)

    def all_reduce(self, buffer: Buffer) -> Launch:
        """A launch that adds a buffer over all ranks, in place."""
        return lambda: buffer.write(self.sum(buffer.read()))

    def gather(self, value: T) -> list[T]:
        """What each rank has."""
        self._pipe.send(Gather(value))
        return cast(list[T], self._pipe.recv())

    def share(self, value: T) -> T:
        """What rank 0 has."""
        return self.gather(value)[0]

    def agree(self, what: str, value: object) -> None:
        """Raise UsageError unless all ranks have the same."""
        first, *others = self.gather(value)
        if any(other != first for other in others):
            raise UsageError(
                f"the ranks have not the same {what}: run them with one opbench, one plan and one data set"
            )

    def tell(self, standing: Standing | Progress) -> None:
        """How far the training is, or --tune."""
        self._pipe.send(standing)

    def done(self) -> None:
        """The last word."""
        self._pipe.send(Done())

    def failed(self, error: BaseException) -> None:
        """The last word of one that cannot go on."""
        message = str(error) if isinstance(error, OpbenchError) else f"{type(error).__name__}: {error}"
        self._pipe.send(Failed(tuple(kind.__name__ for kind in type(error).__mro__), message))


def serve(
    pipes: Sequence[Connection],
    tell: Callable[[Standing], None],
    obituary: Callable[[int], str],
    progress: Tell = lambda progress: None,
) -> None:
    """Answer the ranks until all are done; raises what one of them raised, and RankLost for one that died."""
    waiting: dict[int, tuple[Together, np.ndarray | None]] = {}
    done: set[int] = set()
    while len(done) < len(pipes):
        for ready in wait([pipe for rank, pipe in enumerate(pipes) if rank not in done]):
            rank = next(rank for rank, pipe in enumerate(pipes) if pipe is ready)
            try:
                message = pipes[rank].recv()
                array = np.frombuffer(pipes[rank].recv_bytes(), np.float32) if isinstance(message, Sum) else None
            except (EOFError, OSError):
                raise RankLost(obituary(rank)) from None
            if isinstance(message, Standing):
                tell(message)
            elif isinstance(message, Progress):
                progress(message)
            elif isinstance(message, Failed):
                raise _revived(message)
            elif isinstance(message, Done):
                done.add(rank)
            else:
                waiting[rank] = message, array
        if len(waiting) == len(pipes):
            _answer(pipes, [waiting[rank] for rank in range(len(pipes))], obituary)
            waiting.clear()


def _answer(
    pipes: Sequence[Connection], asked: Sequence[tuple[Together, np.ndarray | None]], obituary: Callable[[int], str]
) -> None:
    """What all ranks asked at once, to each of them."""
    messages, arrays = [message for message, _ in asked], [array for _, array in asked if array is not None]
    first = messages[0]
    assert all(type(message) is type(first) for message in messages), messages
    total = in_order(arrays) if isinstance(first, Sum) else None
    values = [message.value for message in messages if isinstance(message, Gather)]
    for rank, pipe in enumerate(pipes):
        try:
            if total is not None:
                pipe.send_bytes(total.data.cast("B"))
            else:
                pipe.send(values)
        except OSError:
            raise RankLost(obituary(rank)) from None


def in_order(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The sum in float32, rounded once for each array behind the first."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


KINDS = {c.__name__: c for c in (NotFinite, UsageError, EnvironmentFault, CompileError, LaunchError)}


def _revived(failed: Failed) -> OpbenchError:
    kind = next((KINDS[name] for name in failed.kinds if name in KINDS), OpbenchError)
    return kind(failed.message)
