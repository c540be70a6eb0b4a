"""`opbench report`, `ceiling`, `ladder` and `doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from opbench.cli.options import gpu_option, json_option
from opbench.cli.running import print_table, progress_on_stderr, stdout_console


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@gpu_option
def report_command(run: Path, gpu: str) -> None:
    """Write report.html and the PNGs of RUN (a run's folder, a network's too) again and print its table."""
    from opbench.report.network import is_network

    if is_network(run):
        _report_network(run)
        return
    from opbench.report import write_report
    from opbench.results.files import read_run
    from opbench.results.rows import frame

    found = read_run(run)
    for path in write_report(found, found.folder, gpu):
        click.echo(f"wrote {path}", err=True)
    print_table(frame(found, gpu), found.left_out)


def _report_network(run: Path) -> None:
    from opbench.report.network import read_network
    from opbench.report.network.page import write_network
    from opbench.report.network.terminal import print_network

    record = read_network(run)
    for path in write_network(record, run if run.is_dir() else run.parent):
        click.echo(f"wrote {path}", err=True)
    print_network(record, stdout_console())


@click.command("ceiling")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep the probes' run here.")
@json_option
def ceiling_command(out: Path | None, as_json: bool) -> None:
    """Measure this GPU's limits afresh with the probes of suites/ceilings.toml and remember them."""
    import tempfile

    from opbench import units
    from opbench.runs.probes import measure_ceilings

    with tempfile.TemporaryDirectory(prefix="opbench-ceilings-") as scratch, progress_on_stderr() as tell:
        _, ceilings = measure_ceilings(out or Path(scratch), tell)
    if out:
        (out / "ceilings.json").write_text(json.dumps(ceilings, indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(ceilings, indent=2))
        return
    click.echo(f"{ceilings['gpu']}, measured")
    for key, label, show in (
        ("dram_bytes_per_s", "DRAM, read + write", units.byte_rate),
        ("dram_read_bytes_per_s", "DRAM, read", units.byte_rate),
        ("dram_write_bytes_per_s", "DRAM, write", units.byte_rate),
        ("l2_bytes_per_s", "L2, read", units.byte_rate),
        ("l1_bytes_per_s", "shared memory, read", units.byte_rate),
        ("fp32_flops_per_s", "fp32 FMA", units.flop_rate),
        ("fp32_sustained_flops_per_s", "fp32 FMA, sustained", units.flop_rate),
        ("launch_floor_s", "launch floor", units.time),
    ):
        click.echo(f"{label:28} {show(ceilings.get(key))}")
    for precision, rate in (ceilings.get("matrix_flops_per_s") or {}).items():
        sustained = (ceilings.get("matrix_sustained_flops_per_s") or {}).get(precision)
        click.echo(f"{f'{precision}, matrix units':28} {units.flop_rate(rate)}, sustained {units.flop_rate(sustained)}")


@click.command("ladder")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 when a file is stale.")
def ladder_command(runs: tuple[Path, ...], only_check: bool) -> None:
    """Write variants/<operator>/README.md and the tables in README.md from the runs named.

    A folder that holds runs of networks, such as reports/h200/networks, gives the table of networks.
    """
    from opbench.catalog.folders import Catalog
    from opbench.paths import shipped
    from opbench.report.ladder import ladder_readme, ladders_overview, with_overview
    from opbench.report.network.overview import network_folders, networks_overview
    from opbench.results.files import read_run

    networks = [folder for run in runs for folder in network_folders(run)]
    catalog, found = Catalog(), [read_run(r) for r in runs if not network_folders(r)]
    texts = {
        shipped("variants") / name / "README.md": ladder_readme(
            name, catalog.operator_title(name), catalog.variants(name), found
        )
        for name in catalog.operator_names()
    }
    readme = shipped("variants").parent / "README.md"
    if readme.exists():
        text = with_overview(readme.read_text(), ladders_overview(catalog.operator_names(), found))
        if networks:
            text = with_overview(text, networks_overview(networks, readme.parent), "networks")
        texts[readme] = text
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if not only_check:
        for path in stale:
            path.write_text(texts[path])
    for path in stale:
        click.echo(f"{'stale' if only_check else 'wrote'} {path}", err=True)
    if only_check and stale:
        click.echo(f"mend with: opbench ladder {' '.join(map(str, runs))}", err=True)
        click.get_current_context().exit(1)


@click.command("doctor")
@json_option
def doctor_command(as_json: bool) -> None:
    """Show what this machine has, what is missing and the command that mends it."""
    from opbench import doctor

    rows = doctor.diagnose()
    if as_json:
        click.echo(json.dumps(doctor.to_json(rows), indent=1))
    else:
        doctor.print_report(rows, stdout_console())
    click.get_current_context().exit(doctor.exit_code(rows))
