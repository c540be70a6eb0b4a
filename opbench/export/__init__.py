"""A run in the formats of other tools; one small module a format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opbench.errors import EnvironmentFault
from opbench.export import chrome_trace, nvbench, pytest_benchmark, tables
from opbench.paths import write_atomically
from opbench.results.files import Run
from opbench.results.network import read_network

FORMATS: dict[str, Callable[[Run, Path, str], dict[Path, bytes]]] = {
    "nvbench": nvbench.files,
    "pytest-benchmark": pytest_benchmark.files,
    "csv": tables.csv_files,
    "parquet": tables.parquet_files,
}
"""Name to a function of a run, the path to write and the GPU that predicts; it returns each file's content."""


def export(run: Run, layout: str, path: Path, gpu: str = "h200") -> list[Path]:
    """Write a run in a format of `FORMATS`; returns the files written, the one named first."""
    return _written(FORMATS[layout](run, path, gpu))


def export_trace(network: Path, path: Path) -> Path:
    """Write the run of a network as Chrome's trace events; returns the file."""
    return _written({path: chrome_trace.trace(read_network(network))})[0]


def _written(files: dict[Path, bytes]) -> list[Path]:
    for name, content in files.items():
        try:
            name.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(name, content)
        except OSError as error:
            reason = error.strerror or error
            raise EnvironmentFault(f"{name}: cannot write: {reason}; choose another --out PATH") from None
    return list(files)
