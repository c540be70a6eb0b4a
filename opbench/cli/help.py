"""`opbench help`: sections of the guide on the terminal."""

from __future__ import annotations

import re
import textwrap

import click

from opbench.backend.rules import GUIDE, RULES
from opbench.errors import EnvironmentFault, UsageError, unknown
from opbench.paths import shipped


@click.group("help", invoke_without_command=True)
@click.pass_context
def help_command(context: click.Context) -> None:
    """Explain the messages of opbench; without a topic, list the commands."""
    if context.invoked_subcommand is None and context.parent is not None:
        click.echo(context.parent.get_help())


@help_command.command("finding", short_help="Explain a rule that a finding names, such as shared-race.")
@click.argument("name", required=False, metavar="[NAME]")
def finding_command(name: str | None) -> None:
    """Explain the rule NAME with an example and a remedy; without NAME, list the rules."""
    if name is None:
        width = max(len(rule.name) for rule in RULES)
        for rule in RULES:
            click.echo(f"{rule.name:{width}}  {rule.title}")
        click.echo("\nOne of them: opbench help finding NAME", err=True)
        return
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted not in {rule.name for rule in RULES}:
        raise UsageError(unknown("finding", name, [rule.name for rule in RULES], "opbench help finding"))
    click.echo(_to_terminal_text(section(wanted)))


def section(name: str) -> str:
    """Return the guide's section on a rule, as Markdown."""
    page = shipped("docs") / GUIDE
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{page}: cannot be read: {error.strerror}; install opbench again") from None
    found = re.search(rf"^## {re.escape(name)}$.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise EnvironmentFault(f"{page}: has no section on {name}; install opbench again")
    return found[0]


def _to_terminal_text(markdown: str) -> str:
    """Format Markdown for a terminal: paragraphs of 80 columns, code indented, no markup of headings and emphasis."""
    paragraphs = []
    for part in re.split(r"(^```.*?^```$)", markdown.strip(), flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):
            paragraphs.append(textwrap.indent("\n".join(part.splitlines()[1:-1]), "    "))
            continue
        for text in filter(None, part.strip().split("\n\n")):
            words = re.sub(r"\*\*|`", "", text.removeprefix("## "))
            paragraphs.append(textwrap.fill(words, 80, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(paragraphs)
