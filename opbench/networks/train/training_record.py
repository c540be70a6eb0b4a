"""Write the record of a training, and find the node that produced a NaN or an infinity."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np

from opbench._version import __version__
from opbench.errors import NotFinite
from opbench.graph.graph import Graph
from opbench.graph.training import training_graph
from opbench.graph.training_passes import TRAINING_PASSES
from opbench.kernels.tensors import from_storage
from opbench.networks.plan.executor import Network
from opbench.networks.plan.running import workspace_records
from opbench.networks.records.checkpoints import read_checkpoint
from opbench.networks.records.network import ValueRecord
from opbench.networks.records.training import (
    FORMAT,
    DataRecord,
    PassSaving,
    StepMemory,
    StepTimes,
    TrainingNode,
    TrainingPass,
    TrainingRecord,
)
from opbench.networks.train.resuming import training_state
from opbench.networks.train.state import TrainingState
from opbench.networks.train.steps import Step, launches_of


def training_record(training: TrainingState, step: Step, timed: StepTimes, images_per_s: float) -> TrainingRecord:
    """Return the record of a finished training, the content of train.json."""
    graph, network, memory = training.training.graph, step.context.network, step.context.memory
    return TrainingRecord(
        format=FORMAT,
        opbench=__version__,
        **training.start,
        command=training.options.command,
        network=training.network.name,
        recipe={key: str(value) for key, value in asdict(training.recipe).items()},
        data=DataRecord(training.data.name, training.data.sha256, training.data.items, training.data.unit),
        batch=training.batch,
        steps_per_epoch=training.steps_per_epoch,
        precision=training.options.precision,
        backend=training.name,
        environment=training.backend.environment(),
        losses=tuple(training.losses),
        scores=tuple(training.scores),
        score_name=training.score_name,
        images_per_s=images_per_s,
        times=timed,
        parameters=sum(math.prod(shape) for _, shape in training.training.parameters.values()),
        memory=StepMemory(
            activations_bytes=memory.peak_bytes,
            state_bytes=sum(graph.values[name].nbytes for name in graph.state),
            data_bytes=sum(graph.values[name].nbytes for name in ("data", "targets", "order")),
            offsets=dict(memory.offsets),
            workspaces=workspace_records(network, memory),
        ),
        values={v.name: ValueRecord(bytes=v.nbytes, of=v.of) for v in graph.values.values()},
        passes=_pass_records(training),
        nodes=tuple(
            TrainingNode(
                name=node.name,
                operator=node.operator,
                group=training.training.groups.get(node.name, "backward"),
                case=training.cases[node.name].name,
                inputs=dict(node.inputs),
                outputs=dict(node.outputs),
                launches=launches_of(training.training, node.name),
                flops=node.problem.flops(),
                compulsory_bytes=node.problem.bytes(),
                source=training.plan.choices[node.name].source,
            )
            for node in graph.nodes
        ),
        notes=tuple(training.notes),
    )


def _pass_records(training: TrainingState) -> tuple[TrainingPass, ...]:
    """Return each graph pass with its saving: the difference from a step without the pass."""
    network, recipe, items = training.network, training.recipe, len(training.data.images)
    full_work, records = _graph_work(training_graph(network, recipe, items).graph), []
    for rewrite in training.training.rewrites:
        records.append(TrainingPass(rewrite.name, rewrite.on, rewrite.notes))
        if not (rewrite.on and rewrite.notes and rewrite.name in TRAINING_PASSES):
            continue
        without = training_graph(network, replace(recipe, without=(*recipe.without, rewrite.name)), items).graph
        nodes, nbytes, flops = (
            without_pass - with_pass for without_pass, with_pass in zip(_graph_work(without), full_work, strict=True)
        )
        records[-1] = replace(records[-1], saved=PassSaving(nodes, nbytes, flops))
    return tuple(records)


def _graph_work(graph: Graph) -> tuple[int, int, int]:
    """Return the number of nodes, the compulsory bytes and the FLOPs of a graph."""
    problems = [node.problem for node in graph.nodes]
    return len(problems), sum(p.bytes() for p in problems), sum(p.flops() for p in problems)


def first_not_finite(training: TrainingState, network: Network, step: Step, step_index: int) -> NotFinite:
    """Return the error for a NaN or an infinity, with the node that first computed one.

    The step runs again node by node, from the last checkpoint.
    """
    subject, graph, context = f"step {step_index + 1}: the loss is not finite", training.training.graph, step.context
    if training.group is not None:
        return NotFinite(
            f"{subject}; which node made the first such value says one device, to the same bits: --resume with "
            f"--accumulate {training.recipe.micro_batches} in the place of --gpus {training.recipe.ranks}",
            value=step_index + 1,
        )
    checkpoint = read_checkpoint(training.options.out)
    network.write_state(graph.state)
    network.write_state(training.initial_state())
    first_step = 0
    if checkpoint:
        network.write_state(training_state(training, checkpoint))
        first_step = checkpoint.facts.step
    for _ in range(first_step, step_index):
        step.launch()
    for step_launch in step.launch_parts():
        training.backend.synchronize()
        node = graph.node(step_launch.name)
        for name in node.outputs.values():
            stored = context.buffer(name, step_launch.replaced_states).read()
            if not np.isfinite(from_storage(stored, graph.values[name].dtype)).all():
                if node.operator == "record" or name == "losses.next":
                    continue
                return NotFinite(
                    f"{subject}; the first value that is not is '{name}', which {node.name} ({node.operator}) made",
                    subject=name,
                    value=step_index + 1,
                )
    return NotFinite(
        f"{subject}, but done again from step {first_step} it is: the step does not repeat its bits",
        value=step_index + 1,
    )
