"""Open a run's file: read earlier results, check whether this run may complete them, and write the header."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import TypedDict

from opbench._version import __version__
from opbench.backend.environment import Environment
from opbench.errors import SettingDiffers, UsageError
from opbench.kernels.case import Case
from opbench.results.files import FILE, FORMAT, Run, RunReader, RunWriter
from opbench.results.header import RecordedTiming, Revision, RunDevice, RunHeader
from opbench.results.result import RecordedLaunch, Result
from opbench.running.options import RunSetup
from opbench.running.revision import revision
from opbench.running.suite import Suite


def utc_now_text() -> str:
    """Return the current time in UTC, in the format of the results file."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class RunStart(TypedDict):
    """The time and the commit at which a run or a search started."""

    started: str
    revision: Revision | None


def run_start() -> RunStart:
    """Return the current time, and the commit of the project in the current folder."""
    return {"started": utc_now_text(), "revision": revision()}


class RunFile:
    """The results file of a run, locked while open; it contains the lines of an earlier process and new ones.

    Raises UsageError for a file that another opbench is writing, for an existing run without --resume, and for
    a run with another suite, backend, seed, mode or number of processes.
    """

    def __init__(self, suite: Suite, options: RunSetup) -> None:
        self._suite, self._options = suite, options
        self._writer = RunWriter(options.out)
        self._reader = RunReader(self._writer.path)
        try:
            self.earlier = self._completed()
        except BaseException:
            self._writer.close()
            raise

    def __enter__(self) -> RunFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()

    def _completed(self) -> Run | None:
        """Return the run that an earlier process left in the file; None for a new run."""
        path = self._writer.path
        if self._writer.was_empty:
            return None
        if not self._options.resume:
            raise UsageError(
                f"{path}: this folder already contains a run; add --resume to complete the run, or choose another "
                "--out DIR",
                kind="run-exists",
                subject=path,
            )
        if not path.stat().st_size:
            return None  # The header is incomplete, because the earlier process was killed.
        self._reader.read()
        earlier = self._reader.run()
        header = earlier.header
        settings = {
            "suite": (header.suite, self._suite.name),
            "backend": (header.backend, self._options.backend),
            "seed": (header.seed, self._options.seed),
            "mode": (header.timing.mode or "cold", self._suite.timing.mode),
            "samples": (header.timing.max_samples or self._suite.timing.max_samples, self._suite.timing.max_samples),
            "processes": (header.timing.processes or 1, self._options.processes),
        }
        for key, (earlier_value, new_value) in settings.items():
            if earlier_value != new_value:
                raise SettingDiffers(path, key, earlier_value, new_value)
        return earlier

    def earlier_results(self) -> dict[str, Result]:
        """Return the results of an earlier process of the run by case name."""
        return {result.case: result for result in self.earlier.results} if self.earlier else {}

    def begin(self, environment: Environment) -> None:
        """Write the header; raise UsageError if the file has results of another GPU or driver."""
        if self.earlier is None:
            self.write("run", _header(self._suite, self._options, environment).to_json())
            return
        earlier = self.earlier.header.environment
        # One of the drivers may be unknown.
        drivers = (earlier.driver or environment.driver, environment.driver or earlier.driver)
        for key, earlier_value, new_value in (("gpu", earlier.gpu, environment.gpu), ("driver", *drivers)):
            if earlier_value != new_value:
                raise SettingDiffers(self._options.out / FILE, key, earlier_value or None, new_value or None)

    def device(self, device: RunDevice) -> None:
        """Append the properties and peaks of one of several devices."""
        self.write("device", device.to_json())

    def write(self, kind: str, payload: Mapping[str, object]) -> None:
        """Append one line; the line is on disk before this returns."""
        self._reader.add_line(json.loads(self._writer.write(kind, payload)))

    def result(self, result: Result) -> None:
        """Append one result."""
        self.write("result", result.to_json())

    def end(self, spent_s: float, phases_s: Mapping[str, float] = MappingProxyType({})) -> None:
        """Append the last line with the run's wall time and the time of each phase.

        The wall time is None if an earlier process of the run was killed.
        """
        is_time_known = self.earlier is None or self.earlier.finished
        end = {"finished": utc_now_text(), "wall_s": round(spent_s, 3) if is_time_known else None}
        self.write("end", {**end, "phases_s": dict(phases_s)} if phases_s else end)

    def run(self) -> Run:
        """Return the run with everything that the file contains now."""
        return self._reader.run()


def is_still_valid(earlier: Result | None, case: Case, machine_code_sha256: str = "", sm_count: int = 0) -> bool:
    """Return whether an earlier result is still valid for a case.

    A result is valid if the code is the same, or if the case was right and the GPU would execute the same
    instructions in the same launches.
    """
    if earlier is None or earlier.source_sha256 == case.variant.source_sha256:
        return earlier is not None
    if earlier.status != "right" or not machine_code_sha256 or earlier.machine_code_sha256 != machine_code_sha256:
        return False
    return earlier.verdict is not None and earlier.verdict.launches == tuple(
        map(RecordedLaunch.of, case.launches(sm_count))
    )


def _header(suite: Suite, options: RunSetup, environment: Environment) -> RunHeader:
    """Return the content of the first line of a run's file."""
    return RunHeader(
        format=FORMAT,
        opbench=__version__,
        suite=suite.name,
        title=suite.title,
        backend=options.backend,
        seed=options.seed,
        **run_start(),
        target=options.target,
        targets=options.targets,
        own=tuple(suite.own_variant_ids),
        command=shlex.join(["opbench", *options.command]) if options.command else "",
        timing=RecordedTiming(**asdict(suite.timing), processes=options.processes),
        cases=len(suite.cases),
        left_out=suite.left_out,
        environment=replace(
            environment,
            python=platform.python_version(),
            system=platform.platform(),
            processor=platform.machine(),
            cores=os.cpu_count(),
        ),
    )
