"""Long pages on a narrow screen and by their links: 400 px wide, contents, the filter of a comparison."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from opbench.judging.page import verdict_page
from opbench.networks.records.training import read_training
from opbench.networks.report import read_network
from opbench.networks.report.page import write_network
from opbench.networks.report.training import write_training
from opbench.paths import shipped_folder
from opbench.report import comparison, write_report
from opbench.report.agreement import provenance, write_agreement
from opbench.report.history import to_page
from opbench.report.tuning_page import write_tuning
from opbench.results import agreement, history
from opbench.results.comparison import compare_runs
from opbench.results.files import read_run
from support.builders.runs import matmul_run, measured, noisy, pair
from support.checks.chromium import needs_chromium, opened
from support.common import WRONG
from support.fakes.tuning import tune_fake

pytestmark = pytest.mark.usefixtures("forked_workers")

WIDTH = 400
H100 = shipped_folder("reports") / "h100"
LENET = shipped_folder("reports") / "h200" / "networks" / "lenet-1-f32"
MEASURE = """<script>addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const root = frame.contentDocument.documentElement;
    frame.dataset.widths = frame.contentWindow.innerWidth + " " + root.scrollWidth;
    const stacked = [...root.querySelectorAll(".scroll")].filter((box) => box.querySelector("table.stacked"));
    frame.dataset.tables = stacked.length + " " + stacked.filter((box) => box.scrollWidth > box.clientWidth).length;
    const small = [...root.querySelectorAll("figure.small")];
    frame.dataset.small = small.length + " " + small.filter((box) => box.scrollWidth > box.clientWidth).length;
    frame.removeAttribute("srcdoc");
  }
})</script>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    compared = folder / "comparison.html"
    compared.write_text(comparison.to_page(compare_runs(*pair())), encoding="utf-8")
    (folder / "training").mkdir()
    known = history.open_database(None)
    history.add_runs(known, history.find_runs([H100 / "repeat-1", H100 / "repeat-2"]))
    over_time = folder / "history.html"
    over_time.write_text(to_page(history.all_series(known), 0.01), encoding="utf-8")
    known.close()
    with pytest.MonkeyPatch.context() as patch:
        search = tune_fake(folder, patch.setattr, budget_s=2)
    cpu, gpu = read_run(H100 / "counters-cpu"), read_run(H100 / "counters")
    kernel, refused = folder / "mine.cu", folder / "verdict.html"
    kernel.write_text(WRONG)
    document = judge([kernel], JudgeOptions(backend="cpu", drawn=0, seed=7, no_cage=True))
    assert document.overall == "refused"
    refused.write_text(verdict_page(document), encoding="utf-8")
    return {
        "report": write_report(matmul_run((512, 1024)), folder / "report")[0],
        "comparison": compared,
        "history": over_time,
        "tuning": write_tuning(*search),
        "agreement": write_agreement(agreement.compare_runs(cpu, gpu), folder, "Agreement", provenance(cpu, gpu))[0],
        "network": write_network(read_network(LENET), folder / "network")[0],
        "attribution": write_network(read_network(H100 / "attribution" / "unet-1-bf16"), folder / "attribution")[0],
        "verdict": refused,
        "training": write_training(read_training(H100 / "trainings" / "lenet-128-f32"), folder / "training")[0],
    }


@needs_chromium
def test_no_page_is_wider_than_a_phone(pages: dict[str, Path], tmp_path: Path) -> None:
    frames = []
    for name, path in {**pages, "too_wide": None}.items():
        text = path.read_text(encoding="utf-8") if path else '<p style="width: 600px">wide</p>'
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        frames.append(f'<iframe id="{name}" width="{WIDTH}" height="800" srcdoc="{html.escape(text)}"></iframe>')
    outer = tmp_path / "narrow.html"
    outer.write_text("<!DOCTYPE html><meta charset='utf-8'>" + "".join(frames) + MEASURE, encoding="utf-8")
    dom = opened(tmp_path, outer.as_uri())
    found = dict(re.findall(r'<iframe id="(\w+)"[^>]*data-widths="(\d+ \d+)"', dom))
    widths = {name: tuple(map(int, both.split())) for name, both in found.items()}
    assert widths.keys() == {*pages, "too_wide"} and {inner for inner, _ in widths.values()} == {WIDTH}
    assert [name for name, (inner, scrolled) in widths.items() if scrolled > inner] == ["too_wide"]
    small = dict(re.findall(r'<iframe id="(\w+)"[^>]*data-small="(\d+ \d+)"', dom))
    assert small["training"] == "1 0", "the chart of losses fits, without scrolling"
    tables = dict(re.findall(r'<iframe id="(\w+)"[^>]*data-tables="(\d+ \d+)"', dom))
    labels = re.findall(r'data-label="([^"]*of all)"', opened(tmp_path, pages["training"].as_uri()))
    assert set(labels) == {"FLOPs, of all", "bytes, of all", "time, of all"}, "each says of what"
    assert [name for name, counts in tables.items() if counts.startswith("0 ")] == ["too_wide"], "their rows are blocks"
    assert [name for name, counts in tables.items() if not counts.endswith(" 0")] == [], "and no block is cut"


def test_every_link_of_the_contents_has_its_place(pages: dict[str, Path]) -> None:
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        contents = re.search(r'<nav aria-label="Contents">(.*?)</nav>', text, re.S)
        assert contents, name
        links = [link for link in re.findall(r'href="#([^"]*)"', contents[1]) if not link.startswith("filter=")]
        assert len(links) > 2 and set(links) <= set(re.findall(r'\bid="([^"]+)"', text)), name


def test_headings_that_sort_have_the_script_that_sorts(pages: dict[str, Path]) -> None:
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        assert 'class="sort"' not in text or "aria-sort" in text.partition("<script>")[2], name


@needs_chromium
def test_a_link_shows_one_verdict_and_no_case_that_is_called_like_it(tmp_path: Path) -> None:
    base, new = pair()
    for run, seconds in ((base, 1e-3), (new, 5e-4)):
        run.results.append(measured("slower_once", noisy(3, seconds)))
    page = tmp_path / "comparison.html"
    page.write_text(comparison.to_page(compare_runs(base, new)), encoding="utf-8")
    assert '<a href="#filter=is:slower">only SLOWER (2)</a>' in page.read_text(encoding="utf-8")
    dom = opened(tmp_path, f"{page.as_uri()}#filter=is:slower")
    rows = re.findall(r'<tr data-name="is:(\w+) [^"]*"[^>]*?( hidden="")?>', dom)
    assert [verdict for verdict, hidden in rows if not hidden] == ["SLOWER", "SLOWER"] and len(rows) == 9
