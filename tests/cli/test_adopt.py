"""`opbench adopt`: what it prints works when pasted, and what contradicts the file is not written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from support.common import Cli

ADOPTED = Path(__file__).parents[1] / "adopting" / "adopted"
SQUARES = """\
__global__ void squares(const float* x, float* out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = x[i] * x[i];
}
void run(float* x, float* out, int n) { squares<<<(n + 63) / 64, 64>>>(x, out, n); }
"""


def test_the_next_command_knows_the_operators_that_adopt_knew(cli: Cli, here: Path) -> None:
    assert cli("new", "operator", "squares", "--in", "mine").returncode == 0
    (here / "my squares.cu").write_text(SQUARES)
    done = cli("adopt", "my squares.cu", "--variants", "mine", "--write")
    assert done.returncode == 0, done.stderr
    following = next(line for line in done.stderr.splitlines() if line.startswith("next: opbench "))
    words = shlex.split(following.removeprefix("next: opbench "))
    assert words == ["check", "my squares.cu", "--variants", "mine"]
    done = cli(*words, "--cpu-only", "--random", "0")
    assert done.returncode == 0, done.stderr
    assert re.match(r"squares/my squares +\d+ right", done.stdout)


def test_a_header_that_contradicts_the_file_is_not_written(cli: Cli, here: Path) -> None:
    text = (ADOPTED / "reduce_in_place.cu").read_text()
    (here / "k.cu").write_text(text)
    assert cli("adopt", "k.cu", "--operator", "sum").returncode == 0
    done = cli("adopt", "k.cu", "--operator", "sum", "--write")
    assert done.returncode == 2 and "overwrites its input x" in done.stderr and "--operator none" in done.stderr
    assert (here / "k.cu").read_text() == text
    done = cli("adopt", "k.cu", "--write")
    assert done.returncode == 0 and "overwrites its input x" in done.stderr
    assert '// operator = "none"' in (here / "k.cu").read_text().splitlines()


def test_without_an_operator_the_nearest_and_the_ways_on_are_named(cli: Cli, here: Path) -> None:
    (here / "k.cu").write_text(SQUARES)
    done = cli("adopt", "k.cu")
    assert done.returncode == 0 and '// operator = "none"' in done.stdout
    for command in ("adopt k.cu --operator", "new operator squares", "check k.cu"):
        assert f"opbench {command}" in done.stderr
    assert "guess: n is taken to be 1000" in done.stderr
    listed = re.search(r"Nearest(?: by its tensors)?: ([\w, ]+);", done.stderr)
    assert listed and len(listed[1].split(", ")) == 3


def test_a_header_without_an_operator_is_checked_explained_and_not_run(cli: Cli, here: Path) -> None:
    text = (ADOPTED.parents[1] / "cases" / "bare" / "bias_gelu.cu").read_text()
    (here / "k.cu").write_text(text)
    before = json.loads(cli("check", "k.cu", "--memory", "--json").stdout)[0]["verdict"]["findings"]
    assert cli("adopt", "k.cu", "--write").returncode == 0
    lines = (here / "k.cu").read_text().count("\n") - text.count("\n")
    done = cli("check", "k.cu", "--json")
    (result,) = json.loads(done.stdout)
    assert done.returncode == 1 and result["operator"] == "memory" and "results are not" in done.stderr
    found = [(one["kind"], one["line"] - lines) for one in result["verdict"]["findings"]]
    assert before and found == [(one["kind"], one["line"]) for one in before]
    done = cli("run", "k.cu")
    assert done.returncode == 2 and 'operator = "none"' in done.stderr and "opbench new operator" in done.stderr
    explained = json.loads(cli("explain", "k.cu", "--json").stdout)
    assert explained["case"].startswith("memory/k(") and explained["files"][0]["lines"]
    again = cli("adopt", "k.cu")
    assert again.returncode == 2 and "has an opbench header already" in again.stderr


@pytest.mark.parametrize(
    ("kernel", "last", "operator"), [("combine", "n - 1", "none"), ("combine", "n", "add"), ("add", "n - 1", "add")]
)
def test_a_guessed_operator_that_most_cases_refute_is_not_adopted(
    cli: Cli, tmp_path: Path, kernel: str, last: str, operator: str
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        f"__global__ void {kernel}(const float* a, const float* b, float* c, int n) {{\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"    if (i < {last}) c[i] = a[i] + b[i];\n"
        "}\n"
        "int main() { float *a, *b, *c; int n = 1000; cudaMalloc(&a, n * 4); cudaMalloc(&b, n * 4);\n"
        f"cudaMalloc(&c, n * 4); {kernel}<<<(n + 255) / 256, 256>>>(a, b, c, n); }}\n"
    )
    done = cli("adopt", path)
    assert done.returncode == 0 and f'operator = "{operator}"' in done.stdout
    assert (f"opbench adopt {path.name} --operator add" in done.stderr) == (operator == "none")
    assert 'operator = "add"' in cli("adopt", path, "--operator", "add").stdout
