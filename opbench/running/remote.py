"""Run problems on a cluster's worker: problems arrive as plain data, and results leave as JSON.

A worker receives no code: it needs the same version of opbench and the same variants.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench._version import __version__
from opbench.backend.environment import Environment
from opbench.errors import OpbenchError, UsageError
from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.running.compilers import BackgroundCompiler
from opbench.running.problem import CaseFaults, Outcome, ProblemRun, RunSettings, WorkerSlot
from opbench.running.protocol import (
    BUILD_LIMIT_S,
    BuildModules,
    CaseUnsupported,
    ModuleBuilt,
    Notification,
    OpenBackend,
    PackedCase,
    pack,
    unpack,
)
from opbench.running.worker import Worker, WorkerLost

SendMessage = Callable[[str], None]
"""Takes a message as JSON and returns when it has arrived."""


@dataclass(frozen=True)
class RemoteRun:
    """The settings of a run; every worker receives them first."""

    run: str
    """The unique name of the run, which keeps its messages apart from those of other runs."""
    opening: OpenBackend
    settings: RunSettings
    ceilings: bool
    """Whether a worker must measure its device's ceilings."""
    opbench: str
    variants: str
    """Digest of the variants; a worker must have the same version and digest."""


@dataclass(frozen=True)
class RemoteProblem:
    """One problem with all its cases."""

    number: int
    """The unique number of this attempt."""
    cases: Sequence[PackedCase]
    cases_of_lost_workers: frozenset[str]
    """Cases at which a worker died before; one more death fails the case."""
    reports_each_launch: bool = False
    """Whether to report each launch, because a worker died while it measured this problem's cases in turn."""


def variants_digest(roots: Sequence[Path]) -> str:
    """Return a checksum of all source files in the folders of variants."""
    digest = hashlib.sha256()
    for root in Catalog(roots).roots:
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".cu", ".cuh", ".h", ".py") and p.is_file()):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def pack_for_worker(case: Case, roots: Sequence[Path]) -> PackedCase:
    """Convert a case to plain data, with a path relative to a folder of variants, which differs between machines."""
    packed, path = pack(case), case.variant.path.resolve()
    for root_index, root in enumerate(roots):
        if path.is_relative_to(root.resolve()):
            return replace(packed, path=f"{root_index}/{path.relative_to(root.resolve())}")
    raise UsageError(
        f"{case.variant.path}: this file lies in no folder of variants, so other machines do not have the file; move "
        f"the file into DIR/{case.variant.operator}/, where all machines see DIR, and add --variants DIR",
        kind="not-in-variants",
        subject=case.variant.path,
    )


def _unpack_from_run(packed: PackedCase, catalog: Catalog) -> Case:
    root_index, _, path = packed.path.partition("/")
    return unpack(catalog, replace(packed, path=str(catalog.roots[int(root_index)] / path)))


@dataclass
class _MessageSink:
    """Send the progress and the results of a problem to the scheduler."""

    problem: RemoteProblem
    send: SendMessage

    def announce(self, phase: str, case: str) -> None:
        """Send the current phase and case."""
        self.send(json.dumps({"number": self.problem.number, "phase": phase, "case": case}))

    def started(self, case: str) -> None:
        """Send the case that launches now, if `reports_each_launch` is set: each message takes time between samples."""
        if self.problem.reports_each_launch:
            self.announce("measure", case)

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Send results, all in one message."""
        messages = [{"result": r.to_json(), "traffic": traffic and traffic.to_json()} for r, traffic in outcomes]
        self.send(json.dumps({"number": self.problem.number, "ended": messages}))

    def exceeds_crash_limit(self, case: str) -> bool:
        """Return whether an earlier worker died at this case."""
        return case in self.problem.cases_of_lost_workers


@dataclass
class _WorkerSession:
    """One worker's device, catalog and faults during one run."""

    remote_run: RemoteRun
    slot: WorkerSlot
    catalog: Catalog
    folder: tempfile.TemporaryDirectory[str]
    faults: CaseFaults = field(default_factory=CaseFaults)

    def build(self, cases: Sequence[Case]) -> None:
        """Compile a problem's cases; record those that do not compile or cannot run here."""

        def on_notification(notification: Notification) -> None:
            if isinstance(notification, CaseUnsupported):
                self.faults.unsupported_reasons[cases[notification.index].name] = notification.reason
            elif isinstance(notification, ModuleBuilt) and notification.error:
                self.faults.compile_errors |= {cases[index].name: notification.error for index in notification.indices}

        with contextlib.suppress(WorkerLost):  # each case is then compiled again, alone, by its check
            self.slot.worker.ask(BuildModules([pack(case) for case in cases]), BUILD_LIMIT_S, on_notification)


_sessions: dict[tuple[str, str], _WorkerSession] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class WorkerDescription:
    """A worker's version, variants and device."""

    opbench: str
    host: str
    variants: str = ""
    """Digest of its variants; empty if it could not be computed."""
    environment: Environment = field(default_factory=Environment)
    ceilings: Peaks | None = None
    fault: str = ""
    """Why the worker cannot take part; empty if it can."""


def describe_worker(remote_run: RemoteRun, address: str) -> WorkerDescription:
    """Return a description of this worker; its device is opened only if version and variants match the run."""
    introduction = WorkerDescription(__version__, platform.node())
    try:
        introduction = replace(introduction, variants=variants_digest(remote_run.opening.roots))
        if (introduction.opbench, introduction.variants) != (remote_run.opbench, remote_run.variants):
            return introduction
        session = _session_of(remote_run, address)
        introduction = replace(introduction, environment=session.slot.worker.open())
        if remote_run.ceilings:
            from opbench.running.probes import ceilings_for_run

            (session.slot.ceilings,) = ceilings_for_run(Path(session.folder.name), lambda progress: None)
        return replace(introduction, ceilings=session.slot.ceilings)
    except OpbenchError as error:
        return replace(introduction, fault=str(error))


def _session_of(remote_run: RemoteRun, address: str) -> _WorkerSession:
    with _lock:
        key = (remote_run.run, address)
        if key not in _sessions:
            folder = tempfile.TemporaryDirectory(prefix="opbench-worker-")
            slot = WorkerSlot(Worker(remote_run.opening, Path(folder.name) / "worker.log"))
            _sessions[key] = _WorkerSession(remote_run, slot, Catalog(remote_run.opening.roots), folder)
        return _sessions[key]


def run_problem(
    remote_run: RemoteRun, problem: RemoteProblem, address: str, device: str, send: SendMessage
) -> Mapping[str, str]:
    """Compile, check and measure one problem; return {}, or the reason of an early end under "lost" or "fault"."""
    session = _session_of(remote_run, address)
    session.slot.device = device
    try:
        session.slot.worker.open()
        cases = [_unpack_from_run(packed, session.catalog) for packed in problem.cases]
        sink = _MessageSink(problem, send)
        sink.announce("build", str(cases[0].problem))
        session.build(cases)
        ProblemRun(remote_run.settings, session.faults, sink, BackgroundCompiler(session.slot.worker, "")).run(
            session.slot, cases
        )
    except WorkerLost as error:
        return {"lost": str(error)}
    except OpbenchError as error:
        return {"fault": str(error)}
    return {}


def end_run(run: str) -> None:
    """End all tasks of a run in this process at once."""
    with _lock:
        for key in [key for key in _sessions if key[0] == run]:
            session = _sessions.pop(key)
            session.slot.worker.end()
            session.folder.cleanup()
