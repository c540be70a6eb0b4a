"""Mistakes of the user: exit 2, one line, its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.errors import UsageError
from opbench.insight.diagnosis import PROBLEMS
from opbench.results.files import FILE
from support.checks.command_line import refused
from support.common import Cli


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("lst",), ("unknown command 'lst'; did you mean 'list'? (list all: opbench --help)",)),
        (("run", "quick", "--bakend", "cpu"), ("No such option '--bakend'", "--backend", "(opbench run --help)")),
        (("run",), ("Missing argument", "(opbench run --help)")),
        (("run", "quick", "--backend", "gpu"), ("'gpu' is not one of 'auto', 'cuda', 'cpu'",)),
        (("run", "quick", "--resume"), ("--resume needs --out DIR",)),
        (
            ("run", "quick", "--backend", "cpu", "--seed", "-1"),
            ("--seed: -1 is not allowed; give a whole number of at least 0",),
        ),
        (
            ("run", "quick", "--backend", "cpu", "--time-limit", "0"),
            ("--time-limit: 0 is not allowed; give a number of at least 0.1",),
        ),
        (
            ("run", "quick", "--samples", "x"),
            ("--samples: x is not allowed; give a whole number", "(opbench run --help)"),
        ),
        (("help", "shared-rase"), ("unknown topic 'shared-rase'; did you mean 'shared-race'?", "opbench help finding")),
        (
            ("import", "nodir"),
            ("import: unknown command 'nodir'; known: flashinfer", "(list all: opbench import --help)"),
        ),
        (("net", "runn"), ("net: unknown command 'runn'; did you mean 'run'?",)),
        (("check", "nodir"), ("unknown operator 'nodir'; known: ", " more (list all: opbench list operators)")),
        (("best", "nodir"), ("unknown operator, run or winners file 'nodir'", "(list all: opbench list operators)")),
        (("run", "quick", "--backend", "cpu", "--gpu", "h20"), ("unknown GPU 'h20'; did you mean 'h200'?",)),
        (
            ("run", "quik"),
            ("quik: no file, operator or suite has this name", "did you mean 'quick'?", "opbench list suites"),
        ),
        (("run", "mine.cu"), ("mine.cu: this file does not exist", "README.md")),
        (("adopt", "mine.cu"), ("mine.cu: this file does not exist", "README.md")),
        (("run", "quick", "--backend", "cpu", "--case", "relu/none*"), ("no case matches --case 'relu/none*'",)),
        (("check", "relo"), ("unknown operator 'relo'; did you mean 'relu'? (list all: opbench list operators)",)),
        (("check", "relu/scaler"), ("did you mean 'scalar'? (list all: opbench list variants relu)",)),
        (("check", "--variants", "nowhere"), ("nowhere: is not a folder; name a folder",)),
        (("list", "matmull"), ("unknown operator 'matmull'; did you mean 'matmul'?",)),
        (("list", "variant", "relu"), ("'variant'", "did you mean 'variants'?")),
        (("list", "operators", "relu"), ("opbench list operators takes no name",)),
        (("list", "variants", "matmull"), ("unknown operator 'matmull'; did you mean 'matmul'?",)),
        (("list", "cases", "--backend", "gpu"), ("'gpu' is not one of 'auto', 'cuda', 'cpu'",)),
        (("report", "nowhere"), ("nowhere: no such folder", FILE, "opbench run")),
        (("help", "finding", "bank"), ("did you mean 'bank-conflicts'?", "opbench help finding")),
        (("help", "race"), ("'global-race' or 'shared-race'?",)),
        (("explain", "relu"), ("'relu' is an operator, not a case", "opbench list cases relu")),
        (("explain", "relu/scalar(n=3"), ("the closing parenthesis is missing",)),
        (("explain", "relu/scalar[BLOCK=256]"), ("the problem in parentheses is missing",)),
        (
            ("profile", "relu/scala"),
            ("relu: unknown variant 'scala'; did you mean 'scalar'?", "(list all: opbench list variants relu)"),
        ),
        (("profile", "relu/scalar(m=3)"), ("relu: unknown axis 'm'; known: dtype, n",)),
        (
            ("profile", "relu/scalar[BLOCK=3](n=3)"),
            ("relu/scalar has no config [BLOCK=3]; choose one of its configs: [BLOCK=256]",),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and len(value) < 7 else None,
)
def test_a_mistake_is_told_in_one_line_with_its_remedy(cli: Cli, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = cli(*args)
    refused(done, 2, *words)
    assert done.stdout == ""


def test_a_group_without_a_command_prints_its_help(cli: Cli) -> None:
    done = cli("new")
    assert done.returncode == 2 and done.stderr.startswith("Usage: opbench new")


def test_a_folder_of_runs_is_refused_with_the_name_of_a_run(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / FILE).touch()
    refused(cli("open", run.parent), 2, "opbench open runs/first")
    refused(cli("report", run.parent), 2, f"such as {run},")


def test_a_topic_of_help_needs_no_kind(cli: Cli) -> None:
    assert cli("help", "shared-race").stdout == cli("help", "finding", "shared-race").stdout != ""


@pytest.mark.parametrize("problem", PROBLEMS)
def test_help_explains_each_slow_access_with_its_remedy(cli: Cli, problem: str) -> None:
    name = problem.replace(" ", "-")
    assert f"{name} " in cli("help", "finding").stdout
    text = cli("help", "finding", name.removesuffix("s") if name == "bank-conflicts" else name).stdout
    assert text.startswith(problem) and "Remedy: " in text and "opbench explain" in text


def test_a_missing_file_is_refused_with_the_nearest_file_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").touch()
    with pytest.raises(UsageError) as refusal:
        api.check([str(tmp_path / "kernle.cu")], backend="cpu")
    assert refusal.value.kind == "no-such-file" and str(tmp_path / "kernel.cu") in str(refusal.value)


@pytest.mark.parametrize(
    ("file", "command"),
    [("mine.cu", "opbench check folder/mine.cu"), ("relu/mine.cu", "opbench check relu --variants folder")],
)
def test_a_folder_is_refused_with_a_command_for_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("folder") / file
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(UsageError) as refusal:
        api.check(["folder"], backend="cpu")
    assert refusal.value.kind == "is-a-folder" and command in str(refusal.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("title", "titel", 3, "unknown key 'titel'; did you mean 'title'?"),
        ("block =", "blok =", 4, "unknown key 'blok'; did you mean 'block'?"),
        ('"relu"', '"rely"', None, "unknown operator 'rely'; did you mean 'relu'?"),
        ('"cdiv(n, 256)"', '"cdiv(n, 256"', 4, "cdiv(n, 256"),
        ("// operator", "// # operator", 3, "the key operator is missing"),
        ("// ///\n//\n", "//\n", 1, "no closing line; add the line '// ///'"),
        ("/// opbench", "/// openbench", 1, "no opbench header"),
        ("launch = [", "launch = ", 4, "is not valid TOML"),
    ],
)
def test_a_header_is_refused_with_file_and_line(
    cli: Cli, relu_file: Path, old: str, new: str, line: int | None, words: str
) -> None:
    relu_file.write_text(relu_file.read_text().replace(old, new, 1))
    done = cli("check", relu_file)
    refused(done, 2, words, f"{relu_file}:{line}: " if line else "")


BAD_SUITES = [
    ('[[run]]\noperator = "relo"\nproblems = [{ n = 1 }]', "did you mean 'relu'?"),
    ('[[run]]\noperator = "relu"\nproblems = [{ m = 1 }]', "relu: unknown axis 'm'; known: dtype, n"),
    ('[[run]]\noperator = "relu"\nproblems = [{ n = 1.5 }]', "n=1.5 is not allowed"),
    ('[[run]]\noperator = "relu"\nproblems = 3', "problems = 3 is not allowed; it must be a list"),
    (
        '[[run]]\noperator = "relu"\nproblems = [3]',
        "problems: 3 is not allowed; each element of the list must be a table",
    ),
    ('[[run]]\noperator = "relu"\nproblems = []', "has no problem"),
    ('[[run]]\noperator = "relu"\nsweep = 3', "sweep = 3 is not allowed; it must be a table"),
    ('[[run]]\noperator = "relu"\nsweep = { n = [] }', "has no problem"),
    ('[[run]]\noperator = "relu"\nvariants = "scalar"\nproblems = [{ n = 1 }]', "it must be a list"),
    ('[[run]]\noperator = "relu"\nvariants = [3]\nproblems = [{ n = 1 }]', "each element of the list must be a string"),
    ('[[run]]\noperator = "relu"\ntune = { BLOKC = 256 }\nproblems = [{ n = 1 }]', "did you mean 'BLOCK'?"),
    (
        '[[run]]\noperator = "relu"\ntune = { BLOCK = 3 }\nproblems = [{ n = 1 }]',
        "BLOCK = 3 is not allowed; choose from 128",
    ),
    ('[[run]]\noperator = "relu"\nconfigs = "some"\nproblems = [{ n = 1 }]', 'write "all", or "default"'),
    ('[[run]]\noperator = "relu"\ncpu = 3\nproblems = [{ n = 1 }]', "cpu = 3 is not allowed"),
    ("[[run]]\noperator = 3", "operator = 3 is not allowed; it must be a string"),
    ("[[run]]\nproblems = [{ n = 1 }]", "needs operator"),
    ("run = 3", "run = 3 is not allowed; it must be a list"),
    ("run = [3]", "3 is not allowed here, because a table is needed"),
    ('title = 3\n[[run]]\noperator = "relu"', "title = 3 is not allowed; it must be a string"),
    ('time_limit_s = "1"\n[[run]]\noperator = "relu"', "it must be a number"),
    ('time_limit_s = -1\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "time_limit_s = -1 is not allowed"),
    ('timing.budget_s = "1"\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "budget_s = '1' is not allowed"),
    ('timing.budget_s = inf\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "must be a finite number >= 0"),
    ('timing.max_samples = 1.5\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "must be a whole number"),
    ("", "the suite has no case"),
]


@pytest.mark.parametrize(
    ("text", "words"), BAD_SUITES, ids=lambda value: value.splitlines()[-1] if "=" in value else ""
)
def test_a_malformed_suite_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(api.UsageError) as caught:
        api.expand_target(path, "cpu")
    assert words in str(caught.value) and str(caught.value).startswith(f"{path}: ")


def test_a_corrupt_results_file_is_named_with_its_line(cli: Cli, tiny_suite: Path) -> None:
    api.run(tiny_suite, backend="cpu", out=tiny_suite.parent / "out", report=False)
    path = tiny_suite.parent / "out" / FILE
    lines = path.read_text().splitlines()
    for line in ("not json", "[]", '{"type": "result"}', '{"type": "result", "case": []}'):
        path.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
        refused(cli("report", "out"), 2, f"out/{FILE}:3: this line is corrupt")
    resumed = ("run", tiny_suite, "--backend", "cpu", "--out", "out", "--resume")
    refused(cli(*resumed), 2, f"out/{FILE}:3: this line is corrupt", "delete the line")
    path.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    assert cli(*resumed).returncode == 0
