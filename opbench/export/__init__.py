"""Write a run in the formats of other tools, with one small module per format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opbench.export import nvbench, pytest_benchmark, tables
from opbench.paths import write_file
from opbench.results.files import Run

REMEDY = "choose another --out PATH"
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
    files = FORMATS[format_name](run, path, gpu)
    for name, content in files.items():
        write_file(name, content, REMEDY, parents=True)
    return list(files)
