"""Serve tools to coding agents, for `opbench mcp`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opbench.cli.options import Number, gpu_option


@click.command("mcp")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=".",
    show_default=True,
    metavar="DIR",
    help="The folder with the kernels; files outside it are refused.",
)
@click.option("--trust", is_flag=True, help="Also load Python files. Python has no cage; kernels stay in the cage.")
@click.option(
    "--no-cage", is_flag=True, help="Run the kernels on the CPU without a cage. Use it only for kernels that you trust."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=Number(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop a case that takes longer than this.",
)
@gpu_option
def mcp_command(root: Path, trust: bool, no_cage: bool, time_limit_s: float, gpu: str) -> None:
    """Serve opbench's tools to an AI agent, over the Model Context Protocol on stdin and stdout.

    The tools describe an operator, and check, run, explain, compare, profile and judge kernels. An agent's client
    starts this command; see docs/agents.md.
    """
    from opbench.agents.server import server
    from opbench.agents.tools import Tools

    mcp_server = server(Tools(root.resolve(), trust, gpu, time_limit_s, no_cage))
    os.chdir(root)
    mcp_server.run("stdio")
