"""Processes that run this Python with the modules of opbench."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import IO


def python(*arguments: str) -> list[str]:
    """Return a command that runs this Python with arguments.

    It has the option -P, because an operator.py in the user's folder would shadow the standard library's.
    """
    return [sys.executable, "-P", *arguments]


def child_environment(additions: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child process, which imports modules from the same places.

    `additions` are further variables.
    """
    return {**os.environ, **(additions or {}), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def start_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    output: IO[bytes] | int = subprocess.DEVNULL,
    stdin: int = subprocess.DEVNULL,
    new_session: bool = False,
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a module in a process; return the process and this end of a pipe.

    The first argument of the module is the file descriptor of the other end. `output` receives stdout and stderr.
    """
    parent_end, child_end = Pipe()
    with child_end:
        process = subprocess.Popen(
            python("-m", module, str(child_end.fileno()), *arguments),
            pass_fds=[child_end.fileno()],
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=new_session,
        )
    return process, parent_end


def exit_cause(code: int) -> str:
    """Return the signal or the exit code with which a process ended, in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
