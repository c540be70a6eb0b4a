"""Names that several tests share; fixtures stand in conftest.py."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from opbench.backend.findings import headline
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.records import from_json, unpacked
from opbench.results.experiment import Experiment
from opbench.results.result import Result

ROOT = Path(__file__).parents[2]
CHEATS = ROOT / "tests" / "cheats"
CATALOG = Catalog()
"""The shipped operators and variants. All tests of a process share them, because reading all headers takes seconds."""

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

RELU = """\
// /// opbench
// operator = "relu"
// title = "a kernel of a test"
// launch = [{ kernel = "mine", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Why.
extern "C" __global__ void mine(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
"""
WRONG = RELU.replace(": 0.0f", ": 1.0f")
HANGS = RELU.replace("const int i", "for (volatile int go = 1; go;) {}\n    const int i")


@functools.cache
def kernel_variants() -> list[Variant]:
    """Return every shipped variant that is a kernel, in the order of the operators."""
    return [variant for name in CATALOG.operator_names() for variant in kernels(name)]


def kernels(operator: str) -> list[Variant]:
    """Return the CUDA variants of an operator."""
    return [variant for variant in CATALOG.variants(operator) if not variant.is_library]


def read_experiments(path: Path) -> list[Experiment]:
    """Return the experiments in a file of JSON lines, such as the output of `opbench explain --experiment --json`."""
    lines = unpacked(path).decode().splitlines()
    return [from_json(Experiment, json.loads(line)) for line in lines if line.startswith("{")]


def alive(pid: int) -> bool:
    """Whether a process still runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def reports(result: Result) -> list[str]:
    """The reason of a result, and each finding in one line that begins with its file's name, with its details."""
    findings = result.verdict.findings if result.verdict else ()
    named = [
        replace(finding, file=Path(finding.file).name, kernel_file=Path(finding.kernel_file).name)
        for finding in findings
    ]
    lines = [" ".join((headline(one), *one.details)) for one in named]
    at_its_line = [f"{one.file}:{one.line}: {one.rule}: {one.message}" for one in named]
    return [f"{result.status}: {result.reason}", *lines, *at_its_line]


def is_among(expected: str, lines: Iterable[str]) -> bool:
    """Whether one of the readings of an expectation, with | between them, is in a line; a hyphen counts as a blank."""
    plain = [line.replace("-", " ") for line in lines]
    return any(words.replace("-", " ") in line for words in expected.split("|") for line in plain)


def said(path: Path, key: str) -> str:
    """What the file itself says behind a key, such as `// expect: …`."""
    line = re.search(rf"^// {key}: (.*)$", path.read_text(), re.MULTILINE)
    assert line, f"{path.name} has no line '// {key}: …'"
    return line[1]
