"""The first line of a run's file: what was run, how it was timed, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opbench.backend.environment import Environment
from opbench.gpu.limits.ceilings import Ceilings
from opbench.records import from_json, to_json

LeftOut = Mapping[str, Mapping[str, Sequence[str]]]
"""By problem and by reason: the variants of a suite that are no cases of that problem."""


@dataclass(frozen=True)
class Revision:
    """The commit of the user's own project that was checked out."""

    commit: str
    changed: bool | None = None
    """Whether tracked files differed from it; None where git did not answer in time."""

    def __str__(self) -> str:
        return self.commit[:7] + (" + changes" if self.changed else "")


def short_revision(revision: Revision | None) -> str:
    """Return such as "1a2b3c4", or "1a2b3c4 + changes" of a tree that differed; "" for none."""
    return str(revision) if revision else ""


@dataclass(frozen=True)
class RecordedTiming:
    """How a run was timed: `TimingOptions` and the number of processes; None where an older run does not say."""

    mode: str | None = None
    warmup_runs: int | None = None
    warmup_s: float | None = None
    min_samples: int | None = None
    max_samples: int | None = None
    budget_s: float | None = None
    target: float | None = None
    seed: int | None = None
    load_s: float | None = None
    soak_s: float | None = None
    """`load_s` as older runs call it."""
    processes: int | None = None


@dataclass(frozen=True)
class RunHeader:
    """What a run says of itself; a field has its default where an older run does not know it."""

    format: int = 1
    opbench: str = ""
    """The version that measured."""
    suite: str = ""
    title: str = ""
    backend: str = ""
    seed: int | None = None
    started: str = ""
    """In UTC."""
    revision: Revision | None = None
    target: tuple[str, ...] = ()
    """What was run as the user named it, then the extra folders."""
    targets: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    """Variants that are files of the user's own, as "operator/variant"."""
    command: str = ""
    timing: RecordedTiming = RecordedTiming()
    cases: int | None = None
    left_out: LeftOut = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    network: str = ""
    """Of a network's run that is read as a run; in no file."""
    settings: Mapping[str, bool | int | str | None] = field(default_factory=dict)
    """How that network was run; in no file."""

    def to_json(self) -> dict[str, Any]:
        """Return the line's content."""
        written: dict[str, Any] = to_json(self)
        del written["network"], written["settings"]
        return {
            **written,
            "timing": to_json(self.timing, sparse=True),
            "environment": self.environment.to_json(),
        }


@dataclass(frozen=True)
class RunDevice:
    """One of the devices of a run on several."""

    environment: Environment
    index: int
    name: str
    """Such as "GPU 1" or "worker 0"."""
    uuid: str
    """What its results name it by."""
    host: str = ""
    ceilings: Ceilings | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunDevice:
        """Return the device of a line; raises ValueError."""
        limits = Ceilings.from_json(value["ceilings"]) if value.get("ceilings") else None
        device = from_json(cls, {**value, "environment": value, "ceilings": None})
        return replace(device, ceilings=limits)

    def to_json(self) -> dict[str, Any]:
        """Return the line's content: the environment's keys lie beside the device's own."""
        own = {"index": self.index, "name": self.name, "uuid": self.uuid}
        host = {"host": self.host} if self.host else {}
        limits = self.ceilings.to_json() if self.ceilings else None
        return {**self.environment.to_json(), **own, **host, "ceilings": limits}
