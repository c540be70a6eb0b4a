"""The functions and classes for networks, and for runs of either kind, that `import opbench` exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opbench.errors import UsageError
from opbench.networks.records.network import read_network
from opbench.results.files import Run
from opbench.running.progress import silent
from opbench.running.runner import OnProgress

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from opbench.graph.graph import Graph
    from opbench.networks.plan.data import DataSet
    from opbench.networks.records.training import TrainingRecord
    from opbench.networks.train.train_options import TrainingProgress, TrainOptions


def load(folder: str | Path) -> pandas.DataFrame:
    """Return a run as a pandas frame with one row per case; `opbench.results.rows.frame` lists the columns.

    For the run of a network, the first row is the whole network and each other row is a node. Times are in seconds.
    Raises UsageError if `folder` holds no run.
    """
    return read_run(folder).frame()


def read_run(folder: str | Path) -> Run:
    """Return the run in a folder, also that of a network, as a `Run`, which a notebook shows as a table.

    Raises UsageError if `folder` holds no run.
    """
    from opbench.networks.records.network_run import read_any_run

    return read_any_run(Path(folder))


def figures(run: Run, gpu: str = "h200") -> dict[str, Figure]:
    """Return the matplotlib figures of a run's report by name, such as "matmul-1".

    For a network they are "timeline", "memory" and, with `--attribution`, "attribution", read from the run's
    folder. `gpu` names the model whose peaks are used if the run has no measured ones.
    """
    from opbench import report

    if not run.of_network:
        return report.figures(run, gpu)
    from opbench.networks.report.attribution import waterfall_chart
    from opbench.networks.report.figures import memory_chart, timeline_chart
    from opbench.report.charts.svg import report_style

    with report_style():
        record = read_network(run.folder)
        charts = {"timeline": timeline_chart, "memory": memory_chart, "attribution": waterfall_chart}
        return report.draw_figures({name: draw(record) for name, draw in charts.items()})


def train(
    network: Graph,
    data: str | DataSet,
    options: TrainOptions | None = None,
    *,
    tell: Callable[[TrainingProgress], None] = lambda progress: None,
    progress: OnProgress = silent,
    **changes: Any,
) -> TrainingRecord:
    """Train a network with one input and one output, and return the record of the training.

    Weights and page are written into the folder `out`. `data` is a name as `opbench net train --data` accepts,
    or a `DataSet`, which `opbench.networks.plan.data.own_data` builds from arrays: float32 images (items, c, h,
    w) with int32 classes or float32 arrays as targets. `changes` are fields of `TrainOptions`, such as
    `epochs=3`, and override those of `options`. `tell` receives the progress of the training and `progress`
    that of `tune`. Raises UsageError for options that exclude each other, before anything runs; NotFinite for a
    loss that is NaN or infinite; RankLost if one of several processes dies.
    """
    from opbench.networks.plan.data import load_data
    from opbench.networks.report.training import write_training
    from opbench.networks.train.ranks import train_network
    from opbench.networks.train.train_options import TrainOptions

    chosen = replace(options or TrainOptions(), **changes)
    if len(network.inputs) != 1:
        raise UsageError(
            f"{network.name}: this network has {len(network.inputs)} inputs, and training needs a network with one "
            "input, "
            'such as opbench.network("gpt2", training=True)',
            kind="not-one-each",
            subject=network.name,
            value=len(network.inputs),
            allowed=1,
        )
    if isinstance(data, str):
        data = load_data(data, network.values[network.inputs[0]].shape, chosen.seed, network.name)
    settings = chosen.settings(network.name, data.loss)
    record = train_network(network, data, settings, tell, progress)
    write_training(record, settings.out)
    return record
