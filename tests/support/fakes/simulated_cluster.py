"""A cluster on a fake clock: the real dispatcher deals problems out, workers take as long as told, some die.

What a run here costs besides the cases themselves is in it: a worker's start, the poll after which a problem is given
out, the one writer that puts each outcome on disk, and what a lost worker's problem costs when it is measured again.
`python tests/support/fakes/simulated_cluster.py` prints the table of docs/clusters.md.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from opbench.running.cluster import POLL_S
from opbench.running.dispatch import Dispatch
from opbench.tables import markdown_table

Named = tuple[int, int]


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    case: float = 1.0
    """Check and measurement of one case on its GPU."""
    reference: float = 2.0
    """What a problem costs before its first case: compiling, inputs and float64 results."""
    start: float = 10.0
    """A worker that comes or comes again: process, context, limits looked at."""
    write: float = 0.008
    """One outcome of 3 kB at the writer: decoded, checked, encoded, forced to disk; 2 ms on an idle machine, 8 on one
    with five processes a core."""
    between_deaths: float = 0.0
    """Mean life of a worker; 0 for one that never dies."""


@dataclass(frozen=True)
class Sweep:
    """What a simulated run came to."""

    wall_s: float
    ideal_s: float
    """All work over all workers, nothing else."""
    again: float
    """Cases that were run again, as a share of all."""
    deaths: int
    writer: float
    """The share of the time that the writer was busy."""
    judged: int
    failed: int

    @property
    def efficiency(self) -> float:
        """Of the workers' time, what went into cases that count."""
        return self.ideal_s / self.wall_s


def problems_of(cases: int, seed: int = 1) -> list[list[Named]]:
    """Return problems of 4 to 40 cases each, the longest first, as in a run."""
    chance, problems, left = random.Random(seed), list[list[Named]](), cases
    while left:
        size = min(left, chance.randint(4, 40))
        problems.append([(len(problems), number) for number in range(size)])
        left -= size
    return sorted(problems, key=len, reverse=True)


def simulate(problems: Sequence[Sequence[Named]], workers: int, costs: Costs, seed: int = 1) -> Sweep:
    """Run them; an event is (time, order, worker, whether it is its death)."""
    chance = random.Random(seed)
    dispatch: Dispatch[Named] = Dispatch(lambda case: f"{case[0]}.{case[1]}")
    dispatch.add(problems)
    total = sum(map(len, problems))
    events, order = list[tuple[float, int, str, bool]](), 0
    held: dict[str, list[Named]] = {}
    now = writer_free = writing = 0.0
    run_cases = deaths = judged = failed = 0
    idle = {f"w{number}": costs.start for number in range(workers)}

    while not dispatch.is_done:
        for worker, ready in list(idle.items()):
            if ready > now or not (cases := dispatch.assign(worker)):
                continue
            del idle[worker]
            held[worker] = cases
            takes = costs.reference + costs.case * len(cases)
            life = chance.expovariate(1 / costs.between_deaths) if costs.between_deaths else takes + 1
            if life < takes:
                done = max(0, int((life - costs.reference) / costs.case))
                run_cases += done
                if done < len(cases):
                    dispatch.set_current_case(worker, f"{cases[done][0]}.{cases[done][1]}")
            else:
                run_cases += len(cases)
            order += 1
            heapq.heappush(events, (now + min(life, takes), order, worker, life < takes))
        waiting = [ready for ready in idle.values() if ready > now]
        if not events or (waiting and dispatch.waiting and min(waiting) < events[0][0]):
            now = min(waiting)
            continue
        now, _, worker, died = heapq.heappop(events)
        cases = held.pop(worker)
        if died:
            deaths += 1
            if dispatch.return_lost(worker) is not None:
                failed += 1
                judged += 1
            idle[worker] = now + costs.start
            continue
        dispatch.remove_judged(worker, [f"{a}.{b}" for a, b in cases])
        dispatch.finish(worker)
        judged += len(cases)
        writing += costs.write * len(cases)
        writer_free = max(writer_free, now) + costs.write * len(cases)
        idle[worker] = max(now, writer_free) + chance.uniform(0, POLL_S)
    work = sum(costs.reference + costs.case * len(cases) for cases in problems)
    wall = max(now, writer_free)
    return Sweep(wall, work / workers, (run_cases - judged) / total, deaths, writing / wall, judged, failed)


HEADINGS = (
    "workers",
    "wall time",
    "share of workers' time in cases",
    "writer busy",
    "deaths",
    "run again",
    "wall time with deaths",
)


def table(cases: int = 100_000, counts: Sequence[int] = (1, 2, 8, 32, 100, 300)) -> list[str]:
    """Return the lines of the page's table."""
    problems, rows = problems_of(cases), list[list[str]]()
    for workers in counts:
        calm, rough = (simulate(problems, workers, Costs(between_deaths=life)) for life in (0.0, 1800.0))
        rows.append(
            [
                str(workers),
                f"{calm.wall_s / 3600:.2f} h",
                f"{calm.efficiency:.1%}",
                f"{calm.writer:.1%}",
                str(rough.deaths),
                f"{rough.again:.2%}",
                f"{rough.wall_s / 3600:.2f} h",
            ]
        )
    return markdown_table(HEADINGS, rows)


if __name__ == "__main__":
    print("\n".join(table()))
