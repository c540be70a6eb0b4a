"""What is written agrees with what is there: every command, flag, target, exit code and exported name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import opbench
from commands_page import PAGE, commands_page
from opbench import errors
from opbench.cli import COMMANDS, EPILOG, HIDDEN_COMMANDS, cli
from support.checks.documents import LINES, PAGES, README
from support.common import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


SHOWN = [name for name in COMMANDS if name not in HIDDEN_COMMANDS]


TARGETS = set(re.findall(r"^([a-z][\w-]*):(?!=)", MAKEFILE, re.MULTILINE))


VARIABLES = set(re.findall(r"^([A-Z]+) \?=", MAKEFILE, re.MULTILINE))


def command(name: str) -> click.Command:
    """A command by name."""
    found = cli.get_command(click.Context(cli), name)
    assert found
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_every_command_is_in_the_readme_and_has_help(name: str) -> None:
    assert re.search(rf"\bopbench {name}\b", README), f"README.md never shows opbench {name}"
    found = command(name)
    assert found.help and COMMANDS[name][1].endswith(".")
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help and parameter.help.endswith((".", ")", "]")), f"{name} {parameter.opts}"


@pytest.mark.parametrize(
    "words", [[name] for name in SHOWN] + [["net", name] for name in ("list", "show", "run", "train")]
)
def test_help_fits_80_columns_and_cuts_no_summary(words: list[str]) -> None:
    done = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80, max_content_width=80)
    assert done.exit_code == 0 and "..." not in re.sub(r"\]\.\.\.|S\.\.\.| \[ARGS\]\.\.\.", "", done.output), (
        done.output
    )
    assert max(len(line) for line in done.output.splitlines()) <= 80, done.output


def test_the_page_of_commands_is_what_help_says() -> None:
    """By its headings and options: how click folds the words differs from version to version."""
    written, wanted = (
        re.findall(r"^## .*|(?<![\w-])--[a-z][\w-]*", text, re.M) for text in (PAGE.read_text(), commands_page())
    )
    assert written == wanted, "run make format"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded_and_bears_its_name(name: str) -> None:
    assert command(name).name == name


@pytest.mark.parametrize(("tool", "arguments"), LINES, ids=lambda part: part or "-")
def test_a_command_line_of_the_readme_is_one_that_works(tool: str, arguments: str) -> None:
    words = shlex.split(arguments, comments=True)
    if tool == "make":
        for word in words:
            name, assigned, _ = word.partition("=")
            assert name in (VARIABLES if assigned else TARGETS), f"make {arguments}"
        return
    try:
        context = cli.make_context("opbench", list(words))
        if words and not words[0].startswith("-"):
            command(words[0]).make_context(words[0], words[1:], parent=context)
    except click.exceptions.Exit as stop:
        assert stop.exit_code == 0
    except click.ClickException as error:
        raise AssertionError(f"opbench {arguments}: {error.format_message()}") from None


def test_the_readmes_examples_are_found() -> None:
    tools = {tool for tool, _ in LINES}
    assert tools == {"opbench", "make"}, "README.md shows no command in a ```sh block"


EXIT_WORDS = {
    errors.EXIT_OK: "right",
    errors.EXIT_WRONG: "wrong",
    errors.EXIT_USAGE: "usage",
    errors.EXIT_ENVIRONMENT: "environment",
}


def test_exit_codes_are_told_alike_everywhere() -> None:
    assert EXIT_WORDS.keys() == {0, 1, 2, 3}
    paragraphs = [p for p in re.split(r"\n\s*\n", README) if re.search(r"exit", p, re.IGNORECASE)]
    for text in (EPILOG, "\n".join(paragraphs), errors.__doc__ or ""):
        for code, word in EXIT_WORDS.items():
            if text is errors.__doc__ and code < errors.EXIT_USAGE:
                continue
            numbers = rf"\b{code}\b[^\n0-9]*\b{word}|{word}\w*\W+{code}\b"
            assert re.search(numbers, text, re.IGNORECASE), f"exit code {code} ({word}) is not told in:\n{text}"
    for kind, code in (("UsageError", 2), ("EnvironmentFault", 3), ("CompileError", 1), ("LaunchError", 1)):
        assert getattr(errors, kind).exit_code == code
        assert re.search(rf"{kind}\s+{code}\b", errors.__doc__ or "")


@pytest.mark.parametrize("name", sorted(opbench.__all__))
def test_every_exported_name_exists_and_is_described(name: str) -> None:
    value = getattr(opbench, name)
    assert isinstance(value, (str, dict)) or (value.__doc__ and value.__doc__.strip())
    if name in ("run", "check", "load"):
        assert re.search(rf"\bopbench\.{name}\(", README), f"README.md never calls opbench.{name}()"


def test_the_changelog_tells_of_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[?([\w.]+)\]?", changelog, re.MULTILINE)
    assert headings and headings[0] in ("Unreleased", opbench.__version__)


def test_the_makefile_explains_each_target_and_calls_what_exists() -> None:
    declared = " ".join(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE))
    parts = tuple(re.findall(r"\$\(\w+:%=([\w-]+-)%\)", declared))  # steps of a target, such as evidence-networks
    phony = {name for name in declared.split() if not name.startswith("$")}
    documented = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
    assert phony == documented == {target for target in TARGETS if not (parts and target.startswith(parts))}
    for line in re.findall(r"\$\(OPBENCH\) (.*)", MAKEFILE):
        words = line.replace("$(SUITE)", "suites/quick.toml").split()
        command(words[0]).make_context(words[0], words[1:])
    for path in re.findall(r"pytest (tests/\S+)", MAKEFILE):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "variants" / "README.md"], ids=lambda page: page.name)
def test_files_that_a_page_links_to_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_or_the_guides_first_page_leads_to_every_page() -> None:
    first, guide = PAGES[0].read_text(), (ROOT / "docs" / "index.md").read_text()
    for page in PAGES[1:]:
        path = page.relative_to(ROOT).as_posix()
        assert f"({path})" in first or f"{page.name})" in guide or page.name == "index.md", f"no link to {path}"
    assert len(first.encode()) <= 9000


def test_every_page_has_its_place_in_the_menu_of_the_guide() -> None:
    """`make docs` says so, too, where MkDocs is installed."""
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert sorted(re.findall(r": ([\w-]+\.md)$", menu, re.MULTILINE)) == sorted(
        page.name for page in PAGES if page.parent == ROOT / "docs"
    )


def test_the_reference_has_every_public_name() -> None:
    """`make docs` then refuses a name that is not there."""
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("reference-*.md")))
    shown = {entry.rpartition(".")[2] for entry in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)}
    for members in re.findall(r"^ +members: \[([^\]]+)\]", pages, re.MULTILINE):
        shown |= set(members.replace(",", " ").split())
    of_torch = re.search(r"__all__ = \[(.*?)\]", (ROOT / "opbench" / "torch.py").read_text(), re.DOTALL)
    assert of_torch
    public = {*opbench.__all__, *re.findall(r'"(\w+)"', of_torch[1])} - {"__version__"}
    assert sorted(public - shown) == []
