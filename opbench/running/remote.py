"""What a worker of a cluster runs: problems as plain data, each on a process of its own beside; outcomes as JSON.

Everything here is called by name: a worker needs opbench of the same version and the same variants, and gets no code.
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
from opbench.gpu.limits.ceilings import Ceilings
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.running.gpu_code import GpuCode
from opbench.running.problem import CaseFaults, Ended, ProblemRun, Station, Terms
from opbench.running.protocol import BUILD_LIMIT_S, Build, Built, Open, PackedCase, Told, Unsupported, pack, unpack
from opbench.running.worker import Worker, WorkerLost

SendMessage = Callable[[str], None]
"""Takes a message as JSON and returns when it has arrived."""


@dataclass(frozen=True)
class RunOrder:
    """What every worker of a run is told first."""

    run: str
    """The run's own name: messages of others are not heard."""
    opening: Open
    terms: Terms
    ceilings: bool
    """Whether each device's limits are wanted."""
    opbench: str
    variants: str
    """Version and digest that a worker must have, too."""


@dataclass(frozen=True)
class ProblemOrder:
    """One problem with all its cases."""

    number: int
    """Of this attempt; no two have the same."""
    cases: Sequence[PackedCase]
    suspects: frozenset[str]
    """Cases at which a worker died before: a further death is theirs."""
    wary: bool = False
    """Whether each launch is told, as a machine went while this problem's cases were measured in turns."""


def variants_digest(roots: Sequence[Path]) -> str:
    """A checksum over every file of the variants that kernels and references are made of."""
    digest = hashlib.sha256()
    for root in Catalog(roots).roots:
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".cu", ".cuh", ".h", ".py") and p.is_file()):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def to_send(case: Case, roots: Sequence[Path]) -> PackedCase:
    """A case whose file is named by its place in a catalog's roots, which lie elsewhere on another machine."""
    packed, path = pack(case), case.variant.path.resolve()
    for number, root in enumerate(roots):
        if path.is_relative_to(root.resolve()):
            return replace(packed, path=f"{number}/{path.relative_to(root.resolve())}")
    raise UsageError(
        f"{case.variant.path}: lies in no folder of variants, so that other machines do not have it; put it into "
        f"DIR/{case.variant.operator}/ of a shared folder and add --variants DIR"
    )


def _received(packed: PackedCase, catalog: Catalog) -> Case:
    number, _, path = packed.path.partition("/")
    return unpack(catalog, replace(packed, path=str(catalog.roots[int(number)] / path)))


@dataclass
class _Desk:
    """Sends what a problem comes to."""

    order: ProblemOrder
    say: SendMessage

    def announce(self, phase: str, case: str) -> None:
        """Say what is done now."""
        self.say(json.dumps({"number": self.order.number, "phase": phase, "case": case}))

    def started(self, case: str) -> None:
        """Say which case is launched, where that is wanted: it takes time between samples."""
        if self.order.wary:
            self.announce("measure", case)

    def record(self, outcomes: Sequence[Ended]) -> None:
        """Send outcomes, all in one message."""
        ended = [{"result": r.to_json(), "traffic": traffic and traffic.to_json()} for r, traffic in outcomes]
        self.say(json.dumps({"number": self.order.number, "ended": ended}))

    def is_to_blame(self, case: str) -> bool:
        """Whether a worker died at this case before."""
        return case in self.order.suspects


@dataclass
class _Seat:
    """One worker's part in one run."""

    order: RunOrder
    station: Station
    catalog: Catalog
    folder: tempfile.TemporaryDirectory[str]
    faults: CaseFaults = field(default_factory=CaseFaults)

    def build(self, cases: Sequence[Case]) -> None:
        """Compile what a problem needs; what does not compile or run here is remembered."""

        def listen(told: Told) -> None:
            if isinstance(told, Unsupported):
                self.faults.unsupported[cases[told.index].name] = told.reason
            elif isinstance(told, Built) and told.error:
                self.faults.broken |= {cases[index].name: told.error for index in told.indices}

        with contextlib.suppress(WorkerLost):  # then each is compiled again, alone, when it is checked
            self.station.worker.ask(Build([pack(case) for case in cases]), BUILD_LIMIT_S, listen)


_seats: dict[tuple[str, str], _Seat] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Introduction:
    """Who a worker is."""

    opbench: str
    host: str
    variants: str = ""
    """A digest of its variants; empty where that could not be made."""
    environment: Environment = field(default_factory=Environment)
    ceilings: Ceilings | None = None
    fault: str = ""
    """Why it can take no part."""


def introduce(order: RunOrder, place: str) -> Introduction:
    """Return who this worker is; one of another version or with other variants opens nothing."""
    told = Introduction(__version__, platform.node())
    try:
        told = replace(told, variants=variants_digest(order.opening.roots))
        if (told.opbench, told.variants) != (order.opbench, order.variants):
            return told
        seat = _seat(order, place)
        told = replace(told, environment=seat.station.worker.open())
        if order.ceilings:
            from opbench.running.probes import ceilings_for_run

            (seat.station.ceilings,) = ceilings_for_run(Path(seat.folder.name), lambda progress: None)
        return replace(told, ceilings=seat.station.ceilings)
    except OpbenchError as error:
        return replace(told, fault=str(error))


def _seat(order: RunOrder, place: str) -> _Seat:
    with _lock:
        key = (order.run, place)
        if key not in _seats:
            folder = tempfile.TemporaryDirectory(prefix="opbench-worker-")
            station = Station(Worker(order.opening, Path(folder.name) / "worker.log"))
            _seats[key] = _Seat(order, station, Catalog(order.opening.roots), folder)
        return _seats[key]


def run_problem(order: RunOrder, problem: ProblemOrder, place: str, device: str, say: SendMessage) -> Mapping[str, str]:
    """Build, check and measure one problem; returns {} or, under "lost" and "fault", what ended it before its end."""
    seat = _seat(order, place)
    seat.station.device = device
    try:
        seat.station.worker.open()
        cases = [_received(packed, seat.catalog) for packed in problem.cases]
        desk = _Desk(problem, say)
        desk.announce("build", str(cases[0].problem))
        seat.build(cases)
        ProblemRun(order.terms, seat.faults, desk, GpuCode(seat.station.worker, "")).run(seat.station, cases)
    except WorkerLost as error:
        return {"lost": str(error)}
    except OpbenchError as error:
        return {"fault": str(error)}
    return {}


def leave(run: str) -> None:
    """End whatever this process runs for a run, at once."""
    with _lock:
        for key in [key for key in _seats if key[0] == run]:
            seat = _seats.pop(key)
            seat.station.worker.end()
            seat.folder.cleanup()
