"""Render HTML pages from templates; all values are escaped, and unknown names are errors."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from opbench import units
from opbench.errors import EnvironmentFault
from opbench.paths import cache_folder, write_atomically


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode("utf-8"))
    except OSError as error:
        raise EnvironmentFault(
            f"{path}: this file cannot be written: {error.strerror or error}; choose another --out FILE",
            kind="unwritable",
            subject=path,
            value=error.errno,
        ) from None
