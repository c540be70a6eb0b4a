"""`opbench help`: sections of the guide on the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

import click

from opbench.backend.rules import GUIDE_PAGE, RULES
from opbench.cli import CommandGroup
from opbench.errors import EnvironmentFault, UsageError, unknown_name
from opbench.insight.diagnosis import PROBLEMS
from opbench.insight.stalls import CAUSES, STALLS, find_stall
from opbench.kernels.mechanism import MECHANISMS
from opbench.paths import shipped_folder

SLOW_ACCESS_PAGE = "cpu.md"
"""The page of the guide in docs/ with a table of the slow accesses that `opbench explain` reports."""


class TopicGroup(CommandGroup):
    """The group `opbench help`, in which a rule or a stall reason may stand without the command that explains it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        findings = finding_names()
        topic = args[0] if args else ""
        if topic and not topic.startswith("-") and topic not in self.commands and not ctx.resilient_parsing:
            explaining = "finding" if hyphenated(topic) in findings else "stall" if find_stall(topic) else ""
            if not explaining:
                topics = [*self.commands, *findings, *STALLS]
                raise UsageError(unknown_name("topic", topic, topics, "opbench help finding"))
            args = [explaining, *args]
        return super().resolve_command(ctx, args)


@click.group("help", cls=TopicGroup, invoke_without_command=True)
@click.pass_context
def help_command(context: click.Context) -> None:
    """Explain the messages of opbench; without a topic, list the commands."""
    if context.invoked_subcommand is None and context.parent is not None:
        click.echo(context.parent.get_help())


@help_command.command("finding", short_help="Explain a rule that a finding names, such as shared-race.")
@click.argument("name", required=False, metavar="[NAME]")
def finding_command(name: str | None) -> None:
    """Explain the rule NAME with an example and a remedy; without NAME, list the rules.

    NAME may also be a slow access that opbench explain reports, such as bank-conflicts.
    """
    if name is None:
        width = max(map(len, finding_names()))
        for rule in RULES:
            click.echo(f"{rule.name:{width}}  {rule.title}")
        click.echo("\nSlow accesses, which opbench explain reports:")
        for problem in PROBLEMS:
            click.echo(f"{hyphenated(problem):{width}}  {slow_access(problem)[0]}")
        click.echo("\nFor details on one: opbench help finding NAME", err=True)
        return
    names = {rule.name: rule.name for rule in RULES} | {hyphenated(problem): problem for problem in PROBLEMS}
    key = hyphenated(name)
    known_name = names.get(key) or names.get(f"{key}s")
    if known_name is None:
        raise UsageError(unknown_name("finding", name, names, "opbench help finding"))
    if known_name in PROBLEMS:
        meaning, remedy = slow_access(known_name)
        text = f"{known_name}: {meaning}.\n\nRemedy: {remedy}.\n\nWhich lines: opbench explain FILE.cu"
        click.echo(_to_terminal_text(text))
        return
    click.echo(_to_terminal_text(section(known_name)))


def finding_names() -> list[str]:
    """Return the names that `opbench help finding` explains: the rules, then the slow accesses."""
    return [*(rule.name for rule in RULES), *map(hyphenated, PROBLEMS)]


def hyphenated(name: str) -> str:
    """Return a name as `opbench help finding` spells it, such as "bank-conflicts" for "Bank conflicts"."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@help_command.command("stall", short_help="Explain why warps wait, such as short-scoreboard.")
@click.argument("name", required=False, metavar="[NAME]")
def stall_command(name: str | None) -> None:
    """Explain why warps wait for the stall reason NAME, and how to shorten the wait; without NAME, list the reasons.

    NAME is spelled as in Nsight Compute: "Stall Short Scoreboard", stall_short_sb or short_scoreboard.
    """
    if name is None:
        width = max(map(len, STALLS))
        for stall in STALLS.values():
            click.echo(f"{stall.name:{width}}  {stall.meaning}")
        click.echo("\nFor details on one: opbench help stall NAME", err=True)
        return
    found = find_stall(name)
    if found is None:
        raise UsageError(unknown_name("stall", name, list(STALLS), "opbench help stall"))
    click.echo(textwrap.fill(f"{found.title}: {found.meaning} {found.remedy}", 80))
    causes = [cause for cause in CAUSES if found.name in cause.reasons and cause.mechanisms]
    for cause in causes:
        click.echo(f"\nIf the warp waits for {cause.name}:")
        _list_mechanisms(cause.mechanisms)
    if found.mechanisms and not causes:
        click.echo("\nMechanisms that usually shorten the wait:")
        _list_mechanisms(found.mechanisms)
    click.echo("\nWhich lines wait: opbench profile CASE --source")


def _list_mechanisms(names: Iterable[str]) -> None:
    """Print each mechanism with its explanation."""
    for name in names:
        click.echo(textwrap.fill(f"{name}: {MECHANISMS[name]}", 80, initial_indent="  ", subsequent_indent="    "))


def section(name: str) -> str:
    """Return the guide's section on a rule, as Markdown."""
    return _search_guide(GUIDE_PAGE, rf"^## {re.escape(name)}$(?s:.*?)(?=^## |\Z)", name)[0]


def slow_access(problem: str) -> tuple[str, str]:
    """Return the meaning and the remedy of a slow access, from the guide's table."""
    match = _search_guide(SLOW_ACCESS_PAGE, rf"^\| {re.escape(problem)} \| (.*) \| (.*) \|$", problem)
    return match[1], match[2]


def _search_guide(page_name: str, pattern: str, name: str) -> re.Match[str]:
    """Return the match of a pattern in a page of the guide; raise EnvironmentFault if there is none."""
    page = shipped_folder("docs") / page_name
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(
            f"{page}: cannot be read: {error.strerror}; install opbench again", kind="unreadable", subject=page
        ) from None
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise EnvironmentFault(
            f"{page}: has no section on {name}; install opbench again, as this installation is incomplete",
            kind="broken-installation",
            subject=page,
            value=name,
        )
    return match


def _to_terminal_text(markdown: str) -> str:
    """Format Markdown for a terminal: paragraphs of 80 columns, code indented, no markup of headings and emphasis."""
    paragraphs = []
    for part in re.split(r"(^```.*?^```$)", markdown.strip(), flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):
            paragraphs.append(textwrap.indent("\n".join(part.splitlines()[1:-1]), "    "))
            continue
        for text in filter(None, part.strip().split("\n\n")):
            plain_text = re.sub(r"\*\*|`", "", text.removeprefix("## "))
            paragraphs.append(textwrap.fill(plain_text, 80, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(paragraphs)
