"""A run on the workers of a Dask scheduler: problems go out as data, outcomes come in to the one writer here."""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opbench._version import __version__
from opbench.backend.counts import Traffic
from opbench.backend.environment import Environment
from opbench.errors import EnvironmentFault
from opbench.gpu.limits.products import product
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.records import from_json
from opbench.results.files import Run
from opbench.results.header import RunDevice
from opbench.results.result import Result
from opbench.running import remote
from opbench.running.devices import common_environment, require_alike
from opbench.running.dispatch import Dispatch
from opbench.running.header import RunFile, stands
from opbench.running.options import RunSetup
from opbench.running.problem import Terms
from opbench.running.progress import Progress, Tell
from opbench.running.protocol import Open, iterate_problems
from opbench.running.remote import Introduction
from opbench.running.runner import RunDesk, RunEnded, slowest_first
from opbench.running.suite import Suite

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_S = 0.2
"""How often workers that came or went are looked for."""


@dataclass
class _Member:
    """One worker of the scheduler."""

    address: str
    task: Future
    """What it is asked now: who it is, then one problem after the other."""
    device: str = ""
    name: str = ""
    number: int = -1
    """Of its problem's attempt; -1 while it has none."""
    idle: bool = False


def run_on_cluster(suite: Suite, options: RunSetup, client: Client, wait_s: float, tell: Tell) -> Run:
    """Run a suite's cases on a scheduler's workers and return what is on disk afterwards.

    `wait_s` is how long it may have no worker at all. Raises EnvironmentFault where none comes, UsageError where
    --resume does not fit the run in the folder or a worker that is there at the start does not fit the others.
    """
    with RunFile(suite, options) as file:
        crew = _Crew(suite, options, client, wait_s, RunDesk(suite, options, file, tell))
        try:
            crew.run()
        except RunEnded:
            pass
        except KeyboardInterrupt:
            kept = f"what was measured is kept; complete it with --resume --out {shlex.quote(str(options.out))}"
            raise KeyboardInterrupt(kept) from None
        finally:
            crew.dismiss()
        return file.run()


