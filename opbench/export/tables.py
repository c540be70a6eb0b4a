"""Write a run's rows as CSV or Parquet; see `opbench.results.rows.Row` for the columns."""

from __future__ import annotations

import io
from pathlib import Path

from opbench.paths import MissingExtra
from opbench.results.files import Run
from opbench.results.rows import frame


def csv_files(run: Run, path: Path, gpu: str) -> dict[Path, bytes]:
    """Return a CSV file with one line per case; missing values are empty, several warnings are separated by spaces."""
    table = frame(run, gpu)
    table["warnings"] = table["warnings"].map(" ".join)
    return {path: table.to_csv(index=False, lineterminator="\n").encode("utf-8")}


def parquet_files(run: Run, path: Path, gpu: str) -> dict[Path, bytes]:
    """Return a Parquet file with one row per case; raises EnvironmentFault without pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtra("pyarrow is not installed", "parquet") from None
    table = frame(run, gpu)
    table["warnings"] = table["warnings"].map(list)
    content = io.BytesIO()
    table.to_parquet(content, index=False, engine="pyarrow")
    return {path: content.getvalue()}
