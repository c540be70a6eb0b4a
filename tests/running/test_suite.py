"""Suites: what they expand to and how their mistakes are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opbench import api
from opbench.errors import UsageError
from opbench.paths import shipped_suites
from opbench.report.run import traffic_columns
from opbench.results.rows import rows
from opbench.running.suite import read_suite, suite_for_variants
from opbench.timing.stopping import is_interval_stable
from support.checks.errors import Refusal, message_of, refuses, same_messages
from support.common import CATALOG, RELU

GOOD = '[[run]]\noperator = "relu"\nvariants = ["scalar"]\nproblems = [{ n = 5 }]\n'


def expand(tmp_path: Path, text: str, backend: str = "cpu") -> list[str]:
    path = tmp_path / "s.toml"
    path.write_text(text)
    return [c.name for c in read_suite(path, CATALOG, backend).cases]


MISTAKES = (
    ('"relu"', '"rely"', Refusal("unknown-name", "operator", value="rely")),
    ('"scalar"', '"scaler"', Refusal("unknown-name", "variant", value="scaler")),
    ("n = 5", "m = 5", Refusal("unknown-name", "axis", value="m")),
    ("n = 5", "n = -5", Refusal("not-allowed", "n", value=-5)),
    ("problems", "problem", Refusal("unknown-name", "key of [[run]]", value="problem")),
    ("[[run]]", "[[runs]]", Refusal("unknown-name", "key", value="runs")),
    ("[[run]]", "[timing]\nbudget = 1\n[[run]]", Refusal("unknown-name", "timing key", value="budget")),
    (
        "[[run]]",
        'timing.mode = "warm"\n[[run]]',
        Refusal("not-allowed", "timing.mode", value="warm", allowed=("cold", "hot", "graph")),
    ),
    ("[{ n = 5 }]", "[", Refusal("not-toml", "s.toml")),
    ("problems = [{ n = 5 }]", "", Refusal("no-problem", "relu")),
)


@pytest.mark.parametrize(("old", "new", "refusal"), MISTAKES)
def test_mistakes_name_the_file_the_value_and_the_remedy(tmp_path: Path, old: str, new: str, refusal: Refusal) -> None:
    with refuses(refusal):
        expand(tmp_path, GOOD.replace(old, new))


def test_the_messages_about_suites(tmp_path: Path) -> None:
    def message(old: str, new: str) -> str:
        return message_of(lambda: expand(tmp_path, GOOD.replace(old, new)))

    same_messages("suites", {f"{old!r} -> {new!r}": message(old, new) for old, new, _ in MISTAKES}, tmp_path)


@pytest.mark.parametrize(
    ("problem", "refusal"),
    [
        ("{ row = 1024, cols = 4 }", Refusal("unknown-name", "axis", value="row")),
        ("{ rows = 4, cols = -1 }", Refusal("not-allowed", "cols", value=-1)),
        ('{ rows = "a", cols = 4 }', Refusal("not-allowed", "rows", value="a")),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_other_backends_problems_are_looked_at_too(
    tmp_path: Path, problem: str, refusal: Refusal, backend: str
) -> None:
    fine, other = "{ rows = 3, cols = 4 }", "cpu" if backend == "cuda" else "cuda"
    here = {backend: fine, other: problem}
    text = f'[[run]]\noperator = "transpose"\nproblems = [{here["cuda"]}]\ncpu.problems = [{here["cpu"]}]\n'
    with refuses(refusal):
        expand(tmp_path, text, backend)


def test_the_other_backends_sizes_of_a_network_are_looked_at_too(tmp_path: Path) -> None:
    text = '[[run]]\nnetwork = "lenet"\nsizes = { batch = -1 }\ncpu.sizes = { batch = 2 }\n'
    with refuses("not-allowed", "batch", value=-1):
        expand(tmp_path, text)


def test_a_suite_of_billions_of_cases_is_refused_with_the_count(tmp_path: Path) -> None:
    axis = str(list(range(1, 2001)))
    sweep = f'[[run]]\noperator = "matmul"\nsweep = {{ m = {axis}, n = {axis}, k = {axis} }}\n'
    with refuses("too-many-problems", "sweep", value=8_000_000_000):
        expand(tmp_path, sweep)
    many = f'[[run]]\noperator = "relu"\nsweep = {{ n = {list(range(1, 9001))} }}\n'
    with refuses("too-many-cases", allowed=20_000):
        expand(tmp_path, many)


def test_a_variant_that_does_not_serve_a_problem_is_no_case_of_it(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[[run]]\noperator = "maxpool2d"\nproblems = [{ n = 1, c = 2, h = 5, w = 5 }]\n')
    suite = read_suite(path, CATALOG, "cpu")
    assert all(case.unmet_requirement() is None for case in suite.cases) and suite.cases
    assert suite.left_out == {
        "maxpool2d(n=1,c=2,h=5,w=5)": {
            "supports layout = nhwc (here layout=nchw)": ["nhwc_flat_divmod", "nhwc_window_constant", "nhwc_vector"]
        }
    }


def test_a_suite_that_nothing_fits_says_why(tmp_path: Path) -> None:
    text = '[[run]]\noperator = "maxpool2d"\nvariants = ["nhwc*"]\nproblems = [{ n = 1, c = 2, h = 5, w = 5 }]\n'
    with refuses("no-case") as raised:
        expand(tmp_path, text)
    assert raised.value.value == {
        "maxpool2d(n=1,c=2,h=5,w=5)": {
            "supports layout = nhwc (here layout=nchw)": ["nhwc_flat_divmod", "nhwc_window_constant", "nhwc_vector"]
        }
    }


def test_an_unknown_suite_lists_the_shipped_ones() -> None:
    with refuses("no-such-suite", "nothing.toml") as raised:
        read_suite(Path("nothing.toml"), CATALOG, "cpu")
    assert "quick" in raised.value.allowed


def test_problems_may_differ_per_backend(tmp_path: Path) -> None:
    text = GOOD + "cpu.problems = [{ n = 3 }]\ntune = { BLOCK = 128 }\n"
    assert expand(tmp_path, text, "cpu") == ["relu/scalar[BLOCK=128](n=3)"]
    assert expand(tmp_path, text, "cuda") == ["relu/scalar[BLOCK=128](n=5)"]


def test_a_sweep_is_a_product(tmp_path: Path) -> None:
    text = '[[run]]\noperator = "matmul"\nvariants = ["coalesced"]\nsweep = { m = [1, 2], n = 3, k = [4, 5] }\n'
    assert len({name.split("(")[1] for name in expand(tmp_path, text)}) == 4


NETWORK = '[[run]]\nnetwork = "lenet"\nsizes = { batch = 3 }\ncpu.sizes = { batch = 2 }\nconfigs = "default"\n'


def test_a_network_expands_into_its_problems_after_the_passes(tmp_path: Path) -> None:
    names = expand(tmp_path, NETWORK + 'layout = "both"\n')
    problems = {name.partition("/")[0] + "(" + name.partition("(")[2] for name in names}
    assert "linear(m=2,n=120,k=400,epilogue=bias_relu)" in problems
    assert {p.startswith("maxpool2d(n=2,c=6") and "layout=nhwc" in p for p in problems} == {True, False}
    assert not any(name.startswith("relu/") for name in names), "fused away"
    assert all("n=3" not in name and "m=3" not in name for name in names)
    assert any("(m=3," in name for name in expand(tmp_path, NETWORK, "cuda"))


def test_a_networks_precision_decides_its_variants(tmp_path: Path) -> None:
    f32, tf32 = (expand(tmp_path, NETWORK + f'precision = "{p}"\n', "cuda") for p in ("f32", "tf32"))
    assert set(f32) < set(tf32) and any("tf32" in name for name in set(tf32) - set(f32))
    assert not any("dtype=bf16" in name for name in tf32)
    assert any("dtype=bf16" in name for name in expand(tmp_path, NETWORK + 'precision = "bf16"\n'))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"lenet"', '"lenett"', "unknown network 'lenett'; did you mean 'lenet'? (list all: opbench net list)"),
        ("{ batch = 3 }", "{ bath = 3 }", "lenet: unknown size 'bath'; did you mean 'batch'?"),
        ("{ batch = 3 }", "{ batch = 0 }", "lenet: batch = 0 is not allowed; write a whole number >= 1"),
        ("sizes", 'precision = "bf8"\nsizes', "unknown precision 'bf8'; known: bf16, f32, tf32"),
        ("sizes", 'layout = "nhcw"\nsizes', "unknown layout 'nhcw'; did you mean"),
        ("sizes", "problems = []\nsizes", "unknown key of [[run]] with a network 'problems'"),
        ("sizes", 'variants = ["torhc"]\nsizes', "lenet: unknown variant 'torhc'; did you mean 'torch'?"),
        ("sizes", 'variants = ["relu/torhc"]\nsizes', "lenet: unknown variant 'relu/torhc'; "),
    ],
)
def test_mistakes_in_a_networks_run_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(tmp_path, NETWORK.replace(old, new, 1), "cuda")
    assert message in str(caught.value)


def test_a_networks_globs_may_name_the_operator(tmp_path: Path) -> None:
    both = 'variants = ["conv2d/torch", "maxpool2d/nhwc*", "window_constant"]\nsizes'
    found = {
        case.partition("[")[0].partition("(")[0] for case in expand(tmp_path, NETWORK.replace("sizes", both, 1), "cuda")
    }
    assert "conv2d/torch" in found and "linear/torch" not in found and "maxpool2d/window_constant" in found


@pytest.mark.parametrize("path", shipped_suites(), ids=lambda p: p.stem)
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_shipped_suites_expand_without_doubles(path: Path, backend: str) -> None:
    cases = read_suite(path, CATALOG, backend).cases
    assert len({c.name for c in cases}) == len(cases) > 0


@pytest.mark.parametrize("name", ["quick", "full", "seeds", "ceilings"])
def test_noise_that_no_longer_shrinks_can_end_a_case_of_a_shipped_suite(name: str) -> None:
    timing = read_suite(Path(name), CATALOG, "cuda").timing
    half_widths, stopped_at = [0.02] * timing.max_samples, 0
    for samples in range(timing.min_samples, timing.max_samples):
        if is_interval_stable(half_widths[: samples - timing.min_samples + 1]):
            stopped_at = samples
            break
    assert timing.min_samples < stopped_at < timing.max_samples


@pytest.mark.parametrize(("rule", "problems"), [("n % 3 == 0", 1), ("n % 2 == 7", 0)])
def test_a_users_file_is_tried_on_what_it_fits(tmp_path: Path, rule: str, problems: int) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(RELU.replace("title =", f'requires = ["{rule}"]\n// title ='))
    variant = CATALOG.variant_file(path)
    if not problems:
        with refuses("no-case", "mine.cu") as raised:
            suite_for_variants([variant], CATALOG, "cpu")
        assert raised.value.value["relu(n=1048576)"] == {"needs n % 2 == 7 (here n=1048576)": ["mine"]}
        return
    suite = suite_for_variants([variant], CATALOG, "cpu")
    made = {case.problem for case in suite.cases}
    assert len(made) == problems and all(problem.axes["n"] % 3 == 0 for problem in made)
    assert {"mine", "scalar", "vec4"} <= {case.variant.name for case in suite.cases}, (
        "with the ladder on the same sizes"
    )


@pytest.mark.parametrize(
    "best", ["transpose/vectorised", "matmul/vectorised", "maxpool2d/multi_output", "softmax/vectorised", "concat/runs"]
)
def test_the_quick_suite_shows_the_best_variants_at_their_best_on_the_cpu(best: str, tmp_path: Path) -> None:
    """At sizes that no tile divides, vectorised kernels take scalar paths and look worse than simpler ones."""
    done = api.run("quick", backend="cpu", cases=[f"{best}*"], cpu_only=True, report=False, out=tmp_path)
    for row in rows(done):
        bad = {name: figure.bad for name, figure in traffic_columns.figures(row).items() if figure.bad}
        assert (row.status, bad) == ("right", {})


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
@pytest.mark.parametrize("name", ["quick", "relu", "lenet"])
def test_a_folder_or_program_of_a_suites_name_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    (tmp_path / "own.cu").write_text(RELU)
    assert api.expand_target(name, "cpu")[0].cases
    assert api.expand_target("own.cu", "cpu")[0].cases
    assert api.expand_target("relu", "cpu")[0].name == "relu"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("matmull", "matmul"),
        ("quik", "quick"),
        ("quik.toml", "quick"),
        ("suites/lennet.toml", "lenet"),
        ("softmx", "softmax"),
    ],
)
def test_a_slip_in_a_name_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with refuses("no-such-suite", Path(name).name, allowed=(meant,)):
        api.expand_target(name, "cpu")


def test_a_folder_is_no_suite(tmp_path: Path) -> None:
    with refuses("is-a-folder", tmp_path.name):
        api.expand_target(tmp_path, "cpu")
