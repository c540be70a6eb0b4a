"""Render HTML pages from templates; all values are escaped, and unknown names are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from opbench import units
from opbench.paths import cache_folder, write_file

OTHER_FOLDER = "choose another folder with --out DIR"
"""The remedy for a page that cannot be written where the command has the option --out."""


def rich_text(text: str) -> Markup:
    """Escape text and convert text between backticks to HTML code elements."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def breakable(text: str) -> Markup:
    """Escape text and allow a line break after each comma and underscore."""
    return Markup(re.sub(r"([,_])", r"\1<wbr>", str(escape(text))))


def render_template(name: str, **values: object) -> str:
    """Render a template of this package; templates may use `units` and the filters `rich` and `breakable`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        # Compiling the templates takes longer than rendering a page.
        bytecode_cache=jinja2.FileSystemBytecodeCache(str(cache_folder("templates"))),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"rich": rich_text, "breakable": breakable}
    return environment.get_template(name).render(units=units, **values)


def write_page(path: Path, page: str) -> None:
    """Write a page atomically; raise EnvironmentFault if the system refuses."""
    write_file(path, page.encode("utf-8"), "choose another --out FILE", parents=True)


def write_files(folder: Path, files: Mapping[str, bytes], remedy: str) -> list[Path]:
    """Write files by name into a folder, each atomically, and return their paths.

    Raises EnvironmentFault, with `remedy` as its end, if the system refuses.
    """
    for name, content in files.items():
        write_file(folder / name, content, remedy, parents=True)
    return [folder / name for name in files]
