"""Training: steps of one graph, what they lose, checkpoints that outlive a crash, and what was learnt at the end."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

import opbench
from opbench import backends
from opbench.backends.base import Backend
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.catalog.operator import to_storage
from opbench.errors import LaunchError, UsageError, unknown
from opbench.graphs.graph import Graph
from opbench.graphs.passes import apply_passes, to_dtype
from opbench.graphs.problems import ALLOWED
from opbench.graphs.training import STORED, Training, training_graph
from opbench.nets import checkpoints
from opbench.nets.beside import Beside
from opbench.nets.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from opbench.nets.choosing import gather
from opbench.nets.data import DataSet
from opbench.nets.executor import Context, Network
from opbench.nets.losses import LossLog, judged, read_losses
from opbench.nets.nodes import check_nodes
from opbench.nets.plan import Plan, choose
from opbench.nets.running import make_folder
from opbench.nets.train_options import Standing, TrainOptions
from opbench.nets.training_peers import StepProblem, masks_of
from opbench.nets.training_record import first_not_finite, training_record
from opbench.results.training import TrainingRecord, keep_training
from opbench.runs.header import now
from opbench.runs.protocol import Open
from opbench.runs.worker import Worker

DATA = ("data", "targets", "order", "learning_rates", "hyper", "gradients", "losses")
"""State that a checkpoint leaves out: it follows from the options, or is written anew by each step."""
PARAMETERS = ("parameters", STORED)
"""State that the network's weights in a checkpoint are: in float32, whatever the step reads."""
RECENT = 50
"""Steps whose mean loss is told."""
EVERY_S = 0.5
"""How often the losses are read."""


class NotFinite(LaunchError):
    """A loss that is no number; says in which step and which node made the first such value."""


