"""The results of a self-test: claims about the machine, each with its outcome, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opbench.backend.environment import Environment
from opbench.errors import EXIT_OK, EXIT_WRONG
from opbench.records import JSON, to_json

FORMAT = 1
CHEATS = "cheats"
"""The part that runs kernels which cheat about their time, and honest ones."""
REJECTED, HONEST_TIMED, NO_GAIN = "caught", "gets a time", "gains no time"
"""The requirements of that part: no time for a cheat, a time for an honest kernel, no shorter time for a trick."""


@dataclass(frozen=True)
class Claim:
    """One sentence about this machine, with the value seen and the value required."""

    sentence: str
    seen: str
    wanted: str
    holds: bool | None
    """None if the claim could not be checked; `seen` says why."""

    @property
    def word(self) -> str:
        """Return the outcome as one word for the table."""
        return {True: "passes", False: "FAILS", None: "not checked"}[self.holds]


@dataclass(frozen=True)
class Table:
    """A table of formatted numbers."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass
class Part:
    """One part of the self-test, with its claims and tables."""

    name: str
    title: str
    claims: list[Claim] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """The raw numbers behind claims and tables, in SI units."""
    error: str = ""
    """Why the part ended early; its results until then are kept. Empty if it did not."""
    spent_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Return whether a claim of the part does not hold or the part ended with an error."""
        return bool(self.error) or any(claim.holds is False for claim in self.claims)

    def add_claim(self, sentence: str, seen: str, wanted: str, holds: bool | None) -> None:
        """Add a claim to the part."""
        self.claims.append(Claim(sentence, seen, wanted, holds))

    def add_table(self, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table to the part."""
        self.tables.append(Table(caption, tuple(head), tuple(tuple(row) for row in rows)))


ORDERS = ("interleaved", "one after the other")
"""How the pairs of one kernel are measured."""
AS_COMPARE, BY_INTERVAL = "as opbench compare", "interval alone"
"""The rules by which pairs of one kernel are judged: with the default threshold, and without one."""


def identical_pair_key(order: str, rule: str) -> str:
    """Return the key of a figure about pairs of the same kernel; `order` is one of `ORDERS`."""
    return f"{order}, {rule}"


@dataclass
class Selftest:
    """The results of all parts that ran, with the environment."""

    environment: Environment
    budget_s: float
    opbench: str
    date: str
    parts: list[Part] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Return 0 if every claim holds, 1 if one does not."""
        return EXIT_WRONG if any(part.failed for part in self.parts) else EXIT_OK

    def summary(self) -> str:
        """Return a summary such as "14 of 15 checks pass, 1 not checked"."""
        claims = [claim for part in self.parts for claim in part.claims]
        checked = [claim for claim in claims if claim.holds is not None]
        ended = [part.name for part in self.parts if part.error]
        text = f"{sum(bool(claim.holds) for claim in checked)} of {len(checked)} checks pass"
        text += f", {len(claims) - len(checked)} not checked" if len(checked) < len(claims) else ""
        return text + (f"; ended early: {', '.join(ended)}" if ended else "")

    def to_json(self) -> dict[str, JSON]:
        """Return the results as JSON data."""
        return {
            "format": FORMAT,
            **to_json(self),
            "environment": self.environment.to_json(),
            "summary": self.summary(),
            "exit_code": self.exit_code,
        }
