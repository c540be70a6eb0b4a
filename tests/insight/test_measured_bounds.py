"""No lower bound passes the time that a GPU took: the committed runs, those of the H100 with counts of the CPU."""

from __future__ import annotations

import functools
import statistics

import pytest

from opbench.errors import OpbenchError
from opbench.gpu.compile.resources import resources_of
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.insight.instructions import executed_instructions
from opbench.insight.levels import Bound, Levels, case_bounds, counted_bounds, levels, unit_bounds
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.results.files import Run, read_run
from support.common import ROOT
from support.needs import needs_nvrtc

ALLOWED = 1.02
PROBED = 1.03
"""Of the compulsory bytes: the fastest kernels pass the copy that measured the peak by up to 2.1 % on an H200."""
OTHER_COMPILER = 1.03
"""Of instructions: a release of NVRTC may compile a kernel of 40 instructions with one more."""
SAMPLE = 14
CATALOG = Catalog(())


@functools.cache
def run(name: str) -> Run:
    return read_run(ROOT / "reports" / name)


def find(case: str) -> Case | None:
    """A case of a run that the catalog still has."""
    try:
        return CATALOG.case(case)
    except OpbenchError:
        return None


def too_long(bounds: list[Bound], time_s: float, allowed: float) -> list[tuple[str, float]]:
    return [(bound.limit, bound.time_s / time_s) for bound in bounds if bound.time_s > allowed * time_s]


def test_memory_levels_and_launches() -> None:
    counted, measured = run("h100/counters-cpu"), run("h100/counters")
    resources = {result.case: result.resources for result in counted.results}
    peaks = committed_ceilings("h100")
    compared, wrong = 0, {}
    for result in measured.results[::3]:
        traffic = counted.traffic.get(result.case)
        found = levels(traffic, resources[result.case]) if traffic else None
        if result.status != "right" or result.measurement is None or found is None:
            continue
        bounds = case_bounds(CATALOG.case(result.case), found, peaks)
        compared += 1
        if bad := too_long(bounds, result.measurement.median_s, ALLOWED):
            wrong[result.case] = bad
    assert compared > 200 and wrong == {}


def test_what_the_hardware_counted() -> None:
    measured = run("h100/counters")
    assert measured.ceilings is not None and len(measured.counters) > 250
    shares = []
    for name, counters in measured.counters.items():
        bounds = counted_bounds(counters, "h100", measured.ceilings, None)
        assert too_long(bounds, counters["time_s"], ALLOWED) == [], name
        shares.append(bounds[0].time_s / counters["time_s"])
    assert max(shares) > 0.8, "some case comes near to its limit"


@pytest.mark.parametrize("name", ["h200/quick", "h200/hopper"])
def test_problems_of_all_sizes(name: str) -> None:
    measured = run(name)
    assert measured.ceilings is not None
    compared, wrong = 0, {}
    for result in measured.results[::2]:
        case = find(result.case) if result.status == "right" and result.measurement else None
        if case is None or result.measurement is None:
            continue
        bounds = case_bounds(case, Levels(0, 0, 0, 0), measured.ceilings)
        compared += 1
        if bad := too_long(bounds, result.measurement.median_s, PROBED):
            wrong[result.case] = bad
    assert compared > 60 and wrong == {}


@needs_nvrtc
def test_units_by_a_sample_of_cases() -> None:
    """Instructions are at most those that the hardware counted, often exactly as many, and no unit takes longer."""
    counted, measured = run("h100/counters-cpu"), run("h100/counters")
    names = sorted(name for name in measured.counters if name in counted.traffic and "torch" not in name)
    cases = [case for name in names[:: len(names) // SAMPLE] if (case := find(name))]
    ratios = {}
    for index, compiled in resources_of(cases, "h100", blocks=True):
        name = cases[index].name
        executed = executed_instructions(counted.traffic[name], compiled.kernels)
        assert executed is not None, name
        counters = measured.counters[name]
        ratios[name] = executed.total / counters["instructions"]
        assert too_long(unit_bounds(executed, "h100"), counters["time_s"], ALLOWED) == [], name
    assert len(ratios) >= SAMPLE - 2
    assert {name: ratio for name, ratio in ratios.items() if ratio > OTHER_COMPILER} == {}
    assert statistics.median(ratios.values()) > 0.5
