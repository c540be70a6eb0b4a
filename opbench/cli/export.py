"""Write results in the formats of other tools, for `opbench export`."""

from __future__ import annotations

from pathlib import Path

import click

from opbench.cli.options import gpu_option


@click.command("export")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "layout",
    required=True,
    type=click.Choice(["nvbench", "pytest-benchmark", "csv", "parquet", "chrome-trace"]),
    help="The output format.",
)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="PATH", help="The file to write."
)
@gpu_option
def export_command(run: Path, layout: str, out: Path, gpu: str) -> None:
    """Write RUN (the folder of a run or of a network run) in the format of another tool.

    nvbench also writes sample files next to PATH, which nvbench-compare-robust reads. chrome-trace needs a network run;
    open it in Perfetto.
    """
    from opbench.export import export
    from opbench.networks.records.network_run import read_any_run
    from opbench.networks.report.chrome_trace import export_trace

    if layout == "chrome-trace":
        click.echo(f"wrote {export_trace(run, out)}", err=True)
        return
    files = export(read_any_run(run), layout, out, gpu)
    more = f" and {len(files) - 1} files of samples" if len(files) > 1 else ""
    click.echo(f"wrote {out}{more}", err=True)
