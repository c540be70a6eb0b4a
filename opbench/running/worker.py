"""Worker processes that run cases, so that a crash, a hang or an illegal address costs only one case.

The parent sends one request; the worker sends any number of notifications and then an answer. Output of kernels
goes to the worker's log, whose last line is quoted when the worker dies.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Mapping, Set
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import cast

from opbench.backend.environment import Environment
from opbench.checking.backends import start_runtime_build
from opbench.child_process import child_environment, exit_cause, start_module
from opbench.errors import EnvironmentFault, OpbenchError
from opbench.running.protocol import (
    CONFINED,
    OPEN_LIMIT_S,
    Answer,
    AnswerType,
    Notification,
    OnNotification,
    OpenBackend,
    PhasesTimed,
    Request,
    RequestFailed,
)

SHARED_VARIABLE = re.compile(
    r"PATH|HOME|LANG|LC_\w+|TMPDIR|TZ|PYTHON\w+|XDG_CACHE_HOME|OPBENCH_\w+|NO_COLOR|(?:OPENBLAS|OMP|MKL)_NUM_THREADS"
)
"""Environment variables that a worker for untrusted kernels keeps: kernels can read its memory, and other variables may
hold secrets."""
MAX_TAIL_BYTES = 4096


class WorkerLost(OpbenchError):
    """A worker process died, or was stopped at its time limit; the message gives the cause."""

    kind = "worker-died"


class WorkerHung(WorkerLost):
    """A worker process was stopped at its time limit."""

    kind = "worker-hung"


class Worker:
    """One worker process; it starts when needed, and again after a crash."""

    def __init__(
        self,
        opening: OpenBackend,
        log: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
        processors: Set[int] = frozenset(),
    ) -> None:
        self.opening, self.log = opening, log
        self._processors = processors
        """The logical processors that the process may use; empty for all."""
        self._variables = dict(environment)
        """Additional environment variables of the process, which select the visible device."""
        self.phases_s: dict[str, float] = defaultdict(float)
        """The time that its processes spent in each phase of their requests, in seconds."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._environment = Environment()
        self._life = threading.Lock()
        self._ended = False

    def start(self) -> Environment:
        """Start the process if there is none and open its backend; return the environment."""
        if self._process is None:
            if self.opening.backend:
                start_runtime_build(self.opening.backend)
            confined = [CONFINED] if self.opening.untrusted else []
            env = child_environment({**self._variables, "PYTHONUNBUFFERED": "1"})
            if confined:
                env = {name: value for name, value in env.items() if SHARED_VARIABLE.fullmatch(name)}
            with self._life:
                if self._ended:  # the folder of the log may be gone
                    raise WorkerLost("not started: the run has ended", kind="run-ended")
                with self.log.open("ab") as log:
                    self._process, self._pipe = start_module(
                        "opbench.running.server", *confined, environment=env, output=log
                    )
                    if self._processors:  # before the process starts threads, which inherit the choice
                        with contextlib.suppress(ProcessLookupError):  # it has ended already
                            os.sched_setaffinity(self._process.pid, self._processors)
            self._environment = self._ask(self.opening, OPEN_LIMIT_S)
        return self._environment

    def open(self) -> Environment:
        """Start the process if there is none and return its environment; raise EnvironmentFault if the process dies."""
        try:
            return self.start()
        except WorkerLost as error:
            raise EnvironmentFault(
                f"the backend cannot be opened: {error}; check the machine with: opbench doctor",
                cause=error,
                kind="backend-not-opened",
            ) from None

    def ask(
        self, request: Request[AnswerType], limit_s: float, on_notification: OnNotification | None = None
    ) -> AnswerType:
        """Send a request and wait for its answer.

        `limit_s` is the longest time allowed between two messages. Raises WorkerLost, LaunchError or the worker's
        error.
        """
        self.start()
        return self._ask(request, limit_s, on_notification)

    def _ask(
        self, request: Request[AnswerType], limit_s: float, on_notification: OnNotification | None = None
    ) -> AnswerType:
        assert self._pipe is not None
        try:
            self._pipe.send(request)
            while True:
                if not self._pipe.poll(limit_s):
                    self.stop()
                    raise WorkerHung(
                        f"stopped after {limit_s:g} s without an end: the kernel hangs or is far too slow; check its "
                        "loops and barriers, or choose a smaller problem",
                        value=limit_s,
                    )
                message: Notification | Answer | RequestFailed = self._pipe.recv()
                if isinstance(message, Answer):
                    return cast(AnswerType, message.value)
                if isinstance(message, RequestFailed):
                    break
                if isinstance(message, PhasesTimed):
                    for phase, seconds in message.seconds.items():
                        self.phases_s[phase] += seconds
                    continue
                if on_notification:
                    on_notification(message)
        except (EOFError, ConnectionError, BrokenPipeError):
            raise self._death() from None
        if message.fatal:
            self.stop()
        raise message.error

    def _death(self) -> WorkerLost:
        """Return the error that describes how the process ended."""
        assert self._process is not None
        code = self._process.wait()
        self._process, self._pipe = None, None
        cause, tail = exit_cause(code), _tail(self.log)
        return WorkerLost(
            f"the process running it died ({cause})" + (f": {tail}" if tail else ""), subject=cause, value=cause
        )

    def end(self) -> None:
        """End the process for good, from any thread; a thread that waits for an answer gets WorkerLost."""
        with self._life:
            self._ended = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def pause(self) -> None:
        """Stop all threads of the process until `resume`; nothing happens if there is no process."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with self._life:
            if (process := self._process) is not None:
                process.send_signal(number)

    def stop(self) -> None:
        """Kill the process, from the thread that sends its requests; the next request starts a new process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._process, self._pipe = None, None


def _tail(log: Path) -> str:
    """Return the last line of a log without reading the whole log, which may contain gigabytes."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""
