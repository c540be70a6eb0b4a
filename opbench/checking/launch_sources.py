"""Timed launches of a case: each gets other inputs and poisoned outputs, and some outputs are judged."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from opbench.backend.base import Buffer
from opbench.checking.binding import BoundCase
from opbench.checking.checking import Session
from opbench.checking.contents import JUDGED_INPUT_KINDS, TIMED_INPUT_KINDS, input_kind_of_buffer_set
from opbench.checking.outputs import judge_outputs
from opbench.timing.clock import Launch, RenewableLaunch

FIRST_WINDOW = 3
"""The length of the first window of samples: one sample is judged in each window, and windows double in length."""
MAX_SCHEDULED_SAMPLE = 1 << 12
MAX_COMPARISONS = 3
"""Most comparisons of outputs. Bits that were right before need no comparison; a kernel whose bits differ from launch
to launch is compared at most this often."""


def judged_samples(rng: random.Random) -> frozenset[int]:
    """Draw the numbers of the samples to judge, one in each of [0, 3), [3, 6), [6, 12), [12, 24), …"""
    numbers, start, end = set[int](), 0, FIRST_WINDOW
    while start < MAX_SCHEDULED_SAMPLE:
        numbers.add(rng.randrange(start, end))
        start, end = end, 2 * end
    return frozenset(numbers)


class SampleJudge:
    """Decide which of a case's samples are judged, and record the first fault."""

    def __init__(self, session: Session, bound_case: BoundCase, rng: random.Random, active: bool = True) -> None:
        self._session, self._bound_case = session, bound_case
        self._schedule: Collection[int] = judged_samples(rng) if active else ()
        self._kinds = rng.sample(JUDGED_INPUT_KINDS, len(JUDGED_INPUT_KINDS))
        self._number = 0
        self._comparisons = 0
        self._must_judge_next = False
        """Whether a due sample had no reference; the next sample with a reference is then judged instead."""
        self.fault = ""

    @property
    def is_due(self) -> bool:
        """Return whether the next sample must be judged."""
        return self._must_judge_next or self._number in self._schedule

    def judge_next(self) -> None:
        """Judge the next sample regardless of the schedule."""
        self._must_judge_next = True

    @property
    def kind(self) -> str:
        """Return the kind of inputs to judge next; kinds with a reference alternate."""
        return self._kinds[0]

    def after_sample(self, kind: str, outputs: Mapping[str, Buffer]) -> None:
        """Count a sample, and judge its outputs if due."""
        due = self.is_due and not self.fault
        self._must_judge_next = due and kind not in JUDGED_INPUT_KINDS
        if due and kind in JUDGED_INPUT_KINDS:
            self._kinds.append(self._kinds.pop(0))
            judged_before = len(self._bound_case.prepared.right_judgements)
            self._session.backend.synchronize()
            reason = judge_outputs(self._session.backend, self._bound_case, kind, outputs)
            self.fault = f"wrong in timed sample {self._number + 1}: {reason}" if reason else ""
            self._comparisons += len(self._bound_case.prepared.right_judgements) > judged_before
            if self._comparisons >= MAX_COMPARISONS:
                self._schedule = ()
        self._number += 1


InputKind = TypeVar("InputKind")


class InputKindOrder(Generic[InputKind]):
    """A random order of the kinds of inputs: each occurs once before any occurs again."""

    def __init__(self, kinds: Iterable[InputKind], rng: random.Random) -> None:
        self._kinds, self._rng = tuple(kinds), rng
        self._queue: list[InputKind] = []

    def first(self) -> InputKind:
        """Return the next kind of inputs without removing it."""
        if not self._queue:
            self._queue = list(self._kinds)
            self._rng.shuffle(self._queue)
        return self._queue[0]

    def take(self, kind: InputKind) -> InputKind:
        """Remove a kind of inputs from the remaining kinds, also if it is not the next one, and return it."""
        if kind in self._queue:
            self._queue.remove(kind)
        return kind

    def next(self) -> InputKind:
        """Return the next kind of inputs and remove it."""
        return self.take(self.first())


