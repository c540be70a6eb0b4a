"""Run a program, such as a compiler, in a cage."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.cage import seccomp
from opbench.cage.confine import Confinement, enter
from opbench.cage.fork_server import ForkServer

MAX_OUTPUT_BYTES = 1 << 20
"""The most bytes that are read of a program's messages."""


@dataclass(frozen=True)
class FinishedProgram:
    """The exit code and the messages of a program that ended or was stopped."""

    code: int | None
    """The exit code, negative for a signal; None if it was stopped at its time limit."""
    messages: str
    """The text on standard error and standard output."""


def run_program(
    server: ForkServer, confinement: Confinement, command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> FinishedProgram:
    """Run a program in a cage for at most `limit_s` seconds.

    `environment` has all environment variables of the program. A program that writes more messages than the confinement
    allows in one file is ended.
    """
    with tempfile.TemporaryFile() as messages:
        child = server.start(_execute, confinement, list(command), dict(environment), files=[messages.fileno()])
        code = child.wait(limit_s)
        child.kill()
        messages.seek(0)
        return FinishedProgram(code, messages.read(MAX_OUTPUT_BYTES).decode(errors="replace"))


def _execute(confinement: Confinement, command: list[str], environment: dict[str, str], files: list[int]) -> None:
    """Confine this process, then replace it by the program."""
    for target in (1, 2):
        os.dup2(files[0], target)
    os.close(files[0])
    os.chdir(confinement.write[0] if confinement.write else Path("/"))
    enter(confinement, seccomp.compiler_filter())
    # Python ignores this signal, and programs inherit that: a program that exceeds its output limit must end at once.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execve(command[0], command, environment)
