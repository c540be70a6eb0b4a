"""The guide as a site: it opens without a server, fetches nothing from elsewhere, and its search finds pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.checks.chromium import browser, needs_chromium
from support.common import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    pytest.importorskip("material", reason="make docs installs mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return folder


def test_no_page_of_the_guide_fetches_anything_from_elsewhere(site: Path) -> None:
    fetched = re.compile(
        r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)"|<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]*)"'
    )
    found = {page.name: fetched.findall(page.read_text()) for page in site.glob("*.html")}
    assert found and not any(found.values()), found


def test_nothing_that_the_site_is_made_with_is_elsewhere() -> None:
    """The whole site, with its theme and plugins, is built by `make test-all`."""
    settings = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"^(?:extra_css|extra_javascript): \[(.*)\]$|polyfills: \[(.*)\]", settings, re.MULTILINE)
    files = [name.strip() for groups in named for name in ",".join(groups).split(",") if name.strip()]
    assert "site.css" in files and "font: false" in settings and not [name for name in files if "//" in name]


@needs_chromium
def test_the_search_of_a_page_opened_as_a_file_finds_pages(site: Path, tmp_path: Path) -> None:
    address = f"file://{site}/index.html?q=swizzle"
    command = [*browser(tmp_path), "--virtual-time-budget=30000", "--dump-dom", address]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int((re.findall(r"(\d+) matching document", dom.stdout) or [0])[0]) > 2
    assert [line for line in dom.stderr.splitlines() if "CONSOLE" in line] == []
