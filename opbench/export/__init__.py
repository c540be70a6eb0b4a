"""Write a run in the formats of other tools, with one small module per format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opbench.errors import EnvironmentFault
from opbench.export import nvbench, pytest_benchmark, tables
from opbench.paths import write_atomically
from opbench.results.files import Run

FORMATS: dict[str, Callable[[Run, Path, str], dict[Path, bytes]]] = {
    "nvbench": nvbench.nvbench_files,
    "pytest-benchmark": pytest_benchmark.json_files,
    "csv": tables.csv_files,
    "parquet": tables.parquet_files,
}
"""For each format, a function of a run, the path to write and the GPU for predictions.

It returns each file's content.
"""


def export(run: Run, format_name: str, path: Path, gpu: str = "h200") -> list[Path]:
    """Write a run in one of `FORMATS`; return the written files, beginning with `path`."""
    return write_files(FORMATS[format_name](run, path, gpu))


def write_files(files: dict[Path, bytes]) -> list[Path]:
    """Write each file and its parent folders; return the files. Raises EnvironmentFault if the system refuses."""
    for name, content in files.items():
        try:
            name.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(name, content)
        except OSError as error:
            reason = error.strerror or error
            raise EnvironmentFault(
                f"{name}: this file cannot be written: {reason}; choose another --out PATH",
                kind="unwritable",
                subject=name,
            ) from None
    return list(files)
