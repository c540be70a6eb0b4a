"""Train on several devices with one process per device; the main process starts, answers and ends them."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from opbench.checking import backends
from opbench.child_process import child_environment, exit_cause, start_module
from opbench.graph.graph import Graph
from opbench.graph.saving import save
from opbench.networks.plan.data import DataSet
from opbench.networks.records.training import TrainingRecord, read_training
from opbench.networks.train.group import START_LIMIT_S, Job, serve_ranks, set_time_limit
from opbench.networks.train.train_options import TrainingProgress, TrainingSettings
from opbench.networks.train.training import Trainer
from opbench.running.runner import OnProgress

EXIT_LIMIT_S = 5.0
"""Seconds in which a finished rank may end on its own."""
LOG_TAIL_CHARACTERS = 400
"""Characters of a rank's log that are quoted if it crashes."""


def train_network(
    network: Graph,
    data: DataSet,
    options: TrainingSettings,
    tell: Callable[[TrainingProgress], None] = lambda progress: None,
    progress: OnProgress = lambda progress: None,
) -> TrainingRecord:
    """Train a network on one or several devices; return the record.

    Raises the errors of `Trainer.run`; EnvironmentFault, before anything runs, for fewer devices than ranks;
    RankLost for a process that dies. Then, and for any other end of this process, the other ranks are ended.
    """
    recipe = options.recipe
    if recipe.ranks == 1:
        return Trainer(network, data, options, progress=progress).run(tell)
    environments = backends.rank_environments(options.backend, recipe.ranks)
    options = replace(options, backend=backends.resolve_name(options.backend), out=options.out.absolute())
    with tempfile.TemporaryDirectory(prefix="opbench-ranks-") as folder:
        file = Path(folder) / "network.json"
        save(network, file)
        jobs = [Job(rank, file, data, options) for rank in range(recipe.ranks)]
        _Processes(jobs, environments, Path(folder)).run(tell, progress)
    return read_training(options.out)


class _Processes:
    """The processes of all ranks; they end with the call of `run` or with this process."""

    def __init__(self, jobs: Sequence[Job], environments: Sequence[Mapping[str, str]], logs: Path) -> None:
        self._jobs, self._environments, self._logs = jobs, environments, logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []

    def run(self, tell: Callable[[TrainingProgress], None], progress: OnProgress) -> None:
        """Start the processes, and answer them until they end."""
        try:
            for job, environment in zip(self._jobs, self._environments, strict=True):
                self._start(job.rank, environment)
            for job, pipe in zip(self._jobs, self._pipes, strict=True):
                set_time_limit(pipe, START_LIMIT_S)
                try:
                    pipe.send(job)
                except OSError:
                    break  # It crashed or hangs; the next read reports this.
            serve_ranks(self._pipes, tell, self._describe_death, progress)
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(EXIT_LIMIT_S)
        finally:
            self._end()

    def _start(self, rank: int, environment: Mapping[str, str]) -> None:
        with self._log_path(rank).open("wb") as log:
            process, pipe = start_module(
                "opbench.networks.train.rank",
                f"rank{rank}",
                environment=child_environment(environment),
                output=log,
                # A pipe without messages: it closes when this process ends, however it ends, and the rank then ends.
                stdin=subprocess.PIPE,
                new_session=True,  # a keyboard interrupt reaches only this process, which then ends the ranks
            )
        self._processes.append(process)
        self._pipes.append(pipe)

    def _log_path(self, rank: int) -> Path:
        return self._logs / f"rank{rank}.log"

    def _describe_death(self, rank: int, hang: str) -> str:
        process, ranks = self._processes[rank], len(self._jobs)
        what_happened = f"hangs: {hang}" if hang else f"died: {exit_cause(process.wait())}"
        log_text = self._log_path(rank).read_text(errors="replace").strip()[-LOG_TAIL_CHARACTERS:].replace("\n", " / ")
        ended_ranks = "all" if hang else "the others"
        return (
            f"rank {rank} of {ranks} (process {process.pid}) {what_happened}{f': {log_text}' if log_text else ''}; "
            f"{ended_ranks} were ended. Go on from the last checkpoint with --resume, with --gpus {ranks} or with "
            f"--accumulate {ranks * self._jobs[0].options.recipe.accumulate} on one device in its place"
        )

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.wait()
            pipe.close()
            if process.stdin:
                process.stdin.close()
