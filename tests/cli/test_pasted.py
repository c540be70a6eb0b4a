"""What opbench prints to be typed again works when it is pasted into a shell, whatever was checked or run."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from opbench import api
from opbench.running.targets import case_of
from support.checks.errors import Refusal, refuses
from support.common import CATALOG, RELU, WRONG, Cli
from support.prestarted import Prestarted

Paste = Callable[[str, Path], "subprocess.CompletedProcess[str]"]
TUNED = WRONG.replace("// launch", '// tune = { BLOCK = [128, 256] }\n// where = ["BLOCK > 0"]\n// launch')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Kernels of a user's own, all wrong: files with odd names, and a folder laid out as variants/."""
    for name in ("one.cu", "two.cu", "my kernel.cu", "it's.cu", "mine/relu/fancy.cu", "mine/relu/tuned.cu"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = TUNED if path.stem == "tuned" else WRONG
        path.write_text(text.replace('operator = "relu"\n// ', "") if "mine/" in name else text)
    return tmp_path


@pytest.fixture
def paste(prestarted: Prestarted) -> Paste:
    """Run a line of opbench with the words into which a shell splits it."""

    def run(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        words_of = f"opbench() {{ printf '%s\\0' \"$@\"; }}\n{line}"
        shell = subprocess.run(["sh", "-c", words_of], cwd=cwd, capture_output=True, text=True, check=True)
        return prestarted.run("-m", "opbench", *shell.stdout.split("\0")[:-1], cwd=cwd)

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["my kernel.cu", "it's.cu"],
        ["relu/fancy", "--variants", "mine"],
        ["relu/tuned", "one.cu", "--variants", "mine", "--random", "2", "--seed", "7"],
        ["mine/relu/fancy.cu", "two.cu", "--variants", "mine"],
    ],
    ids=" ".join,
)
def test_every_rerun_line_finds_its_case_wrong_again(cli: Cli, paste: Paste, folder: Path, words: list[str]) -> None:
    first = cli("check", "--random", "0", *words, "--case", "*(n=1)", "--case", "*(n=31)")
    shown = re.compile(r"^ += wrong: (?:\d+ of \d+ cases, the first is )?(.*)\n += rerun: (.*)$", re.MULTILINE)
    told = shown.findall(first.stdout)
    assert first.returncode == 1 and told, first.stdout + first.stderr
    assert len({re.split(r"[\[(]", case)[0] for case, _ in told}) == sum("/" in w or w.endswith(".cu") for w in words)
    for case, line in told[:: len(told) - 1 or 1]:
        again = paste(line, folder)
        found = re.search(rf"= wrong: .*{re.escape(case)}", again.stdout)
        assert again.returncode == 1 and found, f"{line}\n{again.stdout}{again.stderr}"


@pytest.mark.parametrize(
    "words",
    [["my kernel.cu"], ["tiny.toml", "--variants", "mine"], ["relu", "--variants", "mine"]],
    ids=" ".join,
)
def test_the_commands_of_a_page_work(cli: Cli, paste: Paste, folder: Path, words: list[str]) -> None:
    (folder / "tiny.toml").write_text('[[run]]\noperator = "relu"\nproblems = [{ n = 7 }]\nconfigs = "default"\n')
    few = ["--case", "relu/my*" if words[0] == "my kernel.cu" else "relu/scalar*"]
    done = cli("run", *words, "--backend", "cpu", "--out", "out", "--seed", "11", *few)
    assert done.returncode in (0, 1), done.stderr
    page = (folder / "out" / "report.html").read_text()
    (line,) = re.findall(r"opbench run [^<]* --case [^<]*", page.partition("one case")[2])[:1]
    again = paste(f"{html.unescape(line)} --out again --json", folder)
    case = shlex.split(html.unescape(line))[-1]
    assert again.returncode in (0, 1), f"{line}\n{again.stderr}"
    assert f'"case": "{case}"' in again.stdout and again.stdout.count('"case"') == 1


def test_an_operator_runs_its_part_of_quick_or_its_examples(cli: Cli, folder: Path) -> None:
    quick, _, _ = api.expand_target("quick", "cpu", ["relu/*"])
    suite, _, _ = api.expand_target("relu", "cpu")
    assert [case.name for case in suite.cases] == [case.name for case in quick.cases] and suite.name == "relu"
    mine, _, _ = api.expand_target("relu", "cpu", variants=[folder / "mine"])
    assert {c.variant.name for c in mine.cases} - {c.variant.name for c in suite.cases} == {"fancy", "tuned"}
    examples, _, _ = api.expand_target("linear", "cpu")
    assert {c.problem for c in examples.cases} <= set(CATALOG.operator("linear").examples())
    one = cli("run", "relu/scalar", "--backend", "cpu")
    assert one.returncode == 2 and "opbench run relu --case relu/scalar" in one.stderr
    odd = cli("run", "relo", "--backend", "cpu")
    assert odd.returncode == 2 and "did you mean 'relu'? To list all: opbench list operators" in odd.stderr


def test_two_files_of_one_name_are_refused(cli: Cli, folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "one.cu").write_text(RELU)
    done = cli("check", "one.cu", "other/one.cu")
    assert done.returncode == 2 and "both define the variant relu/one; rename one of the two" in done.stderr


