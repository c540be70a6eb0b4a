"""The first line of a run's file: the cases, the timing options and the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opbench.backend.environment import Environment
from opbench.gpu.limits.ceilings import Peaks
from opbench.records import from_json, to_json

SkippedVariants = Mapping[str, Mapping[str, Sequence[str]]]
"""For each problem and each reason, the variants of a suite that are no cases of that problem."""


@dataclass(frozen=True)
class Revision:
    """The git commit of the user's own project."""

    commit: str
    changed: bool | None = None
    """Whether tracked files differed from the commit; None if git did not answer in time."""

    def __str__(self) -> str:
        return self.commit[:7] + (" + changes" if self.changed else "")


def short_revision(revision: Revision | None) -> str:
    """Return a short commit such as "1a2b3c4", or "1a2b3c4 + changes" if files differed; "" for None."""
    return str(revision) if revision else ""


@dataclass(frozen=True)
class RecordedTiming:
    """The timing options of a run, and the number of processes.

    A value is None if an older run does not have it.
    """

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
    """The name of `load_s` in older runs."""
    processes: int | None = None


@dataclass(frozen=True)
class RunHeader:
    """The header of a run; a field that an older run lacks has its default."""

    format: int = 1
    opbench: str = ""
    """The version of opbench that measured."""
    suite: str = ""
    title: str = ""
    backend: str = ""
    seed: int | None = None
    started: str = ""
    """Time of the start in UTC."""
    revision: Revision | None = None
    target: tuple[str, ...] = ()
    """The first target as the user named it, then the extra folders."""
    targets: tuple[str, ...] = ()
    """All targets if they are several files."""
    own: tuple[str, ...] = ()
    """Variants from the user's own files, as "operator/variant"."""
    command: str = ""
    timing: RecordedTiming = RecordedTiming()
    cases: int | None = None
    left_out: SkippedVariants = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    network: str = ""
    """The network, if a network's run is read as a run; in no file."""
    settings: Mapping[str, bool | int | str | None] = field(default_factory=dict)
    """The options of that network's run; in no file."""

    @property
    def named_targets(self) -> tuple[str, ...]:
        """Return all targets as the user named them, one or several, without the extra folders."""
        return self.targets or self.target[:1]

    def to_json(self) -> dict[str, Any]:
        """Return the header as JSON data."""
        fields: dict[str, Any] = to_json(self)
        del fields["network"], fields["settings"]
        return {**fields, "timing": to_json(self.timing, omit_defaults=True), "environment": self.environment.to_json()}


@dataclass(frozen=True)
class RunDevice:
    """One device of a run that uses several."""

    environment: Environment
    index: int
    name: str
    """Such as "GPU 1" or "worker 0"."""
    uuid: str
    """The UUID by which results name the device."""
    host: str = ""
    ceilings: Peaks | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunDevice:
        """Read a device from the data of a line; raise ValueError for invalid data."""
        peaks = Peaks.from_json(value["ceilings"]) if value.get("ceilings") else None
        device = from_json(cls, {**value, "environment": value, "ceilings": None})
        return replace(device, ceilings=peaks)

    def to_json(self) -> dict[str, Any]:
        """Return the device as JSON data; the keys of its environment are on the same level as its own."""
        identity = {"index": self.index, "name": self.name, "uuid": self.uuid}
        host = {"host": self.host} if self.host else {}
        peaks = self.ceilings.to_json() if self.ceilings else None
        return {**self.environment.to_json(), **identity, **host, "ceilings": peaks}