@dataclass
class Trainer:
    """A network in training on one device."""

    network: Graph
    data: DataSet
    options: TrainOptions
    losses: list[float] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (name,), (out,) = self.network.inputs, self.network.outputs
        self.batch = self.network.values[name].shape[0]
        self.output_shape = self.network.values[out].shape
        options, recipe = self.options, self.options.recipe
        self.data.require_targets(recipe.loss, self.output_shape)
        self.steps_per_epoch = self.data.items // self.batch
        if not self.steps_per_epoch:
            raise UsageError(f"a batch of {self.batch} is larger than the data set's {self.data.items} pictures")
        steps = self.steps_per_epoch * options.epochs or recipe.steps
        if options.precision not in ALLOWED:
            raise UsageError(unknown("precision", options.precision, ALLOWED))
        self.recipe = replace(recipe, steps=steps, dtype="bf16" if options.precision == "bf16" else "f32")
        self.step = 0
        self.name = backends.resolve(options.backend)
        self.training: Training = training_graph(self.network, self.recipe, len(self.data.images))
        self.backend: Backend = backends.open_backend(self.name)
        catalog = Catalog(options.roots)
        self.known = gather(options.results, catalog)
        self.plan = self._chosen(self.training.graph)
        self.started = now()
        self.cases: Mapping[str, Case] = self.plan.cases(self.training.graph, catalog)
        self.beside = self._beside()
        self.beside.require(self.name)
        self._repeated: list[float] = []
        """Losses of steps that an earlier try went on to after its last checkpoint."""
        self.told: list[str] = []

    def _beside(self) -> Beside:
        """The first batch, for PyTorch to do the same step with."""
        given, (name,) = self.given_state(), self.network.inputs
        rows = given["order"][: self.batch]
        images = self.data.images[rows].reshape(self.network.values[name].shape)
        masks = masks_of(self.training) if self.options.compare else {}
        problem = StepProblem(self.network, self.recipe, self.options.precision, images, self.data.targets[rows], masks)
        return Beside(self.options.compare, problem, self.training, given)

    def _chosen(self, graph: Graph) -> Plan:
        return choose(
            graph,
            self.known,
            self.options.precision,
            self.name,
            sm_count=self.backend.sm_count,
            parallel=self.options.parallel,
            catalog=Catalog(self.options.roots),
        )

    # The whole ----------------------------------------------------------------------------------------------------

    def run(self, tell: Callable[[Standing], None] = lambda standing: None) -> TrainingRecord:
        """Train to the end and return the record; files are in the options' folder after each checkpoint.

        Raises UsageError for a checkpoint that is another training's, NotFinite for a loss that is no number.
        """
        out = self.options.out
        make_folder(out)
        checkpoint = self._resumed(out) if self.options.resume else None
        if checkpoint is None and any((out / name).exists() for name in ("losses.jsonl", "checkpoint.safetensors")):
            raise UsageError(f"{out}: holds a training already; go on with it: --resume, or choose another --out DIR")
        if self.options.check:
            self._check_nodes(out)
        network = Network(self.training.graph, self.cases, self.backend)
        try:
            context = Context(network, graph=self.options.graph, parallel=self.options.parallel)
            try:
                network.write_state(self.given_state())
                if checkpoint:
                    network.write_state(self.training_state(checkpoint))
                record = self._steps(network, context, tell)
            finally:
                context.close()
        finally:
            network.close()
        return record

    def _check_nodes(self, out: Path) -> None:
        """Every node of the first step, in a worker, on what those before it wrote; LaunchError for a wrong one."""
        graph = self.training.graph
        graph = replace(graph, state={**graph.state, **self.given_state()})
        worker = Worker(Open(self.name, self.options.roots, self.recipe.seed), out / "worker.log")
        try:
            found = check_nodes(graph, self.cases, {}, worker, self.options.time_limit_s)
        finally:
            worker.end()
        if wrong := {name: check for name, check in found.items() if not check.right}:
            name, check = next(iter(wrong.items()))
            more = f" (and {len(wrong) - 1} more nodes)" if len(wrong) > 1 else ""
            raise LaunchError(f"{name}: {self.cases[name].name} is {check.status}: {check.reason}{more}")
        self.told.append(f"all {len(found)} nodes of the first step are right on its own data")

    def given_state(self) -> dict[str, np.ndarray]:
        """What follows from the data and the recipe, as it is stored."""
        data, values = self.data, self.training.graph.values
        epochs = -(-self.recipe.steps // self.steps_per_epoch)
        order = data.order(epochs, self.batch, self.recipe.seed)[: self.recipe.steps * self.batch]
        given = {"data": data.images, "targets": data.targets, "order": order}
        return {n: to_storage(array.reshape(values[n].shape), values[n].dtype) for n, array in given.items()}

    def _steps(self, network: Network, context: Context, tell: Callable[[Standing], None]) -> TrainingRecord:
        log = LossLog(self.options.out / "losses.jsonl", self.losses)
        began_s = saved_s = told_s = time.perf_counter()
        began = told = self.step
        ahead = 1  # launches before one is waited for: a device takes them far faster than it works them off
        evaluate_every = self.options.evaluate_every or self.steps_per_epoch
        spent_s = 0.0  # on looks at what is held out
        with log:
            while self.step < self.recipe.steps:
                context.launch()
                self.step += 1
                now_s = time.perf_counter()
                looks = self.step % evaluate_every == 0 or self.step == self.recipe.steps
                if self.step - told >= ahead or looks:
                    self._collect(network, context, log)
                    collected_s = time.perf_counter()
                    ahead = max(1, int(EVERY_S * (self.step - told) / (collected_s - told_s)))
                    told = self.step
                    if looks:
                        self.scores.append((self.step, self.score(self.training.weights(network.read_state()))))
                        spent_s += time.perf_counter() - collected_s
                    told_s = time.perf_counter()
                    tell(self._standing(began, told_s - began_s - spent_s))
                if now_s - saved_s > self.options.checkpoint_every_s:
                    self._save(network, context, log)
                    saved_s = time.perf_counter()
            self._save(network, context, log)
        seconds = time.perf_counter() - began_s - spent_s
        timed, comparison = self.beside.measured(network, context, self.backend)
        record = training_record(self, context, timed, (self.step - began) * self.batch / max(seconds, 1e-9))
        if comparison:
            record["comparison"] = comparison
        keep_training(record, self.options.out)
        return record

    def _collect(self, network: Network, context: Context, log: LossLog) -> None:
        """The losses of the steps since the last look: on disk, each a number, and as they were if done before."""
        context.settle()
        losses = network.read_state("losses")["losses"]
        for step in range(len(self.losses), self.step):
            loss = float(losses[step])
            if not math.isfinite(loss):
                raise NotFinite(first_not_finite(self, network, context, step))
            if step < len(self._repeated) and self._repeated[step] != loss:
                self.told.append(
                    f"step {step + 1} gave {loss!r}, and {self._repeated[step]!r} before the interruption: the same "
                    "bits need the same plan, GPU and version"
                )
                self._repeated = []
            log.append(step, loss)
        log.flush()

    def _standing(self, began: int, seconds: float) -> Standing:
        done = self.step - began
        rate = done * self.batch / max(seconds, 1e-9)
        return Standing(
            self.step,
            self.recipe.steps,
            self.step / self.steps_per_epoch,
            float(np.mean(self.losses[-RECENT:])),
            self.scores[-1][1] if self.scores else None,
            self.score_name,
            rate,
            (self.recipe.steps - self.step) * self.batch / rate,
        )

    # What is held out ---------------------------------------------------------------------------------------------

    @property
    def score_name(self) -> str:
        """What the held-out pictures are judged by."""
        return {"cross_entropy": "accuracy", "binary_cross_entropy": "IoU"}.get(self.recipe.loss, self.recipe.loss)

    def score(self, weights: Mapping[str, np.ndarray]) -> float:
        """Of the held-out pictures, by the network as it infers: see `judged`."""
        graph, _ = apply_passes(self.network.with_weights(dict(weights)))
        graph = to_dtype(graph, self.recipe.dtype)
        network = Network(graph, self._chosen(graph).cases(graph, Catalog(self.options.roots)), self.backend)
        try:
            context = Context(network, graph=False)
            try:
                outputs = self._inferred(context)
            finally:
                context.close()
        finally:
            network.close()
        return judged(self.recipe.loss, outputs, self.data.held_targets)

    def _inferred(self, context: Context) -> np.ndarray:
        (name,), (out,) = self.network.inputs, self.network.outputs
        images, found = self.data.held_images, []
        for first in range(0, len(images), self.batch):
            rows = np.resize(np.arange(first, min(first + self.batch, len(images))), self.batch)
            found.append(context.run({name: images[rows]})[out][: len(images) - first])
        return np.concatenate(found)

    # Files --------------------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, object]:
        """What a checkpoint belongs to; another plan or device may go on with it, but not to the same bits."""
        return {
            "network": self.network.name,
            "parameters": {name: list(shape) for name, (_, shape) in self.training.parameters.items()},
            "recipe": {key: value for key, value in asdict(self.recipe).items() if key != "without"},
            "data": self.data.sha256,
        }

    def _save(self, network: Network, context: Context, log: LossLog) -> None:
        self._collect(network, context, log)
        size = log.synchronised()
        state = network.read_state(*(name for name in network.state if name not in DATA))
        arrays = {f"weight.{name}": a for name, a in self.training.weights(state).items()}
        arrays |= {f"state.{name}": a for name, a in state.items() if name not in PARAMETERS}
        facts = {
            "format": checkpoints.FORMAT,
            "opbench": opbench.__version__,
            "step": self.step,
            "identity": self.identity(),
            "plan": self._plan_sha256(),
            "backend": self.name,
            "losses_bytes": size,
            "scores": self.scores,
        }
        write_checkpoint(self.options.out, Checkpoint(facts, arrays))

    def _plan_sha256(self) -> str:
        text = json.dumps({name: case.name + case.variant.source_sha256 for name, case in self.cases.items()})
        return hashlib.sha256(text.encode()).hexdigest()

    def _resumed(self, out: Path) -> Checkpoint | None:
        """The last checkpoint of this very training, and the losses up to it; None where there is none yet."""
        found = read_checkpoint(out)
        losses = out / "losses.jsonl"
        if found is None:
            losses.unlink(missing_ok=True)
            return None
        facts = found.facts
        known: Mapping[str, object] = facts["identity"]  # type: ignore[assignment]
        for key, value in json.loads(json.dumps(self.identity())).items():
            if known.get(key) != value:
                has, asked = (_brief(each) for each in _apart(known.get(key), value))
                raise UsageError(
                    f"{out}: the checkpoint there is of another {key} ({has}; asked for is {asked}); name the same, or "
                    "choose another --out DIR"
                )
        if (facts["plan"], facts["backend"]) != (self._plan_sha256(), self.name):
            self.told.append("the checkpoint is of other kernels or another device: it goes on, not to the same bits")
        self.step = int(str(facts["step"]))
        self.scores = [(int(step), float(score)) for step, score in facts["scores"]]  # type: ignore[attr-defined]
        before = read_losses(losses)
        self.losses, self._repeated = before[: self.step], before
        if len(self.losses) < self.step:
            raise UsageError(
                f"{losses}: has {len(self.losses)} steps, the checkpoint {self.step}; choose another --out DIR"
            )
        with losses.open("r+b") as file:
            file.truncate(int(str(facts["losses_bytes"])))
        return found

    def training_state(self, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
        """A checkpoint's arrays as the graph's state."""
        state = {name.removeprefix("state."): a for name, a in checkpoint.arrays.items() if name.startswith("state.")}
        return {**state, **self.training.given_parameters(checkpoint.weights)}


def _apart(one: object, other: object) -> tuple[object, object]:
    """Both, of tables what differs."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return {key: one.get(key) for key in keys}, {key: other.get(key) for key in keys}


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