class CaseLaunches:
    """The launches of a case on several kinds of inputs, in random order; each occurs once before any repeats."""

    def __init__(
        self,
        bound_case: BoundCase,
        inputs: Mapping[str, Mapping[str, Buffer]],
        launches: Mapping[str, Launch],
        judge: SampleJudge,
        rng: random.Random,
        setup_launches: Mapping[str, Launch] | None = None,
    ) -> None:
        """Take the buffers `inputs` and the `launches`, both by kind of inputs; `setup_launches` are not timed."""
        self._bound_case, self._inputs, self.judge = bound_case, inputs, judge
        self._setup_launches = setup_launches or {}
        self.launches = {kind: RenewableLaunch(launch, self._renewal(kind)) for kind, launch in launches.items()}
        self.restored: Sequence[tuple[Buffer, Buffer]] = ()
        """Module variables that the case uses as scratch, each with a copy that restores it before each sample."""
        self._order = InputKindOrder(self.launches, rng)
        self._kind = ""

    def _renewal(self, kind: str) -> Callable[[], None]:
        """Return a callable that renews the buffers for one kind of inputs."""
        return lambda: self.renew(kind)

    def renew(self, kind: str) -> None:
        """Poison outputs and workspaces, reset an output that is updated in place to its input, run setup launches."""
        updates = self._bound_case.case.updates
        for name, buffer in self._bound_case.buffers.items():
            if name in updates:
                buffer.copy_from(self._inputs[kind][updates[name]])
            elif name not in self._inputs[kind]:
                buffer.poison()
        for variable, content in self.restored:
            variable.copy_from(content)  # on the device: the stream may be blocked, and the host must not wait
        if setup := self._setup_launches.get(kind):
            setup()

    def launch_on_next_inputs(self) -> None:
        """Launch the case on the next inputs without poisoning; many such launches are timed together."""
        self._kind = self._order.next()
        self.launches[self._kind]()

    def next_launch(self) -> Launch:
        """Poison the buffers and return the launch on the next inputs."""
        self._kind = self._order.first()
        if self.judge.is_due:
            self._kind = self.judge.kind if self.judge.kind in self.launches else TIMED_INPUT_KINDS[0]
        self._order.take(self._kind)
        self.renew(self._kind)
        return self.launches[self._kind]

    def after_sample(self) -> None:
        """Count the sample, and judge its outputs if due."""
        self.judge.after_sample(self._kind, self._bound_case.buffers)


class GraphLaunches:
    """A CUDA graph whose launches rotate over sets of buffers with different inputs."""

    def __init__(
        self,
        launch: Launch,
        sets: Sequence[Mapping[str, Buffer]],
        poisoned: Sequence[Buffer],
        judge: SampleJudge,
        rng: random.Random,
    ) -> None:
        """Take the outputs of each buffer set in `sets`, and the buffers `poisoned` to poison before a replay.

        `input_kind_of_buffer_set` gives the kind of inputs in a set.
        """
        self._launch, self._sets, self._poisoned = launch, sets, poisoned
        self.judge, self._rng = judge, rng

    def next_launch(self) -> Launch:
        """Poison the outputs and workspaces of all sets and return the launch."""
        for buffer in self._poisoned:
            buffer.poison()
        return self._launch

    def after_sample(self) -> None:
        """Count the replay, and judge the outputs of one set if due."""
        kind = self.judge.kind
        number = self._rng.choice([n for n in range(len(self._sets)) if input_kind_of_buffer_set(n) == kind])
        self.judge.after_sample(kind, self._sets[number])


def unpredictable_random() -> random.Random:
    """Return a random number generator that no kernel can predict."""
    return random.Random(secrets.randbits(64))
