"""Results of many runs in one SQLite file, which needs no server and which many tools can read.

The first line of a run identifies it, so a copy of its folder is the same run. A run is read again only if its
file has changed. A run whose folder was deleted stays in the database.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from opbench.errors import OtherVersion, UsageError
from opbench.kernels.variant import print_config
from opbench.results.environments import comparable_conditions
from opbench.results.files import FILE, Run, read_content, read_run, run_files
from opbench.results.result import Result

Cell = str | int | float | None

VERSION = 2
"""Version of the tables, in the file's user_version. Version 1 had no revisions."""

TABLES: dict[str, dict[str, str]] = {
    "runs": {
        "run": "INTEGER PRIMARY KEY",
        "started": "TEXT",
        "folder": "TEXT",
        "suite": "TEXT",
        "backend": "TEXT",
        "gpu": "TEXT",
        "uuid": "TEXT",
        "driver": "TEXT",
        "nvrtc": "TEXT",
        "opbench": "TEXT",
        "command": "TEXT",
        "finished": "INTEGER",
        "environment": "TEXT",
        "alike": "TEXT",
        "header_sha256": "TEXT UNIQUE",
        "size_bytes": "INTEGER",
        "modified_ns": "INTEGER",
        "revision": "TEXT",
        "changed": "INTEGER",
    },
    "results": {
        "result": "INTEGER PRIMARY KEY",
        "run": "INTEGER REFERENCES runs ON DELETE CASCADE",
        "case_name": "TEXT",
        "operator": "TEXT",
        "variant": "TEXT",
        "config": "TEXT",
        "problem": "TEXT",
        "precision": "TEXT",
        "status": "TEXT",
        "reason": "TEXT",
        "median_s": "REAL",
        "low_s": "REAL",
        "high_s": "REAL",
        "sample_count": "INTEGER",
        "sm_clock_hz": "REAL",
        "warnings": "TEXT",
        "flops": "INTEGER",
        "compulsory_bytes": "INTEGER",
        "source_sha256": "TEXT",
        "machine_code_sha256": "TEXT",
    },
    "samples": {"result": "INTEGER REFERENCES results ON DELETE CASCADE", "number": "INTEGER", "seconds": "REAL"},
}
"""Tables and columns.

Times are in seconds, `started` is UTC, an unknown value is NULL, and `environment` is JSON. Runs with equal `alike` are
comparable. `revision` is the commit of the user's project; `changed` tells if files differed.
"""


