"""Each time, rate and speedup that a document states is in the measurement that its section links to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evidence import ROOT
from opbench.networks.records.network import is_network, read_network
from opbench.networks.records.training import is_training, read_training
from opbench.records import plain_name, unpacked
from opbench.results.files import FILE, read_run, run_file
from opbench.results.rows import rows

FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)? (?:ns|µs|ms|[GT]B/s|[GT]FLOP/s)(?![\w/])|(?<![\w.])\d[\d.]*×")
NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(?: ?(ns|us|µs|ms|[GT]B/s|[GT]FLOP/s|×)(?![\w/])|(?![\w.]))")
SCALES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "G": 1e9, "T": 1e12, "×": 1.0}
GENERATED = re.compile(r"<!-- (\w+)(: written by opbench ladder)? -->.*?<!-- (/|end of )\1 -->", re.DOTALL)
"""`opbench ladder --check` compares these with the runs."""
CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
"""The tests of the pages run these."""

NOT_FROM_A_GPU = {
    ("architecture.md", "## Alternatives that were tried"): "of the host, while the alternative was tried",
    ("clusters.md", "## What it costs"): "of the host, from the simulation that the section names",
    ("untrusted.md", "## What it costs"): "of the host, from `make bench`",
    ("tuning.md", "## Energy instead of time"): "how often NVML's counter changes",
    ("cpu.md", "## Counts and lower bounds"): "in the console block above, which a test runs",
    ("tutorial-first-kernel.md", "## Why it is slow"): "in the console block above, which a test runs",
    ("tutorial-first-kernel.md", "## Better: swap two indices"): "in the console block above, which a test runs",
}
ALLOWED_DIFFERENCES = {("measuring.md", "0.3 µs"), ("measuring.md", "0.25 µs")}
"""What the self-test's claims allow, no measurement."""


class Section(NamedTuple):
    """A part of a page under one heading."""

    page: Path
    heading: str
    text: str

    @property
    def figures(self) -> list[str]:
        """Times, rates and speedups, in the order of the text."""
        return FIGURE.findall(self.text)

    @property
    def sources(self) -> list[Path]:
        """What the section links to of the measurements; for a variant's file the README of its ladder."""
        links = (self.page.parent / link for link in re.findall(r"\]\(([^)#\s]+)\)", self.text))
        found = (path.parent / "README.md" if path.suffix in (".cu", ".py") else path for path in links)
        kept = (path.resolve() for path in found)
        return [path for path in kept if {"reports", "variants"} & set(path.relative_to(ROOT).parts[:1])]


def sections() -> list[Section]:
    """Return the sections of README and guide that state figures."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = GENERATED.sub("", CODE.sub("", page.read_text()))
        for part in re.split(r"^(?=#)", text, flags=re.MULTILINE):
            section = Section(page, part.split("\n")[0], part)
            if section.figures:
                found.append(section)
    return found


class Measured(NamedTuple):
    """The figures of one source."""

    values: frozenset[float] = frozenset()
    """In s, B/s, FLOP/s, or a speedup."""
    bare: frozenset[float] = frozenset()
    """Numbers of a log whose unit is in the head of their table or nowhere."""

    def has(self, figure: str) -> bool:
        """Return whether one of the values, rounded as the figure is, is the figure."""
        number, unit = figure.replace(",", "").replace("×", " ×").split()
        digits = len(number.partition(".")[2])
        in_its_unit = (*(value / SCALES[unit[0]] for value in self.values), *self.bare)
        return any(round(value, digits) == float(number) for value in in_its_unit)


@cache
def measured(source: Path) -> Measured:
    """Return what a linked file or folder holds."""
    if source.suffix in (".txt", ".html", ".md"):
        numbers = [(float(n.replace(",", "")), unit) for n, unit in NUMBER.findall(source.read_text())]
        return Measured(
            frozenset(value * SCALES[unit[0]] for value, unit in numbers if unit),
            frozenset(abs(value) for value, unit in numbers if not unit),
        )
    if source.suffix == ".png":
        return _rates_of_run(source.parent) if run_file(source.parent).exists() else measured(source.parent)
    if is_training(source):
        return Measured(frozenset(_times_of_training(source)))
    if plain_name(source).endswith(".jsonl") and plain_name(source) != FILE:
        lines = unpacked(source).decode().splitlines()
        return Measured(frozenset(time for line in lines for time in _times_in(json.loads(line))))
    if is_network(source):
        return Measured(frozenset(_times_of_network(source)))
    if source.is_file() or run_file(source).exists():
        return Measured()  # tables quote the README of a ladder, and `opbench ladder --check` compares that with runs
    return _union(
        map(
            measured,
            (path for path in source.iterdir() if path.is_dir() or plain_name(path).endswith((".txt", ".jsonl"))),
        )
    )


def _union(parts: Iterable[Measured]) -> Measured:
    parts = list(parts)
    return Measured(frozenset().union(*(p.values for p in parts)), frozenset().union(*(p.bare for p in parts)))


def _rates_of_run(folder: Path) -> Measured:
    times = [row.times for row in rows(read_run(run_file(folder))) if row.ranked]
    return Measured(frozenset(one.flops_per_s for one in times if one and one.flops_per_s))


def _times_in(value: Any) -> Iterable[float]:
    """Yield the times of a record: numbers under names that end in `_s`."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        if name.endswith("_s") and isinstance(inner, int | float):
            yield inner
        yield from _times_in(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _times_in(inner)


def _times_of_training(folder: Path) -> Iterable[float]:
    record = read_training(folder)
    if record.times.hot:  # as the table of trainings
        yield record.times.hot.median_s
    if record.exchange:
        yield from (record.exchange.step_s, record.exchange.alone_s)


def _times_of_network(folder: Path) -> Iterable[float]:
    record = read_network(folder)
    peers = [peer.times.median_s for peer in record.peers.values() if peer.times]
    choices = record.attribution.alternatives if record.attribution else ()
    saved = [abs(choice.difference.value) for choice in choices if choice.difference]
    nodes = [seconds for node in record.nodes for seconds in (node.kernel_s, node.bound_s) if seconds]
    return [*peers, *saved, *nodes, *([record.total.median_s] if record.total else [])]


SECTIONS = sections()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: f"{s.page.stem}-{s.heading.strip('# ')}")
def test_a_figure_is_in_the_measurement_that_its_section_links_to(section: Section) -> None:
    if (section.page.name, section.heading) in NOT_FROM_A_GPU:
        return
    known = _union(map(measured, section.sources))
    allowed = [figure for page, figure in ALLOWED_DIFFERENCES if page == section.page.name]
    assert [figure for figure in section.figures if figure not in allowed and not known.has(figure)] == []


def test_a_wrong_figure_is_found() -> None:
    source = ROOT / "reports/h100/ship"
    text = f"A run of UNet takes 2.30 ms, or 2.31 ms ([log](../{source.relative_to(ROOT)}))."
    section = Section(ROOT / "docs/shipping.md", "", text)
    assert [figure for figure in section.figures if not measured(*section.sources).has(figure)] == ["2.31 ms"]
