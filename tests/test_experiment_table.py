"""The table of experiments in the guide is that of the committed measurement."""

from __future__ import annotations

import json
import re

from opbench import units
from opbench.gpu.compile.knockout_classes import ADDRESS_ARITHMETIC, INSTRUCTION_CLASSES, INTEGERS
from opbench.report.experiment import NAMES
from opbench.results.experiment import ClassCost, Experiment
from opbench.results.files import read_run
from opbench.tables import markdown_table
from support.common import CATALOG, ROOT, read_experiments

COMMITTED = ROOT / "reports/h100/experiments/experiments.jsonl.xz"
ADDRESSES = ROOT / "reports/h200/experiments/addresses.jsonl.xz"
STALLS = COMMITTED.with_name("stalls.json")
LADDER = ROOT / "reports/h100/repeat-1"
"""A run of the ladders on the GPU model of COMMITTED."""
PAGE = ROOT / "docs/advice.md"


def cell(cost: ClassCost | None, total_s: float) -> str:
    """The share of the kernel's time that a class exposes, with the mark of a bound."""
    if cost is None or cost.exposed_s is None:
        return "" if cost is None or cost.reason == "no-conflicts" else "?"
    bound = "≤ " if cost.upper_bound else "≥ " if cost.lower_bound else ""
    return f"{bound}{100 * cost.exposed_s / total_s:.0f} %".replace("-0 %", "0 %").replace("-", "−")


def kernel(experiment: Experiment) -> str:
    """The name of a variant."""
    return re.split(r"\[|\(", experiment.case)[0]


def names_of(experiments: list[Experiment]) -> list[str]:
    """The classes that an experiment knows, in order."""
    known = {cost.name for one in experiments for cost in one.classes}
    return [name for name in INSTRUCTION_CLASSES if name in known]


def table(experiments: list[Experiment]) -> list[str]:
    """The lines of the table."""
    head = [
        "kernel",
        "time",
        *(NAMES[name].replace("shared-memory accesses", "shared memory") for name in names_of(experiments)),
    ]
    rows = []
    for one in experiments:
        assert one.total_s
        costs = {cost.name: cost for cost in one.classes}
        cells = [cell(costs.get(name), one.total_s) for name in names_of(experiments)]
        rows.append((f"`{kernel(one)}`", units.time(one.total_s), *cells))
    return markdown_table(head, rows)


WAITS = {
    "global memory": (("long_sb", "lg"), ("global-loads", "global-stores")),
    "shared memory": (("short_sb", "mio"), ("shared",)),
    "barriers": (("barrier",), ("barriers",)),
}
"""For a kind of work Nsight Compute's reasons of stalls, and the classes that are removed."""


def stall_table(experiments: list[Experiment]) -> list[str]:
    """The lines of the table of stalls."""
    rows = []
    by_case = {one.case: one for one in experiments}
    for profile in json.loads(STALLS.read_text(encoding="utf-8")):
        one, samples = by_case[profile["case"]], profile["samples"]
        exposed = {cost.name: cost.exposed_s or 0.0 for cost in one.classes}
        cells = []
        for reasons, names in WAITS.values():
            share = sum(samples.get(f"stall_{reason}", 0) for reason in reasons) / sum(samples.values())
            assert one.total_s
            saved = sum(exposed.get(name, 0.0) for name in names) / one.total_s
            cells += [f"{100 * share:.0f} %", f"{100 * saved:.0f} %".replace("-", "−")]
        rows.append((f"`{kernel(one)}`", *cells))
    return markdown_table(("kernel", *(text for kind in WAITS for text in (f"stalls: {kind}", "exposed"))), rows)


def address_table(experiments: list[Experiment]) -> list[str]:
    """The lines of the table of address arithmetic."""
    headings = ("kernel", "time", "exposed", "integer instructions in innermost loops", "registers per thread")
    rows = []
    for one in experiments:
        assert one.total_s
        cost = next(cost for cost in one.classes if cost.name == ADDRESS_ARITHMETIC)
        slower = cost.detail.replace("it takes", "slower:")
        missing = {"slower": slower, "outside-loops": "not applicable"}.get(cost.reason)
        changes = [f"{change.before} → {change.after}" for change in cost.changes if change.group == INTEGERS]
        cells = [missing or cell(cost, one.total_s), "".join(changes), " → ".join(map(str, cost.registers or ()))]
        rows.append((f"`{kernel(one)}`", units.time(one.total_s), *cells))
    return markdown_table(headings, rows)


def shown(name: str) -> list[str]:
    """The lines of a table in the guide."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0].splitlines()


def test_the_guide_shows_the_committed_experiments() -> None:
    experiments = read_experiments(COMMITTED)
    assert shown("experiments") == table(experiments)
    assert shown("stalls") == stall_table(experiments)
    assert shown("addresses") == address_table(read_experiments(ADDRESSES))


def test_without_bank_conflicts_a_transpose_takes_as_long_as_the_variant_without_them() -> None:
    times = {
        r.variant: r.measurement.median_s
        for r in read_run(LADDER).results
        if r.operator == "transpose" and r.measurement
    }
    one = next(one for one in read_experiments(COMMITTED) if one.case.startswith("transpose/shared"))
    cost = next(cost for cost in one.classes if cost.name == "bank-conflicts")
    assert cost.without_s and abs(cost.without_s / times["padded"] - 1) < 0.02
    (line,) = re.findall(r"^- Without bank conflicts, [^.]+\. [^.]+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"\d+ µs", line) == [units.time(cost.without_s), units.time(times["padded"])]


def test_each_record_is_of_one_card_and_of_shipped_cases() -> None:
    for path, gpu in ((COMMITTED, "NVIDIA H100 80GB HBM3"), (ADDRESSES, "NVIDIA H200")):
        found = read_experiments(path)
        assert {one.gpu for one in found} == {gpu} and len(found) >= 10
        assert all(CATALOG.case(one.case).name == one.case and one.source == "measured" for one in found)
        assert path.stat().st_size < 100_000
