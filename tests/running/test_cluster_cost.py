"""How the cost of a sweep grows, on a fake clock and the real dispatcher; the page's table is what it says."""

from __future__ import annotations

from support.common import ROOT
from support.fakes.simulated_cluster import Costs, problems_of, simulate, table


def test_every_case_is_judged_once_however_often_workers_die() -> None:
    problems = problems_of(3000)
    rough = simulate(problems, 20, Costs(between_deaths=100.0))
    assert rough.judged == 3000 and rough.deaths > 30 and 0 < rough.failed < rough.deaths / 2
    calm = simulate(problems, 20, Costs())
    assert calm.judged == 3000 and calm.deaths == calm.failed == calm.again == 0 and calm.wall_s < rough.wall_s


def test_the_page_shows_what_the_simulation_says() -> None:
    assert "\n".join(["", *table(), ""]) in (ROOT / "docs" / "clusters.md").read_text()
