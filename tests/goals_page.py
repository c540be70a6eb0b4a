"""The tables of docs/goals.md, written from tests/goals.toml and the committed runs; a test compares them.

python tests/goals_page.py
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from opbench import units
from opbench.networks.records.network import is_network, read_network
from opbench.networks.records.training import read_training
from opbench.results.files import read_run, run_file
from opbench.results.rows import Row, rows
from opbench.tables import markdown_table

ROOT = Path(__file__).parent.parent
GOALS = ROOT / "tests/goals.toml"
PAGE = ROOT / "docs/goals.md"
REPORTS = ROOT / "reports"
CARD = "h200"
EVENTS_S = 2.3e-6
"""The time of the events in the goals; runs of opbench record their own share, which a kernel's time lacks."""
ACCURACY = 1.005
"""The sampling of a time stops when half of its interval is 0.5 %; a goal is reached within that."""
MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


@dataclass(frozen=True)
class Goal:
    """A goal with the measurement that decides it; times in seconds, with the share of the events."""

    name: str
    text: str
    """The goal as the table shows it."""
    source: str = ""
    """The folder of the record, such as "h200/norms"; empty if nothing was measured."""
    ours_s: float | None = None
    allowed_s: float | None = None
    """The longest time that reaches the goal on the card of the record; None if nothing there tells."""
    library_s: float | None = None
    """The time of the library in the same run."""
    variant: str = ""
    of_peak: str = ""
    """The share of the measured peak and what limits the lower bound."""
    limit: str = ""
    next: str = ""

    @property
    def over(self) -> float | None:
        """Return the time divided by the allowed one; None if one of them is unknown."""
        return self.ours_s / self.allowed_s if self.ours_s and self.allowed_s else None

    @property
    def reached(self) -> bool:
        """Return whether the time is known to be short enough."""
        return self.over is not None and self.over <= ACCURACY

    @property
    def outcome(self) -> str:
        """Return the outcome in a word or two."""
        if not self.source:
            return "not measured"
        return "not compared" if self.over is None else "reached" if self.reached else "missed"


def folders() -> Iterable[str]:
    """Yield the folders of runs of suites."""
    kept_apart = ("counters", "counters-cpu", "strangers", "triton", "my_relu")
    for folder in sorted((REPORTS / CARD).iterdir()):
        if folder.name not in kept_apart and run_file(folder).exists():
            yield f"{CARD}/{folder.name}"


@cache
def measured() -> Mapping[tuple[str, str], Mapping[str, Sequence[Row]]]:
    """Return the right cases that have a time, by operator and problem, then by folder."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for folder in folders():
        for row in rows(read_run(run_file(REPORTS / folder))):
            if row.ranked:
                found.setdefault((row.operator, row.problem), {}).setdefault(folder, []).append(row)
    return found


def kernel_s(row: Row) -> float:
    """Return the time of a case with the events' share that the goals have."""
    assert row.times is not None
    return row.times.time_s if row.times.kernel_s is None else row.times.kernel_s + EVENTS_S


def deciding(runs: Mapping[str, Sequence[Row]], meets: Callable[[Row], bool]) -> tuple[str, Row] | None:
    """Return folder and row of the fastest case."""
    cases = ((folder, row) for folder, table in runs.items() for row in table if meets(row))
    return min(cases, key=lambda one: kernel_s(one[1]), default=None)


