"""Pages from templates: every value escaped, every name known, one folder."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from opbench import units
from opbench.errors import EnvironmentFault
from opbench.paths import write_atomically


def rich_text(text: str) -> Markup:
    """Escaped text whose backticks become code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def breakable(text: str) -> Markup:
    """Escaped text that a narrow column may break after a comma or an underscore."""
    return Markup(re.sub(r"([,_])", r"\1<wbr>", str(escape(text))))


def render_template(name: str, **values: object) -> str:
    """A page from a template of this package; it knows `units` and the filters `rich` and `breakable`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"rich": rich_text, "breakable": breakable}
    return environment.get_template(name).render(units=units, **values)


def write_page(path: Path, page: str) -> None:
    """Write a page whole or not at all; raises EnvironmentFault with the reason."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode("utf-8"))
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot write: {error.strerror or error}; choose another --out FILE") from None
