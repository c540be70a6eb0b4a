"""What `import opbench` offers of networks, and of runs of either kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opbench import paths
from opbench.checking import backends
from opbench.errors import UsageError
from opbench.networks.records.network import read_network
from opbench.results.files import Run
from opbench.running.runner import Progress, Tell

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from opbench.graph.graph import Graph
    from opbench.networks.plan.data import DataSet
    from opbench.networks.records.training import TrainingRecord
    from opbench.networks.train.train_options import Standing


def silent(progress: Progress) -> None:
    """Tell nothing."""


def load(folder: str | Path) -> pandas.DataFrame:
    """A run as a pandas frame, one row a case; see `opbench.results.rows.frame` for the columns.

    Of a network's run the first row is the whole, and each other one a node.
    """
    return read_run(folder).frame()


def read_run(folder: str | Path) -> Run:
    """A run from its folder, also one of a network; a notebook shows it as a table. Raises UsageError."""
    from opbench.networks.records.network_run import read_any_run

    return read_any_run(Path(folder))


def figures(run: Run, gpu: str = "h200") -> dict[str, Figure]:
    """The figures of a run's report by name, such as "matmul-1": the same that its report has as PNG.

    Of a network's run they are those of its page, "timeline" and "memory", read from its folder.
    """
    from opbench import report

    if not run.of_network:
        return report.figures(run, gpu)
    from opbench.networks.report.figures import memory_chart, timeline_chart

    with report.styled():
        record = read_network(run.folder)
        return report.drawn({"timeline": timeline_chart(record), "memory": memory_chart(record)})


def train(
    network: Graph,
    data: str | DataSet,
    *,
    epochs: int = 0,
    steps: int = 0,
    accumulate: int = 1,
    gpus: int = 1,
    bucket_bytes: int = 8 << 20,
    loss: str = "",
    optimizer: str = "adam",
    learning_rate: float = 1e-3,
    schedule: str = "cosine",
    warmup_steps: int = 0,
    momentum: float = 0.9,
    decay: float = 0.0,
    clip: float = 0.0,
    layout: str = "auto",
    without: Sequence[str] = (),
    precision: str = "f32",
    plan: str | Path | None = None,
    results: Sequence[str | Path] = (),
    tune: bool = False,
    leave_out: Sequence[str] = (),
    memory_bytes: int | None = None,
    graph: bool = True,
    parallel: bool = False,
    check: bool = False,
    compare: Sequence[str] = (),
    compare_limit_s: float = 120.0,
    backend: str = "auto",
    variants: Sequence[str | Path] = (),
    seed: int = 0,
    evaluate_every: int = 0,
    checkpoint_every_s: float = 60.0,
    out: str | Path | None = None,
    resume: bool = False,
    command: Sequence[str] = (),
    tell: Callable[[Standing], None] = lambda standing: None,
    progress: Tell = silent,
) -> TrainingRecord:
    """Train a network of one input and one output; returns the record, with weights and page in the folder `out`.

    `data` is a name as `opbench net train --data` takes it, or a `DataSet`, which `opbench.networks.plan.data.own_data`
    makes of arrays; `epochs` or `steps` say when to end, ten epochs unless told; `accumulate` is how many batches a
    step takes before its one update, `gpus` how many GPUs (on cpu: processes) take such batches side by side; `clip` is
    the most that the norm of all gradients may be before the optimiser takes less of them, 0 for no limit; `loss` is
    what is usual for the data unless told; `layout` auto is nhwc on a GPU. The others are as the command's options of
    those names; `tell` hears how far it is, `progress` how far `tune` is. Raises UsageError for what does not fit
    together, before anything runs, NotFinite for a loss that is none, RankLost where one of several processes dies.
    """
    from opbench.graph.recipe import Recipe
    from opbench.networks.plan.data import load_data
    from opbench.networks.report.training import write_training
    from opbench.networks.train.ranks import train_network
    from opbench.networks.train.train_options import TrainOptions

    if epochs and steps:
        raise UsageError("--epochs and --steps both say when to end; give one of them")
    if resume and out is None:
        raise UsageError("--resume goes on with the training in a folder; name it: --out DIR")
    if len(network.inputs) != 1:
        raise UsageError(f"{network.name}: it has {len(network.inputs)} inputs; training takes a network of one")
    given = (
        data
        if not isinstance(data, str)
        else load_data(data, network.values[network.inputs[0]].shape, seed, network.name)
    )
    recipe = Recipe(
        loss=loss or given.loss,
        optimizer=optimizer,
        learning_rate=learning_rate,
        schedule=schedule,
        warmup_steps=warmup_steps,
        momentum=momentum,
        decay=decay,
        clip=clip,
        steps=steps or 1,
        accumulate=accumulate,
        ranks=gpus,
        seed=seed,
        layout=layout if layout != "auto" else "nhwc" if backends.resolve(backend) == "cuda" else "nchw",
        without=tuple(without),
    )
    options = TrainOptions(
        recipe,
        epochs=0 if steps else epochs or 10,
        resume=resume,
        checkpoint_every_s=checkpoint_every_s,
        evaluate_every=evaluate_every,
        check=check,
        backend=backend,
        precision=precision,
        roots=tuple(Path(root).resolve() for root in variants),
        plan=Path(plan) if plan else None,
        results=tuple(map(Path, results)),
        tune=tune,
        leave_out=tuple(leave_out),
        graph=graph,
        parallel=parallel,
        bucket_bytes=bucket_bytes,
        memory_bytes=memory_bytes,
        compare=tuple(compare),
        compare_limit_s=compare_limit_s,
        out=Path(out) if out else paths.new_run(f"{network.name}-training-{backends.resolve(backend)}"),
        command=tuple(command),
    )
    record = train_network(network, given, options, tell, progress)
    write_training(record, options.out)
    return record