def open_database(path: Path | None) -> sqlite3.Connection:
    """Open or create a database.

    None creates it in memory. Raises UsageError for a file that is no opbench database.
    """
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path or ":memory:")
        connection.execute("PRAGMA foreign_keys = ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (sqlite3.Error, OSError) as error:
        raise UsageError(
            f"{path}: this file cannot be used as a database: {error}; choose another --database FILE",
            kind="not-a-database",
            subject=path,
        ) from None
    if version == 0 and tables == 0:
        _create(connection)
    elif version == 1:
        _add_revisions(connection)
    elif version != VERSION:
        remedy = "delete the file or choose another --database FILE, then name the runs again"
        raise OtherVersion(path or Path(":memory:"), "version", version, VERSION, remedy)
    return connection


def _create(connection: sqlite3.Connection) -> None:
    with connection:
        for table, columns in TABLES.items():
            listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            connection.execute(f"CREATE TABLE {table} ({listed})")
        for table, column in (("results", "run"), ("results", "case_name"), ("samples", "result")):
            connection.execute(f"CREATE INDEX {table}_by_{column} ON {table} ({column})")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _add_revisions(connection: sqlite3.Connection) -> None:
    """Upgrade a database of version 1 to version 2; its runs have no revision."""
    with connection:
        for column in ("revision", "changed"):
            connection.execute(f"ALTER TABLE runs ADD COLUMN {column} {TABLES['runs'][column]}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


# Adding runs ------------------------------------------------------------------------------------------------------


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Return the results files in folders and their subfolders; raise UsageError for a folder without one."""
    folders: dict[Path, None] = {}
    for path in paths:
        files = [path] if path.is_file() else run_files(path)
        if not files:
            raise UsageError(
                f"{path}: no run lies here; name the folder of a run, which contains {FILE}, or make a run: opbench "
                "run SUITE --out DIR",
                kind="no-run",
                subject=path,
            )
        folders |= dict.fromkeys(files)
    return list(folders)


def add_runs(connection: sqlite3.Connection, files: Iterable[Path]) -> list[Path]:
    """Add the runs that are new or have more results to the database; return their files."""
    added = []
    for path in files:
        try:
            header = hashlib.sha256(read_content(path).split(b"\n", 1)[0] + b"\n").hexdigest()
            status = path.stat()
        except OSError as error:
            raise UsageError(
                f"{path}: this file cannot be read: {error.strerror}; make the file readable (chmod u+r) or name "
                "another run",
                kind="unreadable",
                subject=path,
                value=error.errno,
            ) from None
        size_and_time = (status.st_size, status.st_mtime_ns)
        stored_run = connection.execute(
            "SELECT run, size_bytes, modified_ns FROM runs WHERE header_sha256 = ?", [header]
        ).fetchone()
        # A copy of a run has the same size and another time. A shortened copy does not replace the complete run.
        if stored_run and (stored_run[1:] == size_and_time or stored_run[1] >= size_and_time[0]):
            continue
        with connection:
            if stored_run:
                connection.execute("DELETE FROM runs WHERE run = ?", [stored_run[0]])
            _insert(connection, read_run(path), header, size_and_time)
        added.append(path)
    return added


def _insert(connection: sqlite3.Connection, run: Run, header_sha256: str, size_and_time: tuple[int, int]) -> None:
    header, environment, revision = run.header, run.header.environment, run.header.revision
    row = {
        "started": _utc(header.started),
        "folder": str(run.folder),
        "finished": int(run.finished),
        "environment": json.dumps(environment.to_json()),
        "alike": comparable_conditions(run),
        "header_sha256": header_sha256,
        "size_bytes": size_and_time[0],
        "modified_ns": size_and_time[1],
        "revision": revision.commit if revision else None,
        "changed": revision.changed if revision else None,
        **{result_key: getattr(header, result_key) or None for result_key in ("suite", "backend", "opbench")},
        "command": header.command,
        **{result_key: getattr(environment, result_key) or None for result_key in ("gpu", "uuid", "driver", "nvrtc")},
    }
    run_key = _write(connection, "runs", row)
    for result in run.results:
        result_key = _write(connection, "results", {"run": run_key, **_result(result)})
        samples = ((result_key, index, seconds) for index, seconds in enumerate(result.samples_s))
        connection.executemany("INSERT INTO samples (result, number, seconds) VALUES (?, ?, ?)", samples)


def _write(connection: sqlite3.Connection, table: str, row: Mapping[str, Cell]) -> int | None:
    """Insert a row into a table and return its key."""
    marks = ", ".join("?" * len(row))
    return connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values())).lastrowid


def _result(result: Result) -> dict[str, Cell]:
    measurement, clocks = result.measurement, result.clocks_hz
    return {
        "case_name": result.case,
        "operator": result.operator,
        "variant": result.variant,
        "config": print_config(result.config),
        "problem": result.problem,
        "precision": result.precision,
        "status": result.status,
        "reason": result.reason,
        "median_s": measurement.median_s if measurement else None,
        "low_s": measurement.low_s if measurement else None,
        "high_s": measurement.high_s if measurement else None,
        "sample_count": len(result.samples_s) or None,
        "sm_clock_hz": sum(clocks) / len(clocks) if clocks else None,
        "warnings": " ".join(measurement.warnings) if measurement else "",
        "flops": result.flops,
        "compulsory_bytes": result.compulsory_bytes,
        "source_sha256": result.source_sha256 or None,
        "machine_code_sha256": result.machine_code_sha256 or None,
    }


def _utc(text: str) -> str:
    """Convert a time to UTC, so that times sort as text; other text is unchanged."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="seconds")


# Queries ----------------------------------------------------------------------------------------------------------


def query(connection: sqlite3.Connection, sql: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """Run a read-only query and return column names and rows; raise UsageError, with the list of tables."""
    try:
        connection.execute("PRAGMA query_only = ON")
        with closing(connection.execute(sql)) as cursor:
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        tables = "; ".join(f"{table}({', '.join(columns)})" for table, columns in TABLES.items())
        raise UsageError(
            f"--sql: {error}; correct the query; the tables and their columns are {tables}",
            kind="sql",
            subject="--sql",
            value=str(error),
            allowed=tables,
        ) from None
    finally:
        connection.execute("PRAGMA query_only = OFF")
