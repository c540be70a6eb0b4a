"""What `import opbench` offers of networks, and of runs of either kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opbench.errors import UsageError
from opbench.networks.records.network import read_network
from opbench.results.files import Run
from opbench.running.progress import silent
from opbench.running.runner import Tell

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from opbench.graph.graph import Graph
    from opbench.networks.plan.data import DataSet
    from opbench.networks.records.training import TrainingRecord
    from opbench.networks.train.train_options import Standing, TrainOptions


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
    options: TrainOptions | None = None,
    *,
    tell: Callable[[Standing], None] = lambda standing: None,
    progress: Tell = silent,
    **changes: Any,
) -> TrainingRecord:
    """Train a network of one input and one output; returns the record, with weights and page in the folder `out`.

    `data` is a name as `opbench net train --data` takes it, or a `DataSet`, which `opbench.networks.plan.data.own_data`
    makes of arrays. `changes` are fields of `TrainOptions`, such as `epochs=3`, over those of `options`. `tell` is
    called with the progress of the training, `progress` with that of `tune`. Raises UsageError for options that do not
    fit together, before anything runs, NotFinite for a loss that is no number, RankLost where one of several processes
    dies.
    """
    from opbench.networks.plan.data import load_data
    from opbench.networks.report.training import write_training
    from opbench.networks.train.ranks import train_network
    from opbench.networks.train.train_options import TrainOptions

    chosen = replace(options or TrainOptions(), **changes)
    if len(network.inputs) != 1:
        raise UsageError(f"{network.name}: it has {len(network.inputs)} inputs; training takes a network of one")
    if isinstance(data, str):
        data = load_data(data, network.values[network.inputs[0]].shape, chosen.seed, network.name)
    settings = chosen.settings(network.name, data.loss)
    record = train_network(network, data, settings, tell, progress)
    write_training(record, settings.out)
    return record
