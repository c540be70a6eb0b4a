"""An error in a worker's process reaches the user as it was raised: its class, its exit code and all fields."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.errors import (
    EXIT_USAGE,
    LaunchError,
    Location,
    NotFinite,
    OpbenchError,
    SettingDiffers,
    UsageError,
    unknown_name,
)
from opbench.kernels.folders import case_named
from opbench.running.protocol import CheckCase, OpenBackend, pack
from opbench.running.worker import Worker


@pytest.mark.parametrize(
    "error",
    [
        LaunchError("it died", Location(Path("a.cu"), 3), subject="kernel", value=4.5, allowed=("a", 2)),
        NotFinite("a loss"),
        SettingDiffers(Path("run"), "seed", 1, 2),
        UsageError(unknown_name("operator", "rulu", ["relu"], "opbench list operators")),
    ],
)
def test_an_error_passes_to_another_process_whole(error: OpbenchError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.exit_code == error.exit_code
    fields = ("message", "location", "unknown", "kind", "subject", "value", "allowed")
    assert [getattr(copy, name) for name in fields] == [getattr(error, name) for name in fields]


def test_a_value_that_another_process_cannot_read_passes_as_text() -> None:
    copy = pickle.loads(
        pickle.dumps(UsageError("it is wrong", value=lambda: None, subject=case_named("relu/vec4(n=8)")))
    )
    assert "lambda" in copy.value and copy.subject == str(case_named("relu/vec4(n=8)"))


def test_a_usage_error_of_a_worker_is_one_in_the_main_process(tmp_path: Path) -> None:
    worker = Worker(OpenBackend("cpu", (), 1), tmp_path / "worker.log")
    try:
        worker.start()
        with pytest.raises(UsageError) as caught:
            worker.ask(CheckCase(replace(pack(case_named("relu/vec4(n=8)")), variant="missing")), 60.0)
    finally:
        worker.end()
    assert caught.value.exit_code == EXIT_USAGE and caught.value.unknown and caught.value.unknown.name == "missing"
