"""What a run is in a notebook: a line, a table as HTML, a frame and figures."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas
import pytest

import opbench
from opbench import Builder, Network
from opbench.checking.backends import open_backend
from opbench.graph.graph import MAX_SHOWN_NODES, Graph
from opbench.graph.passes import apply_passes
from opbench.graph.zoo import NETWORKS
from opbench.networks.plan.plan import PlanOptions, choose
from opbench.report.charts.svg import to_png
from opbench.results.files import Run
from opbench.results.header import RunHeader
from opbench.results.rows import COLUMNS, FORMER_COLUMNS
from opbench.results.showing import MAX_ROWS
from support.builders.runs import result, run
from support.common import ROOT

QUICK = ROOT / "reports/h200/quick"
LENET = ROOT / "reports/h200/networks/lenet-1-f32"


class Cells(HTMLParser):
    """Rows of cells; fails where a tag is left open or is none of ours."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, self.open
        self.table = [row for row in self.rows if row]

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in {"div", "p", "b", "br", "code", "table", "thead", "tbody", "tr", "th", "td"}
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.rows[-1].append(data)


def shown(found: Run | Graph | Network) -> str:
    return found._repr_html_()


def test_a_run_is_one_line_however_large() -> None:
    found = opbench.read_run(QUICK)
    assert repr(found).startswith("<Run quick on NVIDIA H200, ") and "\n" not in repr(found)
    assert f"{len(found.results)} cases: " in repr(found) and len(repr(found)) < 200
    assert repr(Run(Path("x"), RunHeader(), [])) == "<Run run on the unknown backend, 0 cases, unfinished, in x>"


def test_what_is_wrong_comes_first_then_the_fastest() -> None:
    found = run(
        [
            result("slow", 2e-3),
            result("quick", 1e-3),
            result("off", status="wrong", reason="out[3]: got 1, want 2"),
        ]
    )
    rows = Cells(shown(found)).table
    assert [row[0] for row in rows] == ["off", "quick", "slow"]
    assert rows[0][1] == "wrong: out[3]: got 1, want 2" and rows[0][2] == "–"
    assert rows[1][2] == "1.00 ms" and rows[1][3] == "990 µs – 1.01 ms" and rows[1][5] == "1"
    assert rows[2][3] == "1.98–2.02 ms", "as everywhere: the unit once"
    assert shown(found).count("relu(n=1000000000)") == 1, "the problem stands above its variants"


def test_nothing_of_a_run_is_taken_for_html() -> None:
    evil = "<script>alert('x')</script>&amp;"
    found = run([result("k", status="wrong", reason=evil)])
    found.folder, found.warnings = Path(evil), [evil]
    found.header = replace(found.header, suite=evil)
    text = shown(found)
    assert "<script" not in text and text.count("&lt;script&gt;") == 4
    assert Cells(text).table[0][1] == f"wrong: {evil}"


def test_a_long_run_is_cut_short_and_says_so() -> None:
    found = run([result(f"v{number}", 1e-3 + number * 1e-6) for number in range(MAX_ROWS + 5)])
    assert len(Cells(shown(found)).table) == MAX_ROWS
    assert "and 5 more: run.frame()" in shown(found)


@pytest.mark.parametrize("folder", [QUICK, LENET])
def test_the_frame_is_what_load_gives(folder: Path) -> None:
    found = opbench.read_run(folder)
    pandas.testing.assert_frame_equal(found.frame(), opbench.load(folder))
    assert list(found.frame().columns) == [*COLUMNS, *FORMER_COLUMNS] and len(found.frame()) == len(found.results)
    Cells(shown(found))


def test_the_figures_are_those_of_the_report(tmp_path: Path) -> None:
    from opbench.report import write_report

    found = opbench.read_run(QUICK)
    drawn = opbench.figures(found)
    written = {path.stem for path in write_report(found, tmp_path) if path.suffix == ".png"}
    assert set(drawn) == written and len(drawn) > 3
    name = sorted(drawn)[0]
    assert to_png(drawn[name])[:4] == b"\x89PNG"
    assert all(figure.axes for figure in drawn.values())


def test_the_figures_of_a_network_and_of_a_run_without_a_gpu() -> None:
    assert set(opbench.figures(opbench.read_run(LENET))) == {"timeline", "memory"}
    on_cpu = run([result("k")])
    on_cpu.header = replace(on_cpu.header, backend="cpu")
    assert isinstance(opbench.figures(on_cpu), dict)


def test_a_network_shows_its_nodes_and_who_serves_them() -> None:
    graph, _ = apply_passes(NETWORKS["lenet"]())
    assert repr(graph) == "<Graph lenet: 7 nodes, 61,706 weights, 833 kFLOP>"
    cases = choose(graph, {}, PlanOptions("f32")).cases(graph)
    network = Network(graph, cases, open_backend("cpu"))
    try:
        assert repr(network) == "<Network lenet: 7 nodes, 61,706 weights, 833 kFLOP, on the cpu backend>"
        served = Cells(shown(network)).table
    finally:
        network.close()
    plain = Cells(shown(graph)).table
    assert [row[:3] for row in served] == plain and [row[0] for row in plain] == [node.name for node in graph.nodes]
    assert all(cases[row[0]].name.startswith(f"{cases[row[0]].variant.operator}/{row[3]}") for row in served)


def test_a_large_graph_is_cut_and_its_names_are_no_html() -> None:
    net = Builder("<b>")
    x = net.input("image", 1, 1, 4, 4)
    for number in range(MAX_SHOWN_NODES + 2):
        x = net.relu(x, name=f"<i>{number}")
    text = shown(net.graph(x))
    assert len(Cells(text).table) == MAX_SHOWN_NODES and "and 2 more nodes" in text and "&lt;i&gt;0" in text
