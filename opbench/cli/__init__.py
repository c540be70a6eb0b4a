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
from opbench.errors import OpbenchError, UsageError, unknown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "list": (".list", "Operators, variants, suites or cases that opbench knows."),
    "run": (".run", "Check and measure a suite, an operator or a file of your own; write a report."),
    "adopt": (".adopt", "Propose the header of a .cu file of your own, read from its launch."),
    "new": (".new", "Write the first files of an operator, of a variant or of CI for your kernels."),
    "check": (".run", "Verdicts only, on the operators' examples and on random shapes."),
    "tune": (".tune", "Find the best of a kernel's configs, thousands of them, within a budget of time."),
    "net": (".net_train", "Run or train a network from the best variants, with the time of every node."),
    "report": (".report", "Write report.html and the PNGs of a run again."),
    "ceiling": (".report", "Measure the GPU's limits: DRAM and L2 bandwidth, fp32 rate."),
    "compare": (".compare", "Say which cases of a second run broke, became slower, or cannot be told."),
    "history": (".history", "Show many runs over time, with the steps in each case's trend, or query them with SQL."),
    "export": (".export", "Write a run as NVBench's or pytest-benchmark's JSON, as CSV or as Parquet."),
    "book": (".book", "Write the winner of every problem in some runs, for programs that use it."),
    "best": (".best", "Say which variant of each problem to ship, and what cannot be told from it."),
    "open": (".best", "Open a run's page in the browser."),
    "ship": (".ship", "Write the chosen kernels, or a network, as C++ sources without Python."),
    "profile": (".profile", "Run Nsight Compute or Nsight Systems on one case."),
    "explain": (".explain", "Annotate a variant's source with what each line does to memory."),
    "agreement": (".explain", "Compare the traffic of a cpu run with the counters of a GPU run."),
    "help": (".help", "Explain a rule that a finding names, such as shared-race."),
    "doctor": (".report", "What this machine has, what is missing and the command that mends it."),
    "selftest": (".selftest", "Test on this GPU what opbench claims of its own times."),
    "ladder": (".report", "In a checkout: what runs change in variants/<operator>/README.md."),
    "profile-target": (".profile", ""),
    "selftest-target": (".selftest", ""),
    "selftest-race": ("opbench.selftest.racing_child", ""),
}
"""Command to its module, relative to this package, and summary; a module is imported only when its command is used."""

HIDDEN = ("profile-target", "selftest-target", "selftest-race")

COMPLETE = "_OPBENCH_COMPLETE"
"""The environment variable with which a shell requests completions or the completion script; see README.md."""

EPILOG = """\b
Exit codes: 0 all right · 1 a case is wrong or failed · 2 usage ·
3 environment (no GPU, no compiler, disk full).
opbench compare has some of its own: opbench compare --help."""


class LazyGroup(click.Group):
    """Imports a command's module when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0], "opbench.cli")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        asked = ctx.resilient_parsing  # True while a shell requests completions
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not asked:
            raise click.UsageError(unknown("command", args[0], self.list_commands(ctx), "opbench --help"))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands from `COMMANDS`, because click would import every command's module."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup, epilog=EPILOG, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="opbench")
@click.pass_context
def cli(context: click.Context) -> None:
    """Check, time and compare CUDA implementations of one operator, with a GPU and without one."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line; print each opbench error as one message and exit with its code."""
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "opbench", COMPLETE, instruction))
    codecs.register_error("plain", _plain_sign)
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
        where = (
            f" ({error.ctx.command_path} --help)"
            if isinstance(error, click.UsageError) and error.ctx and error.ctx.parent
            else ""
        )
        fail(error.format_message() + where, UsageError.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        fail("interrupted" + (f"; {error}" if str(error) else ""), 130)
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        fail(f"{name}{error.strerror or error}; nothing that was measured is lost (opbench doctor)", 3)


PLAIN = str.maketrans(
    {"…": "...", "±": "+-", "≥": ">=", "≤": "<="}
    | dict(zip("µ×–−≈→│✗─├└·÷‘’▸◂▲▼▁▂▃▄▅▆▇█", "ux--~>|x-|`,/''><^v12345678", strict=True))
)


def _plain_sign(error: UnicodeError) -> tuple[str, int]:
    """Return the ASCII replacement for a character that the terminal's encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return text.translate(PLAIN).encode("ascii", "replace").decode(), error.end


def discard_stdout() -> None:
    """Redirect stdout to the null device after its reader closed it (`| head`), so that no error follows."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: int) -> None:
    """Print an error and exit with a code."""
    click.echo(f"opbench: {message}", err=True)
    sys.exit(code)
