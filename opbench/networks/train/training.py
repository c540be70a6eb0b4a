"""Train a network: run the steps, collect losses, write checkpoints, and compute the score."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from opbench.backend.base import CollectiveBackend, Communicator, TimedBackend
from opbench.checking import backends
from opbench.errors import LaunchError, UsageError
from opbench.graph.graph import Graph
from opbench.graph.passes import apply_passes, to_dtype
from opbench.graph.training import training_graph
from opbench.graph.training_passes import RECOMPUTE
from opbench.graph.values import Node
from opbench.insight.defaults import RankingGpu, expected_s, ranking_gpu
from opbench.kernels.expression import round_up
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import WORKSPACE_ALIGNMENT
from opbench.networks.plan.choosing import gather_timed_cases, measure_cases
from opbench.networks.plan.executor import Context, Network, require_fitting
from opbench.networks.plan.node_times import node_samples, node_times
from opbench.networks.plan.nodes import check_nodes
from opbench.networks.plan.plan import Plan, PlanOptions, choose, load_plan, require_gpu, save_plan
from opbench.networks.plan.recompute import fit_to_memory, recompute_as_planned
from opbench.networks.records.checkpoints import CHECKPOINT_FILE, Checkpoint, write_checkpoint
from opbench.networks.records.training import (
    StepTimes,
    TrainingRecord,
    store_training_record,
)
from opbench.networks.train.buckets import overlapped_buckets
from opbench.networks.train.losses import LossLog, score_outputs
from opbench.networks.train.resuming import (
    UNSAVED_ARRAYS,
    checkpoint_of,
    open_checkpoint,
    plan_sha256,
    started_steps,
    training_state,
)
from opbench.networks.train.state import TrainingState
from opbench.networks.train.steps import AllReduce, Step, exchange_times
from opbench.networks.train.torch_comparison import TorchComparison
from opbench.networks.train.torch_training import StepProblem, dropout_masks
from opbench.networks.train.train_options import RECENT_STEPS, TrainingProgress
from opbench.networks.train.training_record import first_not_finite, training_record
from opbench.paths import next_command
from opbench.results.files import make_folder
from opbench.running.header import run_start
from opbench.running.protocol import OpenBackend
from opbench.running.runner import OnProgress
from opbench.running.worker import Worker

PLAN_FILE = "plan.json"
STEPS_AHEAD = 16
"""Steps that every rank but the first launches before it waits for them."""
PROGRESS_S = 0.5
"""Seconds between two reads of the losses."""


@dataclass
class Trainer(TrainingState):
    """The training of a network on one device."""

    progress: OnProgress = lambda progress: None
    """Receives the progress of --tune."""

    def __post_init__(self) -> None:
        (name,), (out,) = self.network.inputs, self.network.outputs
        self.batch = self.network.values[name].shape[0]
        self.output_shape = self.network.values[out].shape
        options, recipe = self.options, self.options.recipe
        self.rows = self.output_shape[0] // self.batch  # the output's rows of scores per item
        self.pictures = self.batch * recipe.micro_batches
        self.steps_per_epoch = self.data.items // self.pictures
        self._require_fitting_data()
        steps = started_steps(self.options) or self.steps_per_epoch * options.epochs or recipe.steps
        self.recipe = replace(recipe, steps=steps, dtype="bf16" if options.precision == "bf16" else "f32")
        self.name = options.resolved_backend()
        self.training = training_graph(self.network, self.recipe, len(self.data.images))
        self.catalog = Catalog(options.variants)
        given_plan = self._read_plan()
        self.backend = backends.open_backend(self.name)
        self.torch_comparison = self._torch_comparison()
        self.torch_comparison.require_possible(self.name)
        environment = self.backend.environment()
        self.device, self.gpu = ranking_gpu(environment), environment.gpu
        self.timed_cases = gather_timed_cases(options.results, self.catalog)
        if options.tune and self.rank == 0:
            self._require_free()
            self.timed_cases = {
                **self.timed_cases,
                **measure_cases([self.training.graph], options, options.out, self.progress, self.catalog),
            }
        plan = self._make_plan(given_plan) if self.rank == 0 else None
        self.plan = cast(Plan, self.group.broadcast(plan) if self.group else plan)
        self.training = recompute_as_planned(self.training, self.plan.again)
        self.start = run_start()
        self.cases = self.plan.cases(self.training.graph, self.catalog)
        require_fitting(self.training.graph, self.cases)
        self.communicator: Communicator | None = None

    def _require_fitting_data(self) -> None:
        """Raise UsageError for data with targets other than the loss needs, and for less data than one batch."""
        recipe = self.options.recipe
        self.data.require_targets(recipe.loss, self.output_shape, self.network.name)
        if recipe.loss == "cross_entropy" and self.rows != self.data.targets_per_item:
            raise UsageError(
                f"--data {self.data.name}: this data set has {self.data.targets_per_item} classes for each item, and "
                f"the output of {self.network.name} has {self.rows} rows of scores for each item; choose another data "
                "set or network: opbench net list",
                kind="other-targets",
                subject=self.data.name,
                value=self.data.targets_per_item,
                allowed=self.rows,
            )
        if not self.steps_per_epoch:
            micro_batch_text = f" x {recipe.micro_batches} micro-batches" if recipe.micro_batches > 1 else ""
            raise UsageError(
                f"a batch of {self.batch}{micro_batch_text} is larger than the data set, which has {self.data.items} "
                f"pictures; choose a batch of at most {self.data.items} pictures in all",
                kind="batch-too-large",
                subject=self.data.name,
                value=self.pictures,
                allowed=self.data.items,
            )

    def _torch_comparison(self) -> TorchComparison:
        """Return the data of the first step for a comparison with PyTorch."""
        state, (name,) = self.initial_state(), self.network.inputs
        count = self.recipe.accumulate
        rows = state["order"][: count * self.batch]
        images = self.data.images[rows].reshape(-1, *self.network.values[name].shape[1:])
        masks = [dropout_masks(self.training, k + 1) for k in range(count)] if self.options.compare else []
        problem = StepProblem(self.network, self.recipe, self.options.precision, images, self.data.targets[rows], masks)
        return TorchComparison(self.options.compare, problem, self.training, state, self.options.compare_limit_s)

    def _read_plan(self) -> Plan | None:
        """Return the plan in the options' file; None without a file.

        If the plan does not fit the step, passes that would remove its nodes are not applied: they are newer.
        """
        if self.options.plan is None:
            return None
        plan = load_plan(self.options.plan, self.training.graph.name, "", self.options.precision)
        if not plan.fits(self.training.graph, self.catalog):
            self.training = training_graph(self.network, self.recipe, len(self.data.images), plan.choices)
            newer_passes = self.training.recipe.without[len(self.recipe.without) :]
            if newer_passes:
                names = ", ".join(newer_passes)
                self.notes.append(f"not applied, because the plan has variants for their nodes: {names}")
            self.recipe = self.training.recipe
        return plan

    def _make_plan(self, given_plan: Plan | None) -> Plan:
        """Return the plan: the given one, that of the training to resume if it still fits, or a new one.

        With a memory limit, the step recomputes values as necessary.
        """
        options, graph = self.options, self.training.graph
        if given_plan is not None and options.plan is not None:
            require_gpu(given_plan, options.plan, self.gpu)
            return given_plan
        earlier_plan = options.out / PLAN_FILE
        if options.resume and earlier_plan.exists() and not (options.results or options.tune or options.memory_bytes):
            with contextlib.suppress(UsageError):
                plan = load_plan(earlier_plan, graph.name, self.gpu, options.precision)
                graph = recompute_as_planned(self.training, plan.again).graph
                # With another number of micro-batches or ranks, nodes that add gradients or count have other problems.
                unchanged = {n.name for n in graph.nodes if plan.case_of(n.name).endswith(str(n.problem))}
                kept_choices = {name: choice for name, choice in plan.choices.items() if name in unchanged}
                plan = replace(plan, choices={**self._choose_variants(graph).choices, **kept_choices})
                require_fitting(graph, plan.cases(graph, self.catalog))
                return plan
        parallel = options.parallel  # then values of all branches are live at the same time
        if options.memory_bytes and not parallel and RECOMPUTE not in self.recipe.without:
            return fit_to_memory(self.training, options.memory_bytes, self._choose_variants, self._workspace_bytes)
        return self._choose_variants(self.training.graph, options.memory_bytes)

    def _choose_variants(self, graph: Graph, memory_bytes: int | None = None) -> Plan:
        options = self.options
        plan_options = PlanOptions(
            options.precision,
            self.gpu,
            sm_count=self.backend.sm_count,
            memory_bytes=memory_bytes,
            parallel=options.parallel,
            device=self.device,
        )
        return choose(graph, self.timed_cases, plan_options, self.catalog)

    def _workspace_bytes(self, plan: Plan) -> dict[str, int]:
        cases = plan.cases(self.training.graph, self.catalog)
        return {
            n: sum(round_up(t.nbytes, WORKSPACE_ALIGNMENT) for t in c.workspace(self.backend.sm_count))
            for n, c in cases.items()
        }

    def _require_free(self) -> None:
        out = self.options.out
        if not self.options.resume and any((out / name).exists() for name in ("losses.jsonl", CHECKPOINT_FILE)):
            raise UsageError(
                f"{out}: this folder already contains a training; continue that training with --resume, or choose "
                "another --out DIR",
                kind="run-exists",
                subject=out,
            )

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self, tell: Callable[[TrainingProgress], None] = lambda progress: None) -> TrainingRecord:
        """Train to the end and return the record; checkpoints are written into the options' folder.

        Raises UsageError for a checkpoint of another training, NotFinite for a loss that is NaN or infinite.
        """
        out = self.options.out
        self._require_free()
        make_folder(out)
        checkpoint = open_checkpoint(self, out) if self.options.resume else None
        save_plan(self.plan, out / PLAN_FILE)
        if self.options.check:
            self._check_nodes(out)
        with self._open_network(checkpoint) as (network, step):
            return self._run_steps(network, step, tell)

    def run_without_record(self) -> None:
        """Train as a rank other than the first.

        Only the first rank reads losses, computes scores and writes files.
        """
        checkpoint = open_checkpoint(self, self.options.out) if self.options.resume else None
        with self._open_network(checkpoint) as (_, step):
            while self.step < self.recipe.steps:
                step.launch()
                self.step += 1
                if self.step % STEPS_AHEAD == 0:
                    self._wait_for_launches(step)
            self._wait_for_launches(step)
            if self.group is not None and isinstance(self.backend, TimedBackend):
                exchange_times(step, self.group.gather)

    def _wait_for_launches(self, step: Step) -> None:
        """Wait for the launches, and thereby for exchanges with other ranks."""
        with self.group.waiting() if self.group else contextlib.nullcontext():
            step.context.settle()

    @contextmanager
    def _open_network(self, checkpoint: Checkpoint | None) -> Iterator[tuple[Network, Step]]:
        """Yield the network on the device and its step, in the initial state."""
        if self.group is not None:
            self.group.require_equal("step, plan or data set", (self.step, plan_sha256(self), self.data.sha256))
        options = self.options
        with ExitStack() as stack:
            all_reduce = self._all_reduce()
            network = Network(self.training.graph, self.cases, self.backend, sm_counts=self._overlap_with_exchange())
            stack.callback(network.close)
            step = Step(
                network,
                self.training,
                graph=options.graph,
                parallel=options.parallel,
                all_reduce=all_reduce,
                bucket_bytes=options.bucket_bytes,
            )
            stack.callback(step.close)
            network.write_state(self.initial_state())
            if checkpoint:
                network.write_state(training_state(self, checkpoint))
            yield network, step
            if self.group is not None:
                self.group.require_equal("number of steps", self.recipe.steps)  # so that no rank ends before the others

    def _all_reduce(self) -> AllReduce | None:
        """Return the exchange over the ranks: by the device's library, or else through the main process."""
        if self.group is None or not isinstance(self.backend, CollectiveBackend):
            return self.group.all_reduce if self.group else None
        identity = self.group.broadcast(self.backend.new_communicator_id() if self.rank == 0 else None)
        joined = self.backend.communicator(self.recipe.ranks, cast(bytes, identity), self.rank)
        self.communicator = joined  # It ends with its process: the library would wait for ranks that may have ended.
        return joined.all_reduce

    def _overlap_with_exchange(self) -> dict[str, int]:
        """Return the number of multiprocessors to use for each node that runs during an exchange.

        A grid with one block per multiprocessor would otherwise run in two waves instead of one.
        """
        device = self.device
        if self.communicator is None or device is None:
            return {}
        smaller_device = replace(device, sm_count=device.sm_count - self.communicator.sm_count)
        # Only opbench's own variants can choose their grids.
        own_cases = {name: case for name, case in self.cases.items() if not case.variant.is_library}

        def expected_time(gpu: RankingGpu) -> Callable[[Node], float]:
            return lambda node: expected_s(own_cases[node.name], gpu) if node.name in own_cases else 0.0

        names = overlapped_buckets(
            self.training, self.options.bucket_bytes, expected_time(device), expected_time(smaller_device)
        )
        return dict.fromkeys(names, smaller_device.sm_count)

    def _check_nodes(self, out: Path) -> None:
        """Check every node of the first step in a worker process; raise LaunchError for a wrong one.

        Each node runs on the outputs of the nodes before it.
        """
        graph = self.training.graph
        graph = replace(graph, state={**graph.state, **self.initial_state()})
        worker = Worker(OpenBackend(self.name, self.options.variants, self.recipe.seed), out / "worker.log")
        try:
            verdicts = check_nodes(graph, self.cases, {}, worker, self.options.time_limit_s)
        finally:
            worker.end()
        if wrong := {name: check for name, check in verdicts.items() if not check.right}:
            name, check = next(iter(wrong.items()))
            count_text = f" (and {len(wrong) - 1} more nodes)" if len(wrong) > 1 else ""
            raise LaunchError(
                f"{name}: {self.cases[name].name} is {check.status}: {check.reason}{count_text}; check "
                "the variant with: "
                f"{next_command('check', self.cases[name].variant.id, variants=self.options.variants)}",
                kind="node-not-right",
                subject=name,
                value=self.cases[name].name,
            )
        self.notes.append(f"all {len(verdicts)} nodes of the first step are right on its own data")

    def _run_steps(self, network: Network, step: Step, tell: Callable[[TrainingProgress], None]) -> TrainingRecord:
        log = LossLog(self.options.out / "losses.jsonl", self.losses)
        began_s = saved_s = reported_s = time.perf_counter()
        first_step = reported_step = self.step
        steps_ahead = 1  # launches before a wait: a device accepts launches far faster than it runs them
        evaluate_every = self.options.evaluate_every or self.steps_per_epoch
        evaluation_s = 0.0  # seconds spent on the score of the test set and on checkpoints
        with log:
            while self.step < self.recipe.steps:
                step.launch()
                self.step += 1
                self.seen += self.recipe.micro_batches
                now_s = time.perf_counter()
                evaluates = self.step % evaluate_every == 0 or self.step == self.recipe.steps
                if self.step - reported_step >= steps_ahead or evaluates:
                    self._collect_losses(network, step, log)
                    collected_s = time.perf_counter()
                    steps_ahead = max(1, int(PROGRESS_S * (self.step - reported_step) / (collected_s - reported_s)))
                    reported_step = self.step
                    if evaluates:
                        self.scores.append((self.step, self.score(self.training.weights(network.read_state()))))
                        evaluation_s += time.perf_counter() - collected_s
                    reported_s = time.perf_counter()
                    tell(self._progress(first_step, reported_s - began_s - evaluation_s))
                if now_s - saved_s > self.options.checkpoint_every_s:
                    self._collect_losses(network, step, log)
                    collected_s = time.perf_counter()
                    self._save(network, step, log)
                    saved_s = time.perf_counter()
                    evaluation_s += saved_s - collected_s
            seconds = time.perf_counter() - began_s - evaluation_s
            self._save(network, step, log)
        rate = (self.step - first_step) * self.pictures / max(seconds, 1e-9)
        record = self._measured_record(network, step, rate)
        store_training_record(record, self.options.out)
        return record

    def _measured_record(self, network: Network, step: Step, rate: float) -> TrainingRecord:
        """Measure the step and return the record of the training; ranks compare nothing with PyTorch."""
        if self.group is None:
            times, comparison = self.torch_comparison.measure(network, step, self.backend)
            return replace(training_record(self, step, times, rate), comparison=comparison)
        if not isinstance(self.backend, TimedBackend):
            return training_record(self, step, StepTimes(), rate)
        exchanged = exchange_times(step, self.group.gather)
        times = StepTimes(nodes_s=node_times(node_samples(step.context, self.backend.clock("cold"))))
        return replace(training_record(self, step, times, rate), exchange=exchanged)

    def _collect_losses(self, network: Network, step: Step, log: LossLog) -> None:
        """Read the losses of the new steps, append them to the file, and raise NotFinite for a NaN or an infinity."""
        self._wait_for_launches(step)
        losses = network.read_state("losses")["losses"]
        for step_index in range(len(self.losses), self.step):
            loss = float(losses[step_index])
            if not math.isfinite(loss):
                raise first_not_finite(self, network, step, step_index)
            if step_index < len(self.repeated) and self.repeated[step_index] != loss:
                self.notes.append(
                    f"step {step_index + 1} gave {loss!r}, and {self.repeated[step_index]!r} before the interruption: "
                    "the same bits need the same plan, GPU and version"
                )
                self.repeated = []
            log.append(step_index, loss)
        log.flush()

    def _save(self, network: Network, step: Step, log: LossLog) -> None:
        """Write a checkpoint of the last complete step."""
        size = log.sync_to_disk()
        state = network.read_state(*(name for name in network.state if name not in UNSAVED_ARRAYS))
        write_checkpoint(self.options.out, checkpoint_of(self, state, size))

    def _progress(self, first_step: int, elapsed_s: float) -> TrainingProgress:
        steps_done = self.step - first_step
        rate = steps_done * self.pictures / max(elapsed_s, 1e-9)
        return TrainingProgress(
            self.step,
            self.recipe.steps,
            self.step / self.steps_per_epoch,
            float(np.mean(self.losses[-RECENT_STEPS:])),
            self.scores[-1][1] if self.scores else None,
            self.score_name,
            rate,
            (self.recipe.steps - self.step) * self.pictures / rate,
            self.data.unit,
        )

    # The test set ----------------------------------------------------------------------------------------------

    def score(self, weights: Mapping[str, np.ndarray]) -> float:
        """Return the score of the network for inference on the test set, such as its accuracy."""
        graph, _ = apply_passes(self.network.with_weights(dict(weights)))
        graph = to_dtype(graph, self.recipe.dtype)
        network = Network(graph, self._choose_variants(graph).cases(graph, self.catalog), self.backend)
        try:
            context = Context(network, graph=False)
            try:
                outputs = self._infer_all(context)
            finally:
                context.close()
        finally:
            network.close()
        targets = self.data.test_targets
        return score_outputs(self.recipe.loss, outputs, targets.reshape(-1) if self.data.is_text else targets)

    def _infer_all(self, context: Context) -> np.ndarray:
        (name,), (out,) = self.network.inputs, self.network.outputs
        test_inputs, predictions = self.data.test_images, []
        for first_row in range(0, len(test_inputs), self.batch):
            rows = np.resize(np.arange(first_row, min(first_row + self.batch, len(test_inputs))), self.batch)
            predictions.append(
                context.run({name: test_inputs[rows]})[out][: (len(test_inputs) - first_row) * self.rows]
            )
        return np.concatenate(predictions)