class _Crew:
    """The workers of one run; everything happens in the thread that calls `run`."""

    def __init__(self, suite: Suite, options: RunSetup, client: Client, wait_s: float, desk: RunDesk) -> None:
        from distributed import Queue

        self._suite, self._options, self._client, self._wait_s, self._desk = suite, options, client, wait_s, desk
        stands_for = product(options.gpu) if options.backend == "cpu" and options.gpu else None
        limits = stands_for.limits if stands_for else None
        self._order = remote.RunOrder(
            f"opbench-{uuid.uuid4().hex}",
            Open(options.backend, options.roots, options.seed, limits, suite.traced_work, options.capability),
            Terms(options.backend, options.measure, suite.time_limit_s, suite.timing, options.processes),
            options.backend == "cuda" and options.measure,
            __version__,
            remote.variants_digest(options.roots),
        )
        self._roots = Catalog(options.roots).roots
        self._inbox = Queue(self._order.run, client=client)
        self._members: dict[str, _Member] = {}
        self._refused: set[str] = set()
        self._environments: dict[str, Environment] = {}
        self._suspects: set[str] = set()
        self._dispatch: Dispatch[Case] = Dispatch(lambda case: case.name)
        self._attempts = 0
        self._alone_since = time.monotonic()

    def run(self) -> None:
        """From the first worker to the last outcome."""
        began, suite, file = time.perf_counter(), self._suite, self._desk.file
        before = {result.case: result for result in file.earlier.results} if file.earlier else {}
        todo = [case for case in suite.cases if not stands(before.get(case.name), case)]
        self._desk.ended = {case.name for case in suite.cases} - {case.name for case in todo}
        for case in todo:
            remote.to_send(case, self._roots)  # what others do not have is refused before anything runs
        self._dispatch.add(slowest_first(list(iterate_problems(todo))))
        self._gather()
        while not self._dispatch.done:
            self._look_around()
            self._hear()
            for member in list(self._members.values()):
                if member.task.done():
                    self._heed(member)
            for member in self._members.values():
                if member.idle:
                    self._give(member)
            time.sleep(POLL_S)
        file.end(time.perf_counter() - began)

    def _gather(self) -> None:
        """Meet all who are there; the header is written when they are known to be alike."""
        while not self._environments:
            self._look_around()
            for member in list(self._members.values()):
                with suppress(Exception):  # it went away, which is seen next time
                    member.task.result()
                self._heed(member, strict=True)
            time.sleep(0 if self._environments else POLL_S)

    def _look_around(self) -> None:
        """Who came, who went."""
        present = set(self._client.nthreads())
        if gone := [member for address, member in self._members.items() if address not in present]:
            self._hear()  # what they sent before they went
            for member in gone:
                self._lose(member)
        for address in present - set(self._members) - self._refused:
            task = self._ask(address, remote.introduce, self._order, address)
            self._members[address] = _Member(address, task)
        if self._members:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > self._wait_s:
            there = self._client.scheduler.address
            raise EnvironmentFault(
                f"no worker was at {there} for {self._wait_s:g} s; start one for each GPU, CUDA_VISIBLE_DEVICES=0 "
                f"dask worker {there} --nthreads 1, and go on with --resume --out "
                f"{shlex.quote(str(self._options.out))}"
            )
        else:
            self._tell("wait", f"for a worker, at most {self._wait_s:g} s")

    def _ask(self, address: str, function: Callable[..., object], *arguments: object) -> Future:
        """A task for one worker, and for no other."""
        return self._client.submit(function, *arguments, workers=[address], allow_other_workers=False, pure=False)

    def _lose(self, member: _Member) -> None:
        """A worker is gone: its problem is measured again, and the case at which two went is held to blame."""
        del self._members[member.address]
        member.task.release()
        guilty = self._dispatch.lost(member.address)
        if member.number >= 0:
            self._tell("lost", f"{member.name or member.address} is gone; its problem is measured again")
        if guilty is not None:
            reason = "two workers died while it was run: the machine ended them, or the kernel did"
            self._desk.record([(_failed(guilty, self._options.backend, reason), None)])
            self._tell("lost", f"{guilty.name} is failed")

    def _heed(self, member: _Member, strict: bool = False) -> None:
        """A worker's answer: who it is, or how its problem ended."""
        if member.task.status in ("lost", "cancelled") or not member.task.done():
            return  # seen by whoever looks around
        if member.task.status == "error":
            raise EnvironmentFault(f"{member.name or member.address}: {member.task.exception()}")
        if member.idle:
            return
        answer = member.task.result()
        if not member.name:
            self._welcome(member, answer, strict)
            return
        self._hear()
        if fault := answer.get("fault"):
            self._dispatch.given_back(member.address)
            self._dismiss(member, f"{member.name}: {fault}", strict=len(self._members) == 1)
            return
        if answer.get("lost"):
            at = self._dispatch.at_case(member.address)
            self._suspects.add(at)
            self._dispatch.blamed(at)
            self._dispatch.given_back(member.address)
            self._tell("lost", f"{member.name}: {answer['lost']}; its problem is measured again")
        else:
            self._dispatch.finished(member.address)
        member.idle, member.number = True, -1

    def _welcome(self, member: _Member, told: Introduction, strict: bool) -> None:
        """A worker that fits the run takes part; one that does not is refused, at the start together with the run."""
        place, environment = f"{told.host} ({member.address})", told.environment
        for key in ("opbench", "variants"):
            there, here = getattr(told, key), getattr(self._order, key)
            if there not in ("", here):
                said = f"{place}: has {key} {there}, and here it is {here}; install the same on both"
                return self._dismiss(member, said, strict)
        if told.fault:
            return self._dismiss(member, f"{place}: {told.fault}", strict)
        try:
            require_alike({**self._environments, place: environment})
        except EnvironmentFault as fault:
            return self._dismiss(member, str(fault), strict)
        if environment.uuid and environment.uuid in {known.uuid for known in self._environments.values()}:
            said = f"{place}: sees {environment.uuid}, as another worker does; give each its own CUDA_VISIBLE_DEVICES"
            return self._dismiss(member, said, strict)
        file = self._desk.file
        number = len(self._environments) + len(file.earlier.devices if file.earlier else {})
        if not self._environments:
            file.begin(common_environment([environment]))
        self._environments[place] = environment
        member.name, member.idle = f"worker {number}", True
        member.device = environment.uuid or f"{self._order.run[8:16]}-{number}"
        file.device(RunDevice(environment, number, member.name, member.device, told.host, told.ceilings))
        return None

    def _dismiss(self, member: _Member, said: str, strict: bool) -> None:
        """A worker takes no part; where it was there at the start, nor does the run."""
        if strict:
            raise EnvironmentFault(said)
        self._refused.add(member.address)
        self._members.pop(member.address, None)
        self._tell("lost", f"not used: {said}")

    def _give(self, member: _Member) -> None:
        cases = self._dispatch.give(member.address)
        if cases is None:
            return
        self._attempts += 1
        member.idle, member.number = False, self._attempts
        packed = [remote.to_send(case, self._roots) for case in cases]
        problem = remote.ProblemOrder(
            self._attempts, packed, frozenset(self._suspects), self._dispatch.wary(member.address)
        )
        arguments = (self._order, problem, member.address, member.device)
        member.task = self._ask(member.address, run_and_say, *arguments)

    def _hear(self) -> None:
        """Everything that has been sent; what an attempt sends that was given up is not heard."""
        if not self._inbox.qsize():
            return
        by_number = {member.number: member for member in self._members.values()}
        for text in self._inbox.get(batch=True):
            message = json.loads(text)
            member = by_number.get(message["number"])
            if member is None:
                continue
            if "ended" in message:
                ended = [(from_json(Result, e["result"]), e["traffic"]) for e in message["ended"]]
                self._desk.record([(result, t and Traffic.from_json(t)) for result, t in ended])
                self._dispatch.judged(member.address, [result.case for result, _ in ended])
            else:
                self._dispatch.at(member.address, message["case"])
                self._desk.announce(message["phase"], message["case"])

    def _tell(self, phase: str, words: str) -> None:
        self._desk.tell(Progress(phase, words, len(self._desk.ended), len(self._suite.cases)))

    def dismiss(self) -> None:
        """End what workers still do for this run."""
        with suppress(Exception):  # a scheduler that is gone has ended them, too
            self._client.run(remote.leave, self._order.run, on_error="ignore")
            self._inbox.close()


def run_and_say(order: remote.RunOrder, problem: remote.ProblemOrder, place: str, device: str) -> Mapping[str, str]:
    """Run a problem in a Dask worker; each message has arrived at the scheduler when the next is made."""
    from distributed import Queue

    outbox = Queue(order.run)
    return remote.run_problem(order, problem, place, device, outbox.put)


def _failed(case: Case, backend: str, reason: str) -> Result:
    """The outcome of a case that nobody is left to tell of."""
    return Result(
        case=case.name,
        operator=case.variant.operator,
        variant=case.variant.name,
        config=case.config,
        problem=str(case.problem),
        axes=case.problem.axes,
        precision=case.precision,
        unit=case.unit,
        backend=backend,
        status="failed",
        reason=reason,
        flops=case.problem.flops(),
        compulsory_bytes=case.problem.bytes(),
        builds_on=case.variant.builds_on,
        library=case.variant.is_library,
        title=case.variant.title,
        source_sha256=case.variant.source_sha256,
        text_sha256=case.variant.text_sha256,
    )
