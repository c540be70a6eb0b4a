"""Each recipe of the Makefile runs Python in the project's environment, where opbench is installed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from support.common import ROOT

MAKES_THE_ENVIRONMENT = "$(PYTHON) -m venv $(VENV)"


def test_only_the_environment_is_made_with_the_python_of_the_system() -> None:
    recipes = re.findall(r"^\t@?(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert MAKES_THE_ENVIRONMENT in recipes
    assert [line for line in recipes if re.match(r"\$\(PYTHON\)|python", line)] == [MAKES_THE_ENVIRONMENT]


def test_the_jobs_of_the_evidence_share_two_gpus(tmp_path: Path) -> None:
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    log = tmp_path / "log"
    for name, script in (("opbench", f'sleep 0.1; echo "$CUDA_VISIBLE_DEVICES $*" >> {log}'), ("python", "true")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "venv" / ".quick").touch()
    evidence = tmp_path / "evidence"
    (evidence / "full").mkdir(parents=True)
    (evidence / "full" / "results.jsonl.xz").touch()

    command = [
        "make",
        "evidence",
        "PART=quick full norms networks trainings",
        "GPUS=2",
        "NETWORKS=unet-1-f32 lenet-1-f32",
    ]
    settings = [f"VENV={tmp_path / 'venv'}", f"EVIDENCE={evidence}", "TRAININGS=lenet-128-f32"]
    done = subprocess.run(
        [*command, *settings], cwd=ROOT, env=_without_make(), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    calls = [line.split(" ", 1) for line in log.read_text().splitlines()]
    assert {device for device, _ in calls} == {"0", "1"}
    arguments = [call for _, call in calls]
    assert sum(call.startswith("run suites/") for call in arguments) == 2, "a packed run was measured again"
    assert sum(call.startswith("net run ") for call in arguments) == 2
    assert sum(call.startswith("net train ") for call in arguments) == 1
    assert all(str(evidence) in call for call in arguments)


def _without_make() -> dict[str, str]:
    """Return this environment without what a `make` around the tests passes on."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
