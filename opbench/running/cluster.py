"""Run a suite on the workers of a Dask scheduler: problems are sent as data, and results are written here."""

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
from opbench.errors import EnvironmentFault, Reason
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.records import from_json
from opbench.results.files import Run
from opbench.results.header import RunDevice
from opbench.results.result import Result
from opbench.running import remote
from opbench.running.devices import common_environment, require_same_model
from opbench.running.dispatch import Dispatch
from opbench.running.header import RunFile, is_still_valid
from opbench.running.options import RunSetup
from opbench.running.problem import RunSettings
from opbench.running.progress import OnProgress, Progress
from opbench.running.protocol import iterate_problems
from opbench.running.remote import WorkerDescription
from opbench.running.runner import RunEnded, RunResults, backend_to_open, slowest_first
from opbench.running.suite import Suite

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_S = 0.2
"""Interval between checks for new and lost workers."""


@dataclass
class _RemoteWorker:
    """One worker of the scheduler."""

    address: str
    task: Future
    """The worker's current task: first its introduction, then one problem after the other."""
    device: str = ""
    name: str = ""
    number: int = -1
    """Number of the attempt at its current problem; -1 without a problem."""
    idle: bool = False


def run_on_cluster(suite: Suite, options: RunSetup, client: Client, wait_s: float, on_progress: OnProgress) -> Run:
    """Run a suite's cases on a scheduler's workers; return all results of the run on disk.

    `wait_s` is the longest time without any worker. Raises EnvironmentFault if no worker appears in that time,
    or if a worker that is present at the start does not fit the others; UsageError if --resume does not fit the
    folder's run.
    """
    with RunFile(suite, options) as file:
        pool = _WorkerPool(suite, options, client, wait_s, RunResults(suite, options, file, on_progress))
        try:
            pool.run()
        except RunEnded:
            pass
        except KeyboardInterrupt:
            message = f"finished measurements are stored; complete with --resume --out {shlex.quote(str(options.out))}"
            raise KeyboardInterrupt(message) from None
        finally:
            pool.close()
        return file.run()


