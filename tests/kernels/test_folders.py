"""The catalog: found by looking, in the ladder's order, with mistakes told by file and line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opbench.errors import UsageError
from opbench.kernels.folders import Catalog, load_module, load_operator
from opbench.kernels.operator import Operator
from opbench.paths import shipped_folder
from support.checks.command_line import own_folder
from support.checks.errors import refuses, refuses_name
from support.common import CATALOG, RELU

BARE = RELU.replace('operator = "relu"\n// ', "")


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_an_operator_has_its_mathematics_a_title_and_variants(name: str) -> None:
    operator = CATALOG.operator(name)
    assert issubclass(operator, Operator) and operator.name == name
    assert CATALOG.operator_title(name).startswith(f"{name}: ")
    names = [v.name for v in CATALOG.variants(name)]
    assert names and len(set(names)) == len(names)
    assert [CATALOG.variant(name, n).name for n in names] == names
    assert not operator.library or operator.library in names


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_each_variant_stands_on_one_that_exists_and_comes_after_it(name: str) -> None:
    """So that a ladder has a foot and no circle."""
    variants = CATALOG.variants(name)
    names = [v.name for v in variants]
    for position, variant in enumerate(variants):
        if variant.builds_on:
            earlier = names[:position]
            assert variant.builds_on in earlier, f"{variant.path}: builds_on"
            assert variant.is_library or not variants[earlier.index(variant.builds_on)].is_library, variant.path
    kinds = [v.is_library for v in variants]
    assert kinds == sorted(kinds), "libraries come last"


def test_an_operator_is_loaded_once_and_its_title_without_loading_it(tmp_path: Path) -> None:
    assert Catalog().operator("relu") is CATALOG.operator("relu")
    (own_folder(tmp_path) / "relu" / "operator.py").write_text('"""relu: mine."""\nraise SystemError\n')
    (tmp_path / "relu" / "a.cu").write_text(BARE)
    assert Catalog([tmp_path]).operator_title("relu") == "relu: mine."


def test_a_variant_of_ones_own_needs_a_name_of_its_own(tmp_path: Path) -> None:
    with refuses("duplicate-variant", "scalar.cu", value="relu/scalar"):
        Catalog([own_folder(tmp_path / "one", scalar=BARE)]).variants("relu")
    same = CATALOG.variant("relu", "scalar").path.read_text()
    catalog = Catalog([own_folder(tmp_path / "two", scalar=same, new=BARE)])
    assert catalog.variant("relu", "scalar").path == tmp_path / "two" / "relu" / "scalar.cu", "the same text"
    assert {v.name for v in catalog.variants("relu")} == {*(v.name for v in CATALOG.variants("relu")), "new"}


def test_what_begins_with_a_dot_or_a_line_is_no_variant(tmp_path: Path) -> None:
    catalog = Catalog([own_folder(tmp_path, _draft="nonsense", good=BARE)])
    (tmp_path / ".git").mkdir()
    assert "_draft" not in {v.name for v in catalog.variants("relu")}
    assert ".git" not in catalog.folders


def test_a_ring_of_builds_on_ends(tmp_path: Path) -> None:
    variant = '// title = "x"\n// builds_on = "{}"\n// launch'
    ring = {a: BARE.replace('// title = "a kernel of a test"\n// launch', variant.format(b)) for a, b in ("ab", "ba")}
    assert {"a", "b"} <= {v.name for v in Catalog([own_folder(tmp_path, **ring)]).variants("relu")}


def test_unknown_names_are_told_with_the_nearest() -> None:
    with refuses_name("operator", "matmull", "matmul"):
        CATALOG.variants("matmull")
    with refuses_name("variant", "scaler", "scalar", where="relu", hint="opbench list variants relu"):
        CATALOG.variant("relu", "scaler")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("x = (\n", 1, "SyntaxError"),
        ("\n\nimport nothing_of_that_name\n", 3, "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def f():\n    raise KeyError('k')\n\nf()\n", 2, "KeyError: 'k'"),
    ],
)
def test_an_error_of_a_file_is_told_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "operator.py"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_module(path, "opbench_test_module")
    assert str(caught.value).startswith(f"{path}:{line}: cannot be imported: ") and words in str(caught.value)


def test_a_file_defines_exactly_one_operator(tmp_path: Path) -> None:
    path = tmp_path / "operator.py"
    path.write_text("from opbench import Operator\n")
    with refuses("not-one-operator", "operator.py", value=0):
        load_operator(path, "none")
    twice = tmp_path / "twice.py"
    text = (shipped_folder("variants") / "relu" / "operator.py").read_text()
    twice.write_text(text + text.partition("@dataclass")[1] + text.partition("@dataclass")[2].replace("Relu", "Again"))
    with refuses("not-one-operator", "twice.py", value=2):
        load_operator(twice, "twice")


@pytest.mark.parametrize("needed", ["reference", "examples"])
def test_an_operator_without_reference_or_examples_is_refused(tmp_path: Path, needed: str) -> None:
    path = tmp_path / "operator.py"
    text = (shipped_folder("variants") / "relu" / "operator.py").read_text()
    path.write_text(text.replace(f"def {needed}(", "def renamed("))
    with refuses("missing-method", "Relu", value=needed, at=("operator.py", 1)):
        load_operator(path, "relu")


def test_a_folder_may_be_given_twice(tmp_path: Path) -> None:
    shutil.copytree(shipped_folder("variants") / "relu", tmp_path / "copy" / "relu")
    names = [v.name for v in CATALOG.variants("relu")]
    for roots in (
        [tmp_path / "copy"] * 2,
        [shipped_folder("variants")],
        [shipped_folder("variants"), tmp_path / "copy"],
    ):
        assert [v.name for v in Catalog(roots).variants("relu")] == names
    first, second = (
        Catalog([tmp_path / "copy", shipped_folder("variants")]),
        Catalog([shipped_folder("variants"), tmp_path / "copy"]),
    )
    assert first.variant("relu", "scalar").path.is_relative_to(tmp_path), (
        "the folder named first goes before the others"
    )
    assert not second.variant("relu", "scalar").path.is_relative_to(tmp_path)
