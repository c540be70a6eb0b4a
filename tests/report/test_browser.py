"""The report in a real browser: headless Chromium draws it without an error and without the network."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from opbench.paths import shipped_folder
from opbench.report import write_report
from opbench.results.files import read_run
from support.builders.runs import result
from support.builders.runs import run as run_of
from support.checks.chromium import browser, needs_chromium, opened


@needs_chromium
@pytest.mark.parametrize("name", ["quick", "ceilings"])
def test_a_committed_run_opens_in_chromium(tmp_path: Path, name: str) -> None:
    run = read_run(shipped_folder("reports") / "h200" / name)
    write_report(run, tmp_path, "h200")
    page, shot = tmp_path / "report.html", tmp_path / "page.png"
    dom = opened(tmp_path, page.as_uri())
    assert dom.count("<tr") >= len(run.results), "every case has a row"
    assert 0 < dom.count('class="copy"') == page.read_text(encoding="utf-8").count("<dd><pre>"), "each command"
    assert not re.search(r'(?:src|href)="(?:https?:)?//', dom), "nothing is loaded from a network"
    command = [*browser(tmp_path), "--window-size=1400,1200", f"--screenshot={shot}", page.as_uri()]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert shot.stat().st_size > 20_000, "a blank page is smaller"


@needs_chromium
def test_the_filter_takes_any_link_and_hides_operators_from_the_contents(tmp_path: Path) -> None:
    found = run_of([result("naive", 1e-3), result("naive", 1e-3, operator="add"), result("fft", 1e-3, operator="add")])
    address = write_report(found, tmp_path, "h200")[0].as_uri()
    hidden = re.compile(r'<a href="#operator-(\w+)" hidden="">')
    assert hidden.findall(opened(tmp_path, f"{address}#filter=fft")) == ["relu"]
    assert hidden.findall(opened(tmp_path, f"{address}#filter=%")) == ["relu", "add"], "no URI, and no error"
