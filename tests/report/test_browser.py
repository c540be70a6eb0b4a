"""The report in a real browser: headless Chromium draws it without an error and without the network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from opbench.paths import shipped
from opbench.report import write_report
from opbench.results.files import read_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs it")
@pytest.mark.parametrize("name", ["quick", "ceilings"])
def test_a_committed_run_opens_in_chromium(tmp_path: Path, name: str) -> None:
    run = read_run(shipped("reports") / "h200" / name)
    write_report(run, tmp_path, "h200")
    page, shot = tmp_path / "report.html", tmp_path / "page.png"
    command = [str(CHROMIUM), *QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]
    dom = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    console = [line for line in dom.stderr.splitlines() if "CONSOLE" in line]
    assert console == [], "the page logs errors, or its content policy stops something"
    assert dom.stdout.count("<tr") >= len(run.results), "every case has a row"
    assert not re.search(r'(?:src|href)="(?:https?:)?//', dom.stdout), "nothing is loaded from a network"
    command += ["--window-size=1400,1200", f"--screenshot={shot}", page.as_uri()]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert shot.stat().st_size > 20_000, "a blank page is smaller"
