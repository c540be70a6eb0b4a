"""The command line as people use it: real processes, their exit codes, their words, their two streams."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from common import HANGS, RELU, ROOT, WRONG, Cli

from opbench import __version__, api
from opbench.catalog.case import select
from opbench.catalog.folders import Catalog, case_named
from opbench.cli.progress import plain_progress
from opbench.paths import shipped
from opbench.results.files import FILE, read_run
from opbench.runs.runner import Progress
from opbench.runs.suite import read_suite

CATALOG = Catalog()
SUITES = sorted(shipped("suites").glob("*.toml"))


def command(*args: str | Path) -> list[str]:
    """A command line for Popen."""
    return [sys.executable, "-m", "opbench", *map(str, args)]


def own_folder(folder: Path, **kernels: str) -> Path:
    """A user's folder laid out as variants/, with variants of relu."""
    (folder / "relu").mkdir(parents=True)
    for name, source in kernels.items():
        (folder / "relu" / f"{name}.cu").write_text(source)
    return folder


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """An error is one message of ours on stderr, and no traceback."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith("opbench: ")
    for word in words:
        assert word in message


# Usage: exit 2 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("lst",), ("unknown command 'lst'; did you mean 'list'? (opbench --help)",)),
        (("run", "quick", "--bakend", "cpu"), ("No such option '--bakend'", "--backend", "(opbench run --help)")),
        (("run",), ("Missing argument", "(opbench run --help)")),
        (("run", "quick", "--backend", "gpu"), ("'gpu' is not one of 'auto', 'cuda', 'cpu'",)),
        (("run", "quick", "--resume"), ("--resume needs --out DIR",)),
        (("run", "quick", "--backend", "cpu", "--seed", "-1"), ("-1 is not in the range x>=0",)),
        (("run", "quick", "--backend", "cpu", "--time-limit", "0"), ("0 is not in the range",)),
        (("run", "quick", "--backend", "cpu", "--gpu", "h20"), ("no ceilings are known for GPU 'h20'", "h200")),
        (("run", "quik"), ("quik: no such file, nor an operator", "shipped suites:", "quick", "(opbench list suites)")),
        (("run", "mine.cu"), ("mine.cu: no such file", "README.md")),
        (("run", "quick", "--backend", "cpu", "--case", "relu/none*"), ("no case matches --case 'relu/none*'",)),
        (("check", "relo"), ("unknown operator 'relo'; did you mean 'relu'? (opbench list operators)",)),
        (("check", "relu/scaler"), ("did you mean 'scalar'? (opbench list variants relu)",)),
        (("check", "--variants", "nowhere"), ("nowhere: no such folder",)),
        (("list", "oprators"), ("'oprators' is not one of 'operators', 'variants', 'suites', 'cases'",)),
        (("list", "operators", "relu"), ("opbench list operators takes no name",)),
        (("list", "variants", "matmull"), ("unknown operator 'matmull'; did you mean 'matmul'?",)),
        (("list", "cases", "--backend", "gpu"), ("'gpu' is not one of 'auto', 'cuda', 'cpu'",)),
        (("report", "nowhere"), (f"nowhere/{FILE}: cannot be read: No such file", "opbench run")),
        (("profile", "relu/scalar"), ("'relu/scalar' is no case; one looks like matmul/", "(opbench list cases)")),
        (("profile", "relu/scalar(m=3)"), ("relu: unknown axis 'm'; known: n",)),
        (("profile", "relu/scalar[BLOCK=3](n=3)"), ("relu/scalar has no config [BLOCK=3]; it has [BLOCK=256]",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and len(value) < 7 else None,
)
def test_a_mistake_is_told_in_one_line_with_its_remedy(cli: Cli, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = cli(*args)
    refused(done, 2, *words)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("title", "titel", 3, "unknown key 'titel'; did you mean 'title'?"),
        ("block =", "blok =", 4, "unknown key 'blok'; did you mean 'block'?"),
        ('"relu"', '"rely"', None, "unknown operator 'rely'; did you mean 'relu'?"),
        ('"cdiv(n, 256)"', '"cdiv(n, 256"', 4, "cdiv(n, 256"),
        ("// operator", "// # operator", 3, "names its operator"),
        ("// ///\n//\n", "//\n", 1, "no closing line '// ///'"),
        ("/// opbench", "/// openbench", 1, "no opbench header"),
        ("launch = [", "launch = ", 4, "is no TOML"),
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
    ('[[run]]\noperator = "relu"\nproblems = [{ m = 1 }]', "relu: unknown axis 'm'; known: n"),
    ('[[run]]\noperator = "relu"\nproblems = [{ n = 1.5 }]', "n=1.5 is not allowed"),
    ('[[run]]\noperator = "relu"\nproblems = 3', "problems = 3 is not allowed; it must be a list"),
    ('[[run]]\noperator = "relu"\nproblems = [3]', "problems: 3 is not allowed; each must be a table"),
    ('[[run]]\noperator = "relu"\nproblems = []', "has no problem"),
    ('[[run]]\noperator = "relu"\nsweep = 3', "sweep = 3 is not allowed; it must be a table"),
    ('[[run]]\noperator = "relu"\nsweep = { n = [] }', "has no problem"),
    ('[[run]]\noperator = "relu"\nvariants = "scalar"\nproblems = [{ n = 1 }]', "it must be a list"),
    ('[[run]]\noperator = "relu"\nvariants = [3]\nproblems = [{ n = 1 }]', "each must be a string"),
    ('[[run]]\noperator = "relu"\ntune = { BLOKC = 256 }\nproblems = [{ n = 1 }]', "did you mean 'BLOCK'?"),
    (
        '[[run]]\noperator = "relu"\ntune = { BLOCK = 3 }\nproblems = [{ n = 1 }]',
        "BLOCK = 3 is not allowed; one of 128",
    ),
    ('[[run]]\noperator = "relu"\nconfigs = "some"\nproblems = [{ n = 1 }]', '"all" or "default"'),
    ('[[run]]\noperator = "relu"\ncpu = 3\nproblems = [{ n = 1 }]', "cpu = 3 is not allowed"),
    ("[[run]]\noperator = 3", "operator = 3 is not allowed; it must be a string"),
    ("[[run]]\nproblems = [{ n = 1 }]", "needs operator"),
    ("run = 3", "run = 3 is not allowed; it must be a list"),
    ("run = [3]", "3 is not allowed where a table"),
    ('title = 3\n[[run]]\noperator = "relu"', "title = 3 is not allowed; it must be a string"),
    ('time_limit_s = "1"\n[[run]]\noperator = "relu"', "it must be a number"),
    ('time_limit_s = -1\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "time_limit_s = -1 is not allowed"),
    ('timing.budget_s = "1"\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "budget_s = '1' is not allowed"),
    ('timing.budget_s = inf\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "must be a finite number >= 0"),
    ('timing.max_samples = 1.5\n[[run]]\noperator = "relu"\nproblems = [{ n = 1 }]', "must be a whole number"),
    ("", "holds no case"),
]


@pytest.mark.parametrize(
    ("text", "words"), BAD_SUITES, ids=lambda value: value.splitlines()[-1] if "=" in value else ""
)
def test_a_malformed_suite_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(api.UsageError) as caught:
        api.expand(path, "cpu")
    assert words in str(caught.value) and str(caught.value).startswith(f"{path}: ")


def test_without_arguments_it_shows_what_there_is(cli: Cli) -> None:
    bare, asked, version = cli(), cli("--help"), cli("--version")
    assert bare.returncode == asked.returncode == version.returncode == 0
    assert bare.stdout == asked.stdout and bare.stdout.startswith("Usage: opbench ")
    for code in ("0 all right", "1 a case is wrong or failed", "2 usage", "3 environment"):
        assert code in bare.stdout
    assert __version__ in version.stdout


# Right and wrong: exit 0 and 1 --------------------------------------------------------------------------------------


def test_a_file_of_ones_own_runs_from_anywhere(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "a folder of mine"
    folder.mkdir()
    (folder / "my kernel.cu").write_text(RELU)
    done = cli("run", folder / "my kernel.cu", "--backend", "cpu", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").exists()
    results = read_run(tmp_path / "out").results
    assert {r.status for r in results if r.variant == "my kernel"} == {"right"}
    assert "my kernel" in done.stdout
    assert "Traceback" not in done.stderr and "\x1b" not in done.stdout + done.stderr


def test_an_operators_folder_may_be_the_working_folder(cli: Cli, tmp_path: Path) -> None:
    """Its operator.py must not stand in for the standard library's module of that name in the worker."""
    folder = own_folder(tmp_path / "mine", mine=RELU.replace('operator = "relu"\n// ', "")) / "relu"
    (folder / "operator.py").write_text((shipped("variants") / "relu" / "operator.py").read_text())
    script = Path(sys.executable).with_name("opbench")
    args = [str(script), "check", "relu/mine", "--variants", "..", "--random", "0"]
    done = subprocess.run(args, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("relu/scalar  10 right")


def test_a_wrong_case_ends_in_1_and_its_line_repeats_it(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(WRONG)
    first = cli("check", relu_file, "--seed", "5", "--random", "1")
    assert first.returncode == 1
    assert "wrong at out[" in first.stdout and "want " in first.stdout
    rerun = re.search(r"rerun: opbench (check .*) --case '(.*)'", first.stdout)
    assert rerun
    again = cli(*rerun[1].split(), "--case", rerun[2])
    assert again.returncode == 1 and first.stdout.splitlines()[1] in again.stdout


def test_the_rerun_line_of_a_random_shape_finds_that_shape(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(
        RELU.replace('title = "', 'requires = ["n % 10 == 7 and n != 127 and n != 65537"]\n// title = "')
    )
    relu_file.write_text(relu_file.read_text().replace(": 0.0f", ": 1.0f"))
    first = cli("check", relu_file, "--random", "40", "--seed", "9")
    rerun = re.search(r"rerun: opbench (check .*) --case '(.*)'", first.stdout)
    assert first.returncode == 1 and rerun
    assert cli(*rerun[1].split(), "--case", rerun[2]).returncode == 1


def test_json_is_alone_on_stdout(cli: Cli, tiny_suite: Path) -> None:
    run = cli("run", tiny_suite, "--backend", "cpu", "--out", "out", "--json")
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    assert [r["case"] for r in results] == [r.case for r in read_run(tiny_suite.parent / "out").results]
    assert {r["status"] for r in results} == {"right"} and all(r["measurement"] is None for r in results)
    assert "report: " in run.stderr
    check = json.loads(
        cli("check", "relu/scalar", "--random", "0", "--json", "--case", "*(n=7)", "--case", "*(n=1)").stdout or "0"
    )
    assert check == 0, "n=7 is no example: the whole command is refused"
    check = json.loads(cli("check", "relu/scalar", "--random", "0", "--json", "--case", "*(n=1)").stdout)
    assert {r["problem"] for r in check} == {"(n=1)"}


def test_progress_goes_to_stderr_and_the_table_to_stdout(cli: Cli, tiny_suite: Path) -> None:
    done = cli("run", tiny_suite, "--backend", "cpu", "--out", "out")
    assert done.returncode == 0
    assert "8/8 done" in done.stderr and "done" not in done.stdout
    assert "scalar" in done.stdout and "BLOCK=256" in done.stdout and "relu(n=1000)" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    # The same table again, from the run's folder alone.
    again = cli("report", "out")
    assert again.returncode == 0 and again.stdout == done.stdout


def on_a_terminal(args: list[str], cwd: Path, columns: int = 80) -> tuple[int, str, str]:
    """Exit code, what a terminal of so many columns shows of stdout and, apart from it, of stderr."""
    ends = [pty.openpty() for _ in range(2)]
    for _, slave in ends:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(args, cwd=cwd, stdout=ends[0][1], stderr=ends[1][1], env=environment)
    for _, slave in ends:
        os.close(slave)
    texts: list[list[bytes]] = [[], []]

    def drain(index: int) -> None:
        while True:
            try:
                data = os.read(ends[index][0], 65536)
            except OSError:  # Linux says EIO when the last writer is gone
                return
            if not data:
                return
            texts[index].append(data)

    threads = [threading.Thread(target=drain, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    code = process.wait(timeout=120)
    for thread in threads:
        thread.join()
    for master, _ in ends:
        os.close(master)
    return code, b"".join(texts[0]).decode(), b"".join(texts[1]).decode()


def test_on_a_terminal_the_table_fits_80_columns(tmp_path: Path) -> None:
    wide = tmp_path / "wide.toml"
    wide.write_text(
        '[[run]]\noperator = "conv2d"\nvariants = ["implicit_gemm", "naive_grid3d"]\nconfigs = "default"\n'
        "problems = [{ n = 1, c = 5, h = 17, w = 19, k = 6, r = 3, s = 3, padding = 1 }]\n"
    )
    code, table, progress = on_a_terminal(command("run", wide, "--backend", "cpu", "--out", "out"), tmp_path)
    assert code == 0, progress
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", table)
    # A problem's name is never cut, as it is pasted back; so a heading may be longer.
    rows = [line for line in plain.splitlines() if not line.startswith("conv2d(")]
    assert max(len(line.rstrip()) for line in rows) <= 80
    assert "naive_grid3d" in plain and "right" in plain
    assert "\x1b[" in progress, "a bar is drawn on a terminal"
    assert "Traceback" not in progress


def test_verdicts_are_coloured_on_a_terminal_that_wants_it(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text(WRONG)
    args = command("check", "wrong.cu", "relu/scalar", "--random", "0", "--case", "*(n=31)")
    code, shown, _ = on_a_terminal(args, tmp_path)
    assert code == 1 and "\x1b[31m1 wrong\x1b[0m" in shown and "\x1b[32m" in shown
    _, shown, _ = on_a_terminal(["env", "NO_COLOR=1", *args], tmp_path)
    assert "1 wrong" in shown and "\x1b[3" not in shown


@pytest.mark.parametrize("args", [("explain", "relu/scalar(n=1000)"), ("doctor",), ("run", "--help")], ids=" ".join)
def test_a_terminal_without_the_signs_gets_plain_ones(cli: Cli, args: tuple[str, ...]) -> None:
    done = cli(*args, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.isascii() and ("2.94 us" in done.stdout or args[0] != "explain")


def test_progress_says_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    class Clock:
        now_s = 0.0  # builds take what they take; then 20 s a case

    tell = plain_progress(lambda: Clock.now_s)
    for phase, done, now_s in [
        ("build", 0, 0),
        ("check", 0, 100),
        ("done", 1, 120),
        ("done", 2, 140),
        ("done", 4, 180),
    ]:
        Clock.now_s = float(now_s)
        tell(Progress(phase, "relu/x(n=1)", done, 4))
    assert capsys.readouterr().err.splitlines() == [
        "0/4 build relu/x(n=1)",
        "1/4 about 60 s left: done relu/x(n=1)",
        "2/4 about 40 s left: done relu/x(n=1)",
        "4/4 done relu/x(n=1)",
    ]


@pytest.mark.parametrize(
    "args", [("list", "variants"), ("list", "cases", "full"), ("--help",), ("doctor",)], ids=" ".join
)
def test_stdout_closed_early_is_no_error(tmp_path: Path, args: tuple[str, ...]) -> None:
    process = subprocess.Popen(command(*args), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), stderr) == (0, b"")


def test_stdout_closed_early_does_not_hide_a_wrong_case(tmp_path: Path, relu_file: Path) -> None:
    relu_file.write_text(WRONG)
    for args in (("check", relu_file, "--random", "0"), ("run", relu_file, "--backend", "cpu", "--out", "o")):
        process = subprocess.Popen(command(*args), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout and process.stderr
        process.stdout.close()
        stderr = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=60) == 1 and b"Broken" not in stderr and b"Traceback" not in stderr


# Lists --------------------------------------------------------------------------------------------------------------


def test_list_shows_what_lies_in_the_folders(cli: Cli) -> None:
    operators = [line.split()[0] for line in cli("list").stdout.splitlines()]
    assert operators == sorted(p.parent.name for p in shipped("variants").glob("*/operator.py"))
    files = {f"{p.parent.name}/{p.stem}" for p in shipped("variants").glob("*/*") if p.suffix in (".cu", ".py")}
    variants = [line.split()[0] for line in cli("list", "variants").stdout.splitlines()]
    assert set(variants) == {f for f in files if not f.endswith("/operator")}
    assert [v for v in variants if v.startswith("relu/")] == [
        line.split()[0] for line in cli("list", "variants", "relu").stdout.splitlines()
    ]
    suites = [line.split()[0] for line in cli("list", "suites").stdout.splitlines()]
    assert suites == [f"suites/{p.name}" for p in SUITES]


@pytest.mark.parametrize("what", ["operators", "variants", "suites", "cases"])
def test_list_as_json_has_the_same_names(cli: Cli, what: str) -> None:
    arguments = ("list", what, *(("quick", "--backend", "cpu") if what == "cases" else ()))
    plain, rows = cli(*arguments), json.loads(cli(*arguments, "--json").stdout)
    assert [re.split(r"\s\s+", line)[0].strip() for line in plain.stdout.splitlines()] == [row["name"] for row in rows]
    assert what == "cases" or all(row["title"] for row in rows)
    assert plain.stderr == ""


@pytest.mark.parametrize("what", ["operators", "variants", "suites"])
def test_list_imports_nothing_heavy(tmp_path: Path, what: str) -> None:
    code = (
        f"import sys; sys.argv = ['opbench', 'list', {what!r}]; from opbench.cli import main; main(); "
        "heavy = {'numpy', 'cupy', 'matplotlib', 'pandas', 'torch', 'rich', 'jinja2', 'nvtx'}; "
        "print(*sorted(heavy & {m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_printed_names_are_selectors_in_every_suite(path: Path, backend: str) -> None:
    cases = list(read_suite(path, CATALOG, backend).cases)
    for case in cases[:: max(1, len(cases) // 12)]:
        assert [c.name for c in select(cases, [case.name])] == [case.name]
        found = case_named(case.name)
        assert (found.name, found.problem, found.config) == (case.name, case.problem, case.config)


def test_a_printed_name_pasted_back_gives_that_case_alone(cli: Cli) -> None:
    names = cli("list", "cases", "full", "--backend", "cpu").stdout.splitlines()
    name = max(names, key=len)
    assert cli("list", "cases", "full", "--backend", "cpu", "--case", name).stdout.splitlines() == [name]
    few = cli("list", "cases", "full", "--backend", "cpu", "--case", "sum/*", "--case", name).stdout.splitlines()
    assert few == [n for n in names if n.startswith("sum/") or n == name]


# A user's own folder ------------------------------------------------------------------------------------------------

OPERATOR = '''\
"""negate: out = -x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Negate(Operator):
    """out[i] = -x[i]."""

    n: int
    inputs = {"x": "n"}
    outputs = {"out": "n"}

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Minus x."""
        return -x

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: nothing is rounded."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Negate]:
        """One and a prime."""
        return [cls(n=1), cls(n=257)]
'''


def test_a_folder_of_ones_own_adds_variants_and_operators(cli: Cli, tmp_path: Path) -> None:
    mine = own_folder(tmp_path / "mine", fancy=RELU.replace('operator = "relu"\n// ', ""))
    (mine / "negate").mkdir()
    (mine / "negate" / "operator.py").write_text(OPERATOR)
    negate = RELU.replace('operator = "relu"\n// ', "").replace("x[i] > 0.0f ? x[i] : 0.0f", "-x[i]")
    (mine / "negate" / "plain.cu").write_text(negate)
    assert "negate" in cli("list", "--variants", "mine").stdout
    assert "relu/fancy" in cli("list", "variants", "relu", "--variants", "mine").stdout
    done = cli("check", "negate", "relu/fancy", "--variants", "mine", "--random", "1")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["negate/plain", "relu/fancy"]
    suite = tmp_path / "s.toml"
    suite.write_text('[[run]]\noperator = "negate"\nproblems = [{ n = 5 }]\n')
    assert cli("run", "s.toml", "--variants", "mine", "--backend", "cpu", "--out", "out").returncode == 0
    refused(cli("run", "s.toml", "--backend", "cpu"), 2, "s.toml: unknown operator 'negate'")


def test_a_folder_that_would_be_left_out_in_silence_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(
        cli("list", "--variants", "empty"), 2, "empty: no folder in it has variants; it holds one folder per operator"
    )
    mine = own_folder(tmp_path / "mine", fancy=RELU)
    refused(cli("list", "--variants", mine / "relu"), 2, "no folder in it has variants")
    (mine / "relu").rename(mine / "relo")
    refused(
        cli("check", "relu", "--variants", mine),
        2,
        "relo: unknown operator 'relo'; did you mean 'relu'?",
        "relo/operator.py",
    )
    (mine / "relo").rename(mine / "relu")
    (mine / "relu" / "fancy.py").write_text('"""x."""\n')
    refused(
        cli("list", "variants", "relu", "--variants", mine), 2, "fancy.py: fancy.cu is variant 'relu/fancy' already"
    )


# Environment: exit 3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("ceiling",), ("selftest",), ("selftest", "--only", "aa")], ids=" ".join)
def test_what_only_a_gpu_can_do_names_no_run_on_a_cpu(cli: Cli, args: tuple[str, ...]) -> None:
    done = cli(*args, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    refused(done, 3, "no CUDA device")
    assert "--backend cpu" not in done.stderr


def test_no_gpu_names_the_way_without_one(cli: Cli) -> None:
    done = cli("run", "quick", "--backend", "cuda", env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    refused(done, 3)
    assert re.search(r"--backend cpu|pip install", done.stderr)


@pytest.mark.parametrize("args", [("run", "quick", "--backend", "cpu"), ("check", "relu/scalar")], ids=" ".join)
def test_no_compiler_names_how_to_get_one(cli: Cli, tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "ziglang.py").touch()  # a module of that name that holds no compiler
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    environment.pop("OPBENCH_CXX", None)
    done = cli(*args, env=environment)
    refused(done, 3, "no C++ compiler", "pip install ", "[compiler]'", "OPBENCH_CXX")
    broken = cli(*args, env={**environment, "OPBENCH_CXX": "/nowhere/g++"})
    refused(broken, 3, "OPBENCH_CXX='/nowhere/g++' is no working g++")


def test_a_folder_that_cannot_be_written_is_named(cli: Cli, tiny_suite: Path) -> None:
    (tiny_suite.parent / "file").touch()
    refused(cli("run", tiny_suite, "--backend", "cpu", "--out", "file/out"), 3, "file/out", "cannot write", "--out DIR")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(cli: Cli, tiny_suite: Path) -> None:
    folder = tiny_suite.parent / "locked"
    folder.mkdir(mode=0o500)
    refused(cli("run", tiny_suite, "--backend", "cpu", "--out", folder / "out"), 3, "locked/out", "Permission denied")


def test_a_full_disk_ends_in_3_and_what_was_written_can_be_completed(cli: Cli, tiny_suite: Path) -> None:
    cli("run", tiny_suite, "--backend", "cpu", "--out", "warm")  # from here on the compiler writes nothing
    size = (tiny_suite.parent / "warm" / FILE).stat().st_size
    names = [r.case for r in read_run(tiny_suite.parent / "warm").results]

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * 2 // 3, size * 2 // 3))

    done = cli("run", tiny_suite, "--backend", "cpu", "--out", "out", preexec_fn=small_files)
    refused(done, 3, f"out/{FILE}: cannot write", "--resume")
    kept = [r.case for r in read_run(tiny_suite.parent / "out").results]
    assert 0 < len(kept) < len(names) and kept == names[: len(kept)]
    assert (tiny_suite.parent / "out" / FILE).read_bytes().endswith(b"\n")
    done = cli("run", tiny_suite, "--backend", "cpu", "--out", "out", "--resume")
    assert done.returncode == 0, done.stderr
    assert [r.case for r in read_run(tiny_suite.parent / "out").results] == names


def test_a_report_on_a_full_disk_leaves_no_half_page(cli: Cli, tiny_suite: Path) -> None:
    cli("run", tiny_suite, "--backend", "cpu", "--out", "out")
    page = tiny_suite.parent / "out" / "report.html"
    whole = page.read_bytes()

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) // 2, len(whole) // 2))

    refused(cli("report", "out", preexec_fn=small_files), 3, "report.html: cannot write", "opbench report")
    assert page.read_bytes() == whole
    assert sorted(p.name for p in page.parent.iterdir()) == ["report.html", FILE, "worker.log"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_stdout_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("list"), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 3
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_a_corrupt_results_file_is_named_with_its_line(cli: Cli, tiny_suite: Path) -> None:
    api.run(tiny_suite, backend="cpu", out=tiny_suite.parent / "out", report=False)
    path = tiny_suite.parent / "out" / FILE
    lines = path.read_text().splitlines()
    for line in ("not json", "[]", '{"type": "result"}', '{"type": "result", "case": []}'):
        path.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
        refused(cli("report", "out"), 2, f"out/{FILE}:3: corrupt")
    resumed = ("run", tiny_suite, "--backend", "cpu", "--out", "out", "--resume")
    refused(cli(*resumed), 2, f"out/{FILE}:3: corrupt", "delete that line")
    path.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    assert cli(*resumed).returncode == 0


# Interrupts ---------------------------------------------------------------------------------------------------------


def heed_interrupts() -> None:
    """Where the tests run in a shell's background, they and what they start would ignore interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupt_keeps_what_was_measured_and_says_where(tmp_path: Path) -> None:
    own_folder(tmp_path / "mine", zz_hangs=HANGS)
    suite = tmp_path / "s.toml"
    suite.write_text(
        '[[run]]\noperator = "relu"\nvariants = ["scalar", "zz_hangs"]\nproblems = [{ n = 7 }]\nconfigs = "default"\n'
    )
    args = command("run", suite, "--variants", "mine", "--backend", "cpu")
    process = subprocess.Popen(
        args,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 (it starts no thread)
    )
    lines = tmp_path / "reports"
    until(lambda: any(p.read_text().count('"type":"result"') for p in lines.glob(f"*/{FILE}")))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr
    (path,) = lines.glob(f"*/{FILE}")
    assert (
        f"opbench: interrupted; what was measured is kept; complete it with --resume --out reports/{path.parent.name}"
        in stderr
    )
    assert [r.status for r in read_run(path.parent).results] == ["right"]


def test_an_interrupted_check_promises_nothing(tmp_path: Path, relu_file: Path) -> None:
    relu_file.write_text(HANGS)
    process = subprocess.Popen(
        command("check", relu_file),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509
    )
    assert process.stderr
    assert "build" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.splitlines()[-1]) == (130, "opbench: interrupted")


def test_the_module_and_the_script_are_the_same(cli: Cli) -> None:
    script = subprocess.run(
        [Path(sys.executable).with_name("opbench"), "--help"], capture_output=True, text=True, check=True
    )
    assert script.stdout == cli("--help").stdout
    assert (ROOT / "opbench" / "__main__.py").exists()
