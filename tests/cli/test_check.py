"""`opbench check`: one line a variant, one message a fault, and when it stops."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from opbench import api
from support.common import HANGS, RELU, Cli


def test_nothing_but_unsupported_says_why_and_is_no_success(cli: Cli) -> None:
    done = cli("check", "relu/torch")
    assert done.returncode == 3
    assert "unsupported (calls a GPU library; needs the cuda backend)" in done.stdout


def rules_of(relu_file: Path, *rules: str) -> None:
    listed = ", ".join(f'"{rule}"' for rule in rules)
    relu_file.write_text(RELU.replace("title =", f"requires = [{listed}]\n// title ="))


def test_a_variant_that_accepts_no_problem_at_all_says_which_rule_fails(cli: Cli, relu_file: Path) -> None:
    rules_of(relu_file, "n % 7 == 3", "n % 7 == 4")
    done = cli("check", relu_file)
    assert done.returncode == 2 and "--random" not in done.stderr
    problem = re.search(r"nearest problem tried is (\(n=\d+\)): the variant needs n % 7 == [34] \(here", done.stderr)
    assert problem and f"opbench check {relu_file.name} --problem '{problem[1]}'" in done.stderr


@pytest.mark.parametrize("rule", ["n == 1 << 31", "n % 4294967296 == 0", "n > 3000000000"])
def test_sizes_beyond_the_emulator_are_named_with_their_command(cli: Cli, relu_file: Path, rule: str) -> None:
    rules_of(relu_file, rule)
    done = cli("check", relu_file)
    assert done.returncode == 2 and "--random" not in done.stderr
    problem = re.search(rf"opbench check {relu_file.name} --problem '\(n=(\d+)\)'", done.stderr)
    assert problem and eval(rule, {"n": int(problem[1])})


@pytest.mark.parametrize("flags", [("--random", "0"), ("--problem", "(n=1001)")])
def test_sizes_that_a_file_accepts_are_named_where_none_was_tried(
    cli: Cli, relu_file: Path, flags: tuple[str, ...]
) -> None:
    rules_of(relu_file, "n % 640 == 0")
    done = cli("check", relu_file, *flags)
    problem = re.search(r"sizes that it accepts: opbench check \S+ --problem '(\(n=\d+\))'", done.stderr)
    assert done.returncode == 2 and problem
    assert cli("check", relu_file, "--problem", problem[1], "--cpu-only").returncode == 0


def test_after_its_first_hang_a_variant_is_not_tried_again(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(HANGS)
    done = cli("check", relu_file, "--time-limit", "1")
    assert done.returncode == 1
    said = [line for line in done.stdout.splitlines() if ": failed-case: " in line or "= failed: " in line]
    assert len(said) == 4, done.stdout
    assert "mine.cu: failed-case: stopped after 1 s" in said[0] and said[1].endswith("= failed: relu/mine(n=1)")
    assert "not tried, as relu/mine(n=1) did not end" in said[2]
    assert said[3].endswith("= failed: 12 of 13 cases, the first is relu/mine(n=2)")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("const float* x,", "float* x,", ""),
        ("out[i] = x[i] > 0.0f ? x[i] : 0.0f", "out[i] = x[i]", "wrong-result: out["),
        ("const float* x, float* out, int n", "const float* x, float* out", "takes 2 arguments; the launch gives 3"),
    ],
)
def test_one_fault_is_one_message_with_the_count_of_its_cases(
    cli: Cli, relu_file: Path, old: str, new: str, words: str
) -> None:
    text = RELU.replace(old, new)
    if "int n" in old:  # the guard goes with its argument
        text = text.replace("if (i < n)", "if (i < 1)")
    if not words:
        text, words = (
            text.replace("if (i < n)", "if (i < n) x[i] = 7.0f;\n    if (i < n)"),
            "changed-input: the kernel changed its input x",
        )
    relu_file.write_text(text)
    done = cli("check", relu_file)
    said = [line for line in done.stdout.splitlines() if re.match(r"\S*mine\.cu:\d+: [\w-]+: ", line)]
    assert done.returncode == 1 and len(said) == 1, done.stdout
    assert words in said[0]
    assert re.search(r"= (wrong|failed): \d+ of 13 cases, the first is relu/mine\(n=\d\)$", done.stdout, re.MULTILINE)


def test_it_stops_at_the_first_failure_when_told_to(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(RELU.replace(": 0.0f", ": 1.0f"))
    done = cli("check", relu_file, "-x")
    assert done.returncode == 1 and done.stdout.count("= wrong: ") == 1
    assert "stopped at the first failure: " in done.stderr and " of 13 cases not tried" in done.stderr
    results = api.check([relu_file], exit_first=True)
    assert results[-1].status == "wrong" and all(r.status == "right" for r in results[:-1]) and len(results) < 10


def test_a_file_of_a_shipped_name_is_refused(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "mine" / "relu" / "scalar.cu"
    own.parent.mkdir(parents=True)
    own.write_text(RELU)
    for args in (("check", own), ("check", "relu", "--variants", tmp_path / "mine"), ("run", own, "--backend", "cpu")):
        done = cli(*args)
        assert done.returncode == 2, done.stdout
        assert "scalar.cu has variant 'relu/scalar' already; rename one of the two variants" in done.stderr


@pytest.mark.parametrize("pattern", ["nothing", "relu/mine(n=3000)", "mine*(n=7)"])
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_case_that_matches_nothing_names_the_command_that_lists_the_cases(
    cli: Cli, relu_file: Path, command: str, pattern: str
) -> None:
    relu_file.write_text(RELU)
    done = cli(command, relu_file, "--case", pattern)
    listing = re.search(r"list the names of all cases with: opbench (.*)$", done.stderr, re.MULTILINE)
    assert done.returncode == 2 and listing, done.stderr
    names = cli(*shlex.split(listing[1])).stdout.split()
    assert "relu/mine(n=1)" in names or command == "run"
    assert names and all(name.startswith("relu/") for name in names)


def test_the_list_of_a_check_is_what_it_checks(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(RELU)
    listed = cli("check", relu_file, "--list", "--random", "1").stdout.split()
    assert listed == [result.case for result in api.check([relu_file], random_shapes=1, cpu_only=True)]
