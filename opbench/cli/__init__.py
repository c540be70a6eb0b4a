"""The command line `opbench COMMAND`: tables on stdout, progress and warnings on stderr."""

from __future__ import annotations

import codecs
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING

import click

from opbench._version import __version__
from opbench.errors import OpbenchError, UsageError, unknown_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FIRST_COMMANDS = {
    "check": (".run", "Check results, bounds and races of kernels; needs no GPU."),
    "run": (".run", "Check and time kernels, and write a report."),
    "explain": (".explain", "Show the source of a kernel with the memory traffic of each line."),
    "adopt": (".adopt", "Propose the header that opbench needs in your own .cu file."),
    "new": (".new", "Write starter files for an operator, a variant or a CI workflow."),
    "list": (".list", "List the operators, variants, suites or cases that opbench knows."),
    "compare": (".compare", "Compare two runs: what broke, slowed down or sped up."),
    "net": (".net_train", "Run or train a whole network with the fastest variants."),
    "doctor": (".report", "Show what this machine lacks, and how to install it."),
}
"""The commands that a new user needs: the name, the module relative to this package, and the summary."""

OTHER_COMMANDS = {
    "judge": (".judge", "Judge a kernel that somebody submits: one verdict, with a page."),
    "verify": (".judge", "Judge again with the seed of a verdict, and say what differs."),
    "mcp": (".mcp", "Serve these tools to an AI agent, over the Model Context Protocol."),
    "import": (".import_tasks", "Import KernelBench or FlashInfer-Bench tasks, and kernels."),
    "advise": (".advise", "Say what limits the cases of a run, and what a change would gain."),
    "tune": (".tune", "Search for the fastest config of a kernel within a time budget."),
    "profile": (".profile", "Run Nsight Compute or Nsight Systems on one case."),
    "best": (".best", "Show the fastest correct variant of each problem, and its ties."),
    "book": (".book", "Write a winners file: the fastest variant of each problem."),
    "ship": (".ship", "Write kernels, or a network, as C++ without Python."),
    "history": (".history", "Show times over many runs, or query the runs with SQL."),
    "report": (".report", "Write the page and the charts of a run again."),
    "open": (".best", "Open the page of a run in the browser."),
    "export": (".export", "Write a run for NVBench, pytest-benchmark, CSV or Parquet."),
    "help": (".help", "Explain a rule that a finding names, such as shared-race."),
    "ceiling": (".report", "Measure the peaks of this GPU: DRAM and L2 bandwidth, FLOP rates."),
    "selftest": (".selftest", "Test the accuracy of opbench's time measurements on this GPU."),
    "agreement": (".agreement", "Compare traffic counts of the emulator and of a GPU."),
    "ladder": (".report", "Update the README tables of the variants (in a checkout)."),
}
"""The other public commands, in the same form."""

HIDDEN_COMMANDS = {
    "profile-target": (".profile", ""),
    "selftest-target": (".selftest", ""),
    "selftest-race": ("opbench.selftest.engine_comparison_process", ""),
}
"""Commands that opbench starts itself, in the same form."""

COMMANDS = {**FIRST_COMMANDS, **OTHER_COMMANDS, **HIDDEN_COMMANDS}
"""Every command; its module is imported only when the command is used."""

COMPLETION_VARIABLE = "_OPBENCH_COMPLETE"
"""The environment variable with which a shell requests completions or the completion script; see README.md."""

EPILOG = """\b
Exit codes: 0 all right · 1 a case is wrong or failed · 2 usage ·
3 environment (no GPU, no compiler, disk full).
opbench compare has more exit codes: opbench compare --help."""


FORMER_OPTIONS = {"--without": "--disable", "--leave-out": "--exclude"}
"""Options by the names of the release before, which are still read."""


class CommandGroup(click.Group):
    """A group of commands; for an unknown command it suggests the nearest, or lists all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, print the help."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(UsageError.exit_code)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        completing = ctx.resilient_parsing  # The shell requests completions, and an unknown name must not be an error.
        if args and not args[0].startswith("-") and not completing and self.get_command(ctx, args[0]) is None:
            place = (ctx.info_name or "") if ctx.parent else ""
            raise UsageError(
                unknown_name("command", args[0], self.list_commands(ctx), f"{ctx.command_path} --help", place)
            )
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """Imports a command's module when it is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the group and of its command, with former names of options replaced."""
        pairs = (argument.partition("=") for argument in args)
        return super().parse_args(ctx, [FORMER_OPTIONS.get(name, name) + sign + value for name, sign, value in pairs])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*FIRST_COMMANDS, *OTHER_COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0], "opbench.cli")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands from `COMMANDS`, because click would import every command's module."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in two groups, with the summaries in one column."""
        width = max(len(name) for name in self.list_commands(ctx))
        for heading, group in (("Start with", FIRST_COMMANDS), ("Other commands", OTHER_COMMANDS)):
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in group.items()])


@click.group(
    cls=LazyGroup, epilog=EPILOG, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="opbench")
@click.pass_context
def cli(context: click.Context) -> None:
    """Check, time and compare CUDA kernels, on a GPU or on a CPU emulator."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line; print each opbench error as one message and exit with its code."""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "opbench", COMPLETION_VARIABLE, instruction))
    codecs.register_error("plain", _ascii_replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="plain")
    try:
        # Not cli.main(): it turns a closed stdout into exit code 1, which here means a wrong case.
        with cli.make_context("opbench", sys.argv[1:]) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except OpbenchError as error:
        fail(str(error), error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        help_hint = (
            f" ({error.ctx.command_path} --help)"
            if isinstance(error, click.UsageError) and error.ctx and error.ctx.parent
            else ""
        )
        fail(_message_of(error) + help_hint, UsageError.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        fail("interrupted" + (f"; {error}" if str(error) else ""), 130)
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        fail(f"{name}{error.strerror or error}; all finished measurements are stored; next: opbench doctor", 3)


def _message_of(error: click.ClickException) -> str:
    """Return the message of an error that click found; a wrong value stands after the name of its option."""
    if type(error) is click.BadParameter and error.param is not None:
        return f"{error.param.opts[0]}: {error.message}"
    return error.format_message()


ASCII_REPLACEMENTS = str.maketrans(
    {"…": "...", "±": "+-", "≥": ">=", "≤": "<="}
    | dict(zip("µ×–−≈→│✗─├└·÷‘’▸◂▲▼▁▂▃▄▅▆▇█", "ux--~>|x-|`,/''><^v12345678", strict=True))
)


def _ascii_replacement(error: UnicodeError) -> tuple[str, int]:
    """Return the ASCII replacement for a character that the terminal's encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return text.translate(ASCII_REPLACEMENTS).encode("ascii", "replace").decode(), error.end


def discard_stdout() -> None:
    """Redirect stdout to the null device after its reader closed it (`| head`), so that no error follows."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: int) -> None:
    """Print an error and exit with a code."""
    click.echo(f"opbench: {message}", err=True)
    sys.exit(code)
