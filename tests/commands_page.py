"""docs/commands.md, written from `--help`; `make format` writes it, a test reads it.

python tests/commands_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from opbench.cli import FIRST_COMMANDS, OTHER_COMMANDS, cli

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
WIDTH = 96
HEAD = """# Commands

Written from `--help` by `make format`. Tables go to stdout, progress and warnings to stderr; `--json` is for pipes.
A case prints as `matmul/shared_tile[TILE=16](m=512,n=512,k=512)`, and that name is accepted wherever a CASE is.

`eval "$(_OPBENCH_COMPLETE=bash_source opbench)"` in `~/.bashrc` (or `zsh_source` in `~/.zshrc`, `fish_source`) makes
the tab key complete commands, options, operators, variants, suites, networks and GPUs.
"""


def commands_page() -> str:
    """The page as Markdown: each command with what `--help` says of it, subcommands after their command."""
    shown = [(name, cli.get_command(click.Context(cli), name)) for name in (*FIRST_COMMANDS, *OTHER_COMMANDS)]
    return HEAD + "".join(part for name, command in shown if command for part in _sections(f"opbench {name}", command))


def _sections(title: str, command: click.Command) -> Iterator[str]:
    text = command.get_help(click.Context(command, info_name=title, max_content_width=WIDTH, terminal_width=WIDTH))
    yield f"\n## {title}\n\n```text\n{text}\n```\n"
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _sections(f"{title} {name}", child)


if __name__ == "__main__":
    PAGE.write_text(commands_page(), encoding="utf-8")