def test_explain_names_the_command_for_a_file_that_does_not_compile(cli: Cli, folder: Path, paste: Paste) -> None:
    (folder / "one.cu").write_text((folder / "one.cu").read_text().replace("int n) {", "int n) { ;;)"))
    done = cli("explain", "one.cu")
    assert done.returncode == 1
    assert done.stderr.endswith("then check it with: opbench check one.cu\n")


def test_explain_takes_a_file_and_one_of_its_cases(cli: Cli, paste: Paste, folder: Path) -> None:
    (folder / "one.cu").write_text(RELU)
    done = cli("explain", "one.cu", "--case", "(n=1000)")
    assert done.returncode == 0 and done.stdout.startswith("relu/one(n=1000)\n"), done.stderr
    assert "if (i < n) out[i]" in done.stdout and done.stderr == ""
    again = paste("opbench explain one.cu --case 'relu/one(n=1000)'", folder)
    assert again.stdout == done.stdout
    assert "remove --case" in cli("explain", "relu/scalar(n=3)", "--case", "(n=1)").stderr


def test_the_case_of_a_file_is_its_largest_example_unless_named(folder: Path) -> None:
    (folder / "one.cu").write_text(TUNED)
    catalog, file = CATALOG, folder / "one.cu"
    largest = max(catalog.operator("relu").examples(), key=lambda problem: problem.bytes())
    assert case_of(file, "", catalog).name == f"relu/one[BLOCK=128]{largest}"
    assert case_of(file, "*[BLOCK=256](n=31)", catalog).name == "relu/one[BLOCK=256](n=31)"
    assert case_of(file, "(n=5)", catalog).name == "relu/one[BLOCK=128](n=5)"
    assert case_of(file, "relu/one[BLOCK=256](n=5)", catalog).name == "relu/one[BLOCK=256](n=5)"
    for pattern, refusal in (
        ("(m=5)", Refusal("unknown-name", "axis", value="m")),
        ("*BLOCK=3*", Refusal("no-match", "--case", value="*BLOCK=3*")),
    ):
        with refuses(refusal):
            case_of(file, pattern, catalog)


SQUARES = """
extern "C" __global__ void squares(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] * x[i];
}
"""
HEAD = """// /// opbench
// operator = "squares"
// title    = "squares"
// requires = ["n == 77777"]
// launch   = [{ kernel = "squares", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
"""
LAUNCHED = """
void run(float* x, float* out, int n) { squares<<<(n + 255) / 256, 256>>>(x, out, n); }
"""
UNKNOWN_SIZE = """
int size_of_it();
void run(float* x, float* out) { int count = size_of_it(); squares<<<(count + 255) / 256, 256>>>(x, out, count); }
"""


@pytest.fixture
def own(tmp_path: Path, cli: Cli) -> Path:
    """An operator of a user's own in a folder with a space in its name, and files on it next to that folder."""
    made = cli("new", "operator", "squares", "--in", "my kernels")
    assert made.returncode == 0, made.stderr
    (tmp_path / "one size.cu").write_text(HEAD + SQUARES)
    (tmp_path / "tuned.cu").write_text(HEAD.replace('requires = ["n == 77777"]', "tune = { ITEMS = [1, 2] }") + SQUARES)
    (tmp_path / "bare.cu").write_text(SQUARES + LAUNCHED)
    (tmp_path / "unknown.cu").write_text(SQUARES + UNKNOWN_SIZE)
    return tmp_path


OWN = ["--variants", "my kernels"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["run", "one size.cu", *OWN, "--backend", "cpu"], "check"),
        (["run", "one size.cu", *OWN, "--backend", "cpu", "--problem", "(n=5)"], "run"),
        (["check", "one size.cu", *OWN, "--problem", "(n=5)"], "check"),
        (["check", "squares/nave", *OWN], "list variants"),
        (["check", "squares", *OWN, "--case", "nothing*"], "check"),
        (["explain", "one size.cu", *OWN, "--case", "nothing*"], "check"),
        (["run", "squares/naive", *OWN, "--backend", "cpu"], "run"),
        (["adopt", "bare.cu", *OWN], "check"),
        (["adopt", "bare.cu", *OWN, "--operator", "squars"], "list operators"),
        (["check", "unknown.cu", *OWN, "--memory"], "check"),
        (["tune", "tuned.cu", *OWN], "tune"),
        (["tune", "squares/naive", *OWN, "--case", "(n=1000)"], "tune"),
        (["new", "variant", "squares/fast", "--in", "my kernels"], "check"),
        (["explain", "squares/naive(m=5)", *OWN], ""),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_each_command_that_a_message_names_works_for_a_file_of_ones_own(
    cli: Cli, paste: Paste, own: Path, words: list[str], kind: str
) -> None:
    first = cli(*words)
    told = first.stdout + first.stderr
    lines = re.findall(r"opbench ((?:list \w+|\w+) (?:'[^']*'|[^\s;()])(?:'[^']*'|[^;'()\n])*)", told.replace(",", ";"))
    named = [line.strip() for line in lines if line.startswith(kind)] if kind else []
    assert named or not kind, told
    for line in named[:1]:
        again = paste(f"opbench {line}", own)
        assert again.returncode in (0, 1), f"opbench {line}\n{again.stdout}{again.stderr}"
