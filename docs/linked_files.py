"""What pages of docs/ link to outside it becomes part of the site: pages, sources as text, figures as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
SHOWN = {".md", ".png", ".svg", ".html"}
"""What a browser is given as it is; anything else is text, or a file to take."""
BINARY = {".gz", ".npy", ".safetensors"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to, and what that links to in turn."""
    waiting = [Path(file.abs_src_path or "") for file in files if file.is_documentation_page()]
    added: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for target in _targets(page.parent, page.read_text(encoding="utf-8")):
            if target in added or target.is_relative_to(config.docs_dir) or not target.exists():
                continue
            added.add(target)
            files.append(_file(target, config))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from one place of the repository to another as links from one place of the site to another."""
    source = page.file.abs_src_path
    here = Path(source).parent if source else ROOT

    def moved(found: re.Match[str]) -> str:
        target = _target(here, found[1])
        if target.is_relative_to(config.docs_dir) and here.is_relative_to(config.docs_dir):
            return found[1]
        return _relative(_uri(target, config), page.file.src_uri) if target.exists() else found[1]

    parts = CODE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(parts))


def _targets(folder: Path, text: str) -> list[Path]:
    return [_target(folder, link) for link in LINK.findall(CODE.sub("", text))]


def _target(folder: Path, link: str) -> Path:
    """What a link names: of a folder its README, if there is one."""
    path = (folder / link).resolve()
    return path / "README.md" if (path / "README.md").exists() else path


def _uri(target: Path, config: MkDocsConfig) -> str:
    """Where a file of the repository lies on the site."""
    if target.is_relative_to(config.docs_dir):
        return target.relative_to(config.docs_dir).as_posix()
    name = target.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "readme.md"  # docs/index.md is the site's first page
    if target.is_dir():
        return f"{name}/index.md"
    return name if target.suffix in SHOWN | BINARY else f"{name}.txt"


def _relative(uri: str, page: str) -> str:
    return "../" * page.count("/") + uri


def _file(target: Path, config: MkDocsConfig) -> File:
    """A file of the site that no menu lists; a folder is a page of what it holds."""
    uri, level = _uri(target, config), InclusionLevel.NOT_IN_NAV
    if target.is_dir():
        names = sorted(path.name + "/" * path.is_dir() for path in target.iterdir())
        listing = "".join(f"- `{name}`\n" for name in names)
        title = target.relative_to(ROOT).as_posix()
        return File.generated(config, uri, content=f"# {title}\n\nIn the repository:\n\n{listing}", inclusion=level)
    return File.generated(config, uri, abs_src_path=str(target), inclusion=level)