def operator_goal(entry: Mapping[str, Any]) -> Goal:
    """Return the goal of an entry [[operator]] with its measurement."""
    relative = "of_library" in entry
    ratio = entry["of_library"] if relative else entry["goal_us"] / entry["pytorch_us"]
    goal = Goal(
        entry["name"],
        f"≤ {ratio:g} × library" if relative else f"≤ {entry['goal_us']} µs",
        limit=entry.get("limit", ""),
        next=entry.get("next", ""),
    )
    runs = measured().get((entry["operator"], entry["problem"]), {})
    precision, library = entry.get("precision"), entry.get("library")
    chosen = deciding(runs, lambda row: not row.library and precision in (None, row.precision))
    if chosen is None:
        return goal
    folder, row = chosen
    peers = [r for r in runs[folder] if r.library and r.precision == row.precision and library in (None, r.variant)]
    peer_s = min(map(kernel_s, peers), default=None)
    return replace(
        goal,
        source=folder,
        ours_s=kernel_s(row),
        allowed_s=peer_s and ratio * peer_s,
        library_s=peer_s,
        variant=row.variant,
        of_peak=f"{units.percent(row.peak_share)} ({row.bound})" if row.peak_share else "–",
    )


def network_goal(entry: Mapping[str, Any]) -> Goal:
    """Return the goal of an entry [[network]] with its time: of steps back to back, of inference from a cold L2."""
    goal_s, source = entry["goal_us"] * 1e-6, entry.get("record", "")
    goal = Goal(
        entry["name"], f"≤ {units.time(goal_s)}", source, limit=entry.get("limit", ""), next=entry.get("next", "")
    )
    if not source:
        return goal
    if is_network(REPORTS / source):
        network = read_network(REPORTS / source)
        ours, others = network.total, [peer.times for peer in network.peers.values()]
    else:
        training = read_training(REPORTS / source)
        modes = training.comparison.ways.values() if training.comparison else ()
        ours, others = training.times.hot, [mode.hot for mode in modes]
    assert ours is not None
    peer_s = min((times.median_s for times in others if times), default=None)
    allowed_s = peer_s and goal_s / entry["pytorch_us"] * 1e6 * peer_s
    return replace(goal, ours_s=ours.median_s, allowed_s=allowed_s, library_s=peer_s)


@cache
def goals() -> Mapping[str, Sequence[Goal]]:
    """Return the goals of operators and of networks, in the order of the file."""
    content = tomllib.loads(GOALS.read_text(encoding="utf-8"))
    return {
        "operators": [operator_goal(entry) for entry in content["operator"]],
        "networks": [network_goal(entry) for entry in content["network"]],
    }


def table_of(kind: str) -> str:
    """Return the number of goals of a kind that are reached, and the table of all of them."""
    own = ["variant", "of peak"] if kind == "operators" else []
    head = [kind.removesuffix("s"), "outcome", "goal", "allowed", "time", "library", *own, "run"]
    lines = [f"{sum(goal.reached for goal in goals()[kind])} of {len(goals()[kind])} goals are reached.", ""]
    rows = []
    for goal in goals()[kind]:
        link = f"[{goal.source}](../reports/{goal.source})" if goal.source else "–"
        middle = [f"`{goal.variant}`" if goal.variant else "–", goal.of_peak or "–"] if own else []
        times = [units.time(seconds) if seconds else "–" for seconds in (goal.allowed_s, goal.ours_s, goal.library_s)]
        outcome = goal.outcome if goal.reached else f"**{goal.outcome}**"
        rows.append((goal.name, outcome, goal.text, *times, *middle, link))
    return "\n".join([*lines, *markdown_table(head, rows, left={*range(len(head))} - {3, 4, 5})])


def table_of_missed() -> str:
    """Return the table of the goals that are not reached, with what is known of them."""
    rows = []
    for goal in (one for group in goals().values() for one in group if not one.reached):
        over = units.ratio(goal.over) if goal.over else "–"
        rows.append((goal.name, over, goal.limit, goal.next))
    return "\n".join(markdown_table(("goal", "time / allowed", "limit", "next step"), rows, left=(0, 2, 3)))


def goals_page(text: str) -> str:
    """Return the page with its generated tables."""
    parts = {"operators": table_of("operators"), "networks": table_of("networks"), "missed": table_of_missed()}
    return MARKED.sub(lambda hit: f"{hit[1]}{parts[hit[2]]}\n{hit[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(goals_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
