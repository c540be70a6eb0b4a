"""Headers: read, refused with file and line, and never out of step with the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from common import RELU

from opbench.catalog import Catalog
from opbench.errors import UsageError
from opbench.variant import Variant, read_variant

CATALOG = Catalog()
VARIANTS = [v for name in CATALOG.operator_names() for v in CATALOG.variants(name)]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.cu"
    path.write_text(text)
    return path


def test_a_header_becomes_a_variant(relu_file: Path) -> None:
    variant = read_variant(relu_file)
    assert (variant.id, variant.why, variant.kernels) == ("relu/mine", "Why.", ("mine",))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("title =", "titel =", 3, "unknown key 'titel'; did you mean 'title'?"),
        ("block =", "blok =", 4, "unknown key 'blok'; did you mean 'block'?"),
        ('["256"]', '["threads()"]', 4, "'threads()' is not allowed"),
        ('["256"]', "[]", 4, "a list of 1 to 3 expressions"),
        ('"a kernel of a test"', '"a kernel', 3, "the header is no TOML"),
        ('title = "a kernel of a test"', 'precision = "f32"', 2, "title is missing"),
        ('title = "a kernel of a test"', 'title = "t"\n// precision = "f23"', 4, "one of f32, tf32"),
        ('title = "a kernel of a test"', 'title = "t"\n// tune = { T = "x" }', 4, "a list of whole numbers"),
        ('operator = "relu"\n// ', "", 2, "a file outside a variants folder names its operator"),
        ("// /// opbench\n", "", 1, "no opbench header"),
        ("// ///\n", "", 1, "no closing line"),
    ],
)
def test_mistakes_are_told_with_file_line_and_remedy(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    path = write(tmp_path, RELU.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read_variant(path)
    assert str(caught.value).startswith(f"{path}:{line}: ") and message in str(caught.value)


def test_where_prunes_configs(tmp_path: Path) -> None:
    header = 'title = "t"\n// tune = { A = [1, 2, 4], B = [1, 2] }\n// where = ["A * B <= 4", "B <= A"]'
    variant = read_variant(write(tmp_path, RELU.replace('title = "a kernel of a test"', header)))
    assert variant.configs == [{"A": 1, "B": 1}, {"A": 2, "B": 1}, {"A": 2, "B": 2}, {"A": 4, "B": 1}]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_every_variant_says_what_and_why(variant: Variant) -> None:
    names = {v.name for v in VARIANTS if v.operator == variant.operator}
    assert len(variant.why) > (30 if variant.is_library else 100), (
        "a paragraph: why it is faster than the rung below, what limits it"
    )
    assert variant.builds_on in names or not variant.builds_on
    text = variant.path.read_text()
    for kernel in variant.kernels:
        assert f"{kernel}(" in text.replace("\n", "")


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_every_ladder_has_a_foot_and_no_loop(name: str) -> None:
    rungs = {v.name: v for v in CATALOG.variants(name) if not v.is_library}
    for start in rungs.values():
        seen, rung = [], start
        while rung.builds_on:
            assert rung.name not in seen, f"{name}: builds_on goes in a circle: {seen}"
            seen.append(rung.name)
            rung = rungs[rung.builds_on]
    assert any(not v.builds_on for v in rungs.values())
    library = CATALOG.operator(name).library
    assert not library or library in {v.name for v in CATALOG.variants(name)}