class _WorkerPool:
    """The remote workers of one run; all methods run in the thread that calls `run`."""

    def __init__(self, suite: Suite, options: RunSetup, client: Client, wait_s: float, sink: RunResults) -> None:
        from distributed import Queue

        self._suite, self._options, self._client, self._wait_s, self._sink = suite, options, client, wait_s, sink
        self._remote_run = remote.RemoteRun(
            f"opbench-{uuid.uuid4().hex}",
            backend_to_open(suite, options),
            RunSettings(options.backend, options.measure, suite.time_limit_s, suite.timing, options.processes),
            options.backend == "cuda" and options.measure,
            __version__,
            remote.variants_digest(options.roots),
        )
        self._roots = Catalog(options.roots).roots
        self._inbox = Queue(self._remote_run.run, client=client)
        self._workers: dict[str, _RemoteWorker] = {}
        self._refused: set[str] = set()
        self._environments: dict[str, Environment] = {}
        self._suspects: set[str] = set()
        self._dispatch: Dispatch[Case] = Dispatch(lambda case: case.name)
        self._attempts = 0
        self._no_worker_since = time.monotonic()

    def run(self) -> None:
        """Wait for workers, give each one problem after the other, and write every result."""
        start_s, suite, file = time.perf_counter(), self._suite, self._sink.file
        earlier_results = file.earlier_results()
        remaining = [case for case in suite.cases if not is_still_valid(earlier_results.get(case.name), case)]
        self._sink.ended = {case.name for case in suite.cases} - {case.name for case in remaining}
        for case in remaining:
            # Raises UsageError, before any case runs, for a variant that other machines lack.
            remote.pack_for_worker(case, self._roots)
        self._dispatch.add(slowest_first(list(iterate_problems(remaining))))
        self._wait_for_workers()
        while not self._dispatch.is_done:
            self._update_workers()
            self._receive()
            for worker in list(self._workers.values()):
                if worker.task.done():
                    self._handle_reply(worker)
            for worker in self._workers.values():
                if worker.idle:
                    self._give(worker)
            time.sleep(POLL_S)
        file.end(time.perf_counter() - start_s)

    def _wait_for_workers(self) -> None:
        """Accept the workers that are present; write the run's header once all report the same properties."""
        while not self._environments:
            self._update_workers()
            for worker in list(self._workers.values()):
                with suppress(Exception):  # the worker is gone; the next update removes it
                    worker.task.result()
                self._handle_reply(worker, strict=True)
            time.sleep(0 if self._environments else POLL_S)

    def _update_workers(self) -> None:
        """Add workers that joined the scheduler and remove workers that left it."""
        present = set(self._client.nthreads())
        if left_workers := [worker for address, worker in self._workers.items() if address not in present]:
            self._receive()  # Lost workers may have sent messages before.
            for worker in left_workers:
                self._handle_loss(worker)
        for address in present - set(self._workers) - self._refused:
            task = self._ask(address, remote.describe_worker, self._remote_run, address)
            self._workers[address] = _RemoteWorker(address, task)
        if self._workers:
            self._no_worker_since = time.monotonic()
        elif time.monotonic() - self._no_worker_since > self._wait_s:
            scheduler = self._client.scheduler.address
            raise EnvironmentFault(
                f"no worker connected to the scheduler {scheduler} for {self._wait_s:g} s; start one worker for each "
                f"GPU: CUDA_VISIBLE_DEVICES=0 dask worker {scheduler} --nthreads 1. Then repeat the command with "
                f"--resume --out {shlex.quote(str(self._options.out))}",
                kind="no-worker",
                subject=scheduler,
                value=self._wait_s,
            )
        else:
            self._report("wait", f"for a worker, at most {self._wait_s:g} s")

    def _ask(self, address: str, function: Callable[..., object], *arguments: object) -> Future:
        """Submit a task to the scheduler that only this worker may run."""
        return self._client.submit(function, *arguments, workers=[address], allow_other_workers=False, pure=False)

    def _handle_loss(self, worker: _RemoteWorker) -> None:
        """Put the problem of a lost worker back into the queue; fail a case if two workers died while they ran it."""
        del self._workers[worker.address]
        worker.task.release()
        failed_case = self._dispatch.return_lost(worker.address)
        if worker.number >= 0:
            self._report("lost", f"{worker.name or worker.address} is gone; its problem is measured again")
        if failed_case is not None:
            message = "two workers died while this case ran; the machine or the kernel ended them"
            reason = Reason(message, kind="worker-died")
            self._sink.record([(Result.of_case(failed_case, self._options.backend, "failed", reason), None)])
            self._report("lost", f"{failed_case.name} failed")

    def _handle_reply(self, worker: _RemoteWorker, strict: bool = False) -> None:
        """Handle a worker's reply: its description at the start, or the end of its problem."""
        if worker.task.status in ("lost", "cancelled") or not worker.task.done():
            return  # _update_workers handles lost workers
        if worker.task.status == "error":
            raise EnvironmentFault(
                f"{worker.name or worker.address}: this worker failed: {worker.task.exception()}; correct the cause on "
                f"that machine (opbench doctor), then repeat the command with --resume --out "
                f"{shlex.quote(str(self._options.out))}",
                kind="worker-failed",
                subject=worker.name or worker.address,
            )
        if worker.idle:
            return
        answer = worker.task.result()
        if not worker.name:
            self._accept(worker, answer, strict)
            return
        self._receive()
        if fault := answer.get("fault"):
            self._dispatch.return_problem(worker.address)
            self._reject(
                worker,
                EnvironmentFault(f"{worker.name}: {fault}", kind="worker-failed", subject=worker.name),
                strict=len(self._workers) == 1,
            )
            return
        if answer.get("lost"):
            current_case = self._dispatch.current_case(worker.address)
            self._suspects.add(current_case)
            self._dispatch.count_crash(current_case)
            self._dispatch.return_problem(worker.address)
            self._report("lost", f"{worker.name}: {answer['lost']}; its problem is measured again")
        else:
            self._dispatch.finish(worker.address)
        worker.idle, worker.number = True, -1

    def _accept(self, worker: _RemoteWorker, introduction: WorkerDescription, strict: bool) -> None:
        """Add a worker with the run's version and device model; reject others.

        With `strict`, at the start of a run, a rejection ends the run.
        """
        label, environment = f"{introduction.host} ({worker.address})", introduction.environment
        for key in ("opbench", "variants"):
            worker_value, run_value = getattr(introduction, key), getattr(self._remote_run, key)
            if worker_value not in ("", run_value):
                message = f"{label}: has {key} {worker_value}, and here it is {run_value}; install the same on both"
                fault = EnvironmentFault(
                    message, kind="other-installation", subject=key, value=worker_value, allowed=run_value
                )
                return self._reject(worker, fault, strict)
        if introduction.fault:
            return self._reject(
                worker, EnvironmentFault(f"{label}: {introduction.fault}", kind="worker-failed", subject=label), strict
            )
        try:
            require_same_model({**self._environments, label: environment})
        except EnvironmentFault as fault:
            return self._reject(worker, fault, strict)
        if environment.uuid and environment.uuid in {environment.uuid for environment in self._environments.values()}:
            message = (
                f"{label}: sees {environment.uuid}, as another worker does; give each its own CUDA_VISIBLE_DEVICES"
            )
            return self._reject(worker, EnvironmentFault(message, kind="shared-gpu", subject=environment.uuid), strict)
        file = self._sink.file
        device_number = len(self._environments) + len(file.earlier.devices if file.earlier else {})
        if not self._environments:
            file.begin(common_environment([environment]))
        self._environments[label] = environment
        worker.name, worker.idle = f"worker {device_number}", True
        worker.device = environment.uuid or f"{self._remote_run.run[8:16]}-{device_number}"
        file.device(
            RunDevice(environment, device_number, worker.name, worker.device, introduction.host, introduction.ceilings)
        )
        return None

    def _reject(self, worker: _RemoteWorker, fault: EnvironmentFault, strict: bool) -> None:
        """Exclude a worker from the run; raise EnvironmentFault if it was present at the start."""
        if strict:
            raise fault
        self._refused.add(worker.address)
        self._workers.pop(worker.address, None)
        self._report("lost", f"not used: {fault}")

    def _give(self, worker: _RemoteWorker) -> None:
        cases = self._dispatch.assign(worker.address)
        if cases is None:
            return
        self._attempts += 1
        worker.idle, worker.number = False, self._attempts
        packed = [remote.pack_for_worker(case, self._roots) for case in cases]
        problem = remote.RemoteProblem(
            self._attempts, packed, frozenset(self._suspects), self._dispatch.reports_each_launch(worker.address)
        )
        arguments = (self._remote_run, problem, worker.address, worker.device)
        worker.task = self._ask(worker.address, run_and_send, *arguments)

    def _receive(self) -> None:
        """Handle all messages that arrived; ignore those of workers whose problem was given to another worker."""
        if not self._inbox.qsize():
            return
        worker_by_attempt = {worker.number: worker for worker in self._workers.values()}
        for text in self._inbox.get(batch=True):
            message = json.loads(text)
            worker = worker_by_attempt.get(message["number"])
            if worker is None:
                continue
            if "ended" in message:
                outcomes = [(from_json(Result, e["result"]), e["traffic"]) for e in message["ended"]]
                self._sink.record([(result, t and Traffic.from_json(t)) for result, t in outcomes])
                self._dispatch.remove_judged(worker.address, [result.case for result, _ in outcomes])
            else:
                self._dispatch.set_current_case(worker.address, message["case"])
                self._sink.announce(message["phase"], message["case"])

    def _report(self, phase: str, text: str) -> None:
        self._sink.on_progress(Progress(phase, text, len(self._sink.ended), len(self._suite.cases)))

    def close(self) -> None:
        """End all tasks of this run on the remote workers."""
        with suppress(Exception):  # a lost scheduler has ended its workers already
            self._client.run(remote.end_run, self._remote_run.run, on_error="ignore")
            self._inbox.close()


def run_and_send(
    remote_run: remote.RemoteRun, problem: remote.RemoteProblem, address: str, device: str
) -> Mapping[str, str]:
    """Run a problem in a Dask worker; send each message after the client has received the message before."""
    from distributed import Queue

    outbox = Queue(remote_run.run)
    return remote.run_problem(remote_run, problem, address, device, outbox.put)
