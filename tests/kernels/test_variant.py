"""Headers: read, refused with file and line, and never out of step with the code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbench.errors import UsageError
from opbench.kernels.folders import Catalog
from opbench.kernels.header import read_variants
from support.checks.errors import refuses, refuses_name
from support.common import CATALOG, RELU


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.cu"
    path.write_text(text)
    return path


def test_a_header_becomes_a_variant(relu_file: Path) -> None:
    variant = read_variants(relu_file)[0]
    assert (variant.id, variant.why, variant.kernels) == ("relu/mine", "Why.", ("mine",))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("title =", "titel =", 3, "unknown key 'titel'; did you mean 'title'?"),
        ("block =", "blok =", 4, "unknown key 'blok'; did you mean 'block'?"),
        ('["256"]', '["threads()"]', 4, "'threads()' is not allowed"),
        ('["256"]', "[]", 4, "a list of 1 to 3 expressions"),
        ('"a kernel of a test"', '"a kernel', 3, "the header is not valid TOML"),
        ('title = "a kernel of a test"', 'product = "tf32x4"', 3, "did you mean 'tf32x3'?"),
        ('title = "a kernel of a test"', 'unit = "tf32/3"', 3, "unknown key 'unit'"),
        ('title = "a kernel of a test"', 'where = ["k > 4"]', 3, "unknown name 'k'"),
        (
            'title = "a kernel of a test"',
            "define = { A = 'B', B = 'A' }",
            3,
            "A, B are defined in terms of each other; give one of them a value that names no other macro",
        ),
        (
            'title = "a kernel of a test"',
            "tune = { A = [1] }\n// define.A = '2'",
            4,
            "tune.A already defines this macro",
        ),
        ('title = "a kernel of a test"', 'title = "t"\n// precision = "f23"', 4, "write one of f32, tf32"),
        ('title = "a kernel of a test"', 'title = "t"\n// tune = { T = "x" }', 4, "a list of whole numbers"),
        ('operator = "relu"\n// ', "", 2, "a file outside a variants folder needs it"),
        ("// /// opbench\n", "", 1, "no opbench header"),
        ('title = "a kernel of a test"', 'flops = "2 * n *"', 3, "flops: '2 * n *' is not a valid expression"),
        ("// ///\n", "", 1, "no closing line"),
    ],
)
def test_mistakes_are_told_with_file_line_and_remedy(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    path = write(tmp_path, RELU.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read_variants(path)
    assert str(caught.value).startswith(f"{path}:{line}: ") and message in str(caught.value)


def test_where_prunes_configs(tmp_path: Path) -> None:
    header = 'title = "t"\n// tune = { A = [1, 2, 4], B = [1, 2] }\n// where = ["A * B <= 4", "B <= A"]'
    (variant,) = read_variants(write(tmp_path, RELU.replace('title = "a kernel of a test"', header)))
    assert variant.configs == [{"A": 1, "B": 1}, {"A": 2, "B": 1}, {"A": 2, "B": 2}, {"A": 4, "B": 1}]


def test_a_variant_may_make_other_operations_than_the_problem_asks_for() -> None:
    sizes = "n=1,c1=8,c2=8,h=4,w=4,k=8,r=3,s=3,padding=1"
    case = CATALOG.case(f"upsample_concat_conv2d/nhwc_four_filters_tf32({sizes},layout=nhwc)")
    assert case.flops() * 18 == case.problem.flops() * 13


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_every_variant_says_what_and_why(name: str) -> None:
    variants = CATALOG.variants(name)
    for variant in variants:
        assert len(variant.why) > (30 if variant.is_library else 100), (
            f"{variant.id} needs a paragraph: why it is faster than the previous variant, what limits it"
        )
        assert variant.title != variant.name, f"{variant.id} has no title"
        text = variant.path.read_text().replace("\n", "")
        names = [kernel.partition("<")[0] for kernel in variant.kernels]  # of a template
        assert [name for name in names if f"{name}(" not in text] == [], variant.id


STORED = """
from dataclasses import dataclass

from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Tolerance


@dataclass(frozen=True, kw_only=True)
class Stored(Operator):
    \"\"\"A sum, in two ways to store it.\"\"\"

    n: int
    dtype: str = "f32"
    order: str = "up"

    inputs = {"a": "n"}
    outputs = {"out": "n"}
    choices = {"dtype": ("f32", "bf16"), "order": ("up", "down")}

    def reference(self, a):
        return a + a

    @classmethod
    def examples(cls):
        return [cls(n=3), cls(n=5, dtype="bf16", order="down")]
"""


def test_a_variant_serves_the_modes_that_it_names_and_of_others_the_default(tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    folder.mkdir()
    (folder / "operator.py").write_text(STORED)
    header = "// /// opbench\n// title = 't'\n{}// launch = [{{ kernel = 'k', grid = [1], block = [1] }}]\n// ///\n"
    for name, line in {
        "plain": "",
        "both": "// supports = { dtype = ['f32', 'bf16'] }\n",
        "odd": "// supports = { ordr = ['up'] }\n",
    }.items():
        (folder / f"{name}.cu").write_text(header.format(line))
    catalog = Catalog([tmp_path])
    stored = catalog.operator("stored")
    plain, both, odd = (catalog.variant("stored", name) for name in ("plain", "both", "odd"))
    wide, narrow, down = stored.parse("(n=3)"), stored.parse("(n=3,dtype=bf16)"), stored.parse("(n=3,order=down)")
    assert plain.unmet_requirement(wide, {}) is None and both.unmet_requirement(narrow, {}) is None
    assert str(plain.unmet_requirement(narrow, {})) == "supports dtype = f32 (here dtype=bf16)"
    assert str(both.unmet_requirement(down, {})) == "supports order = up (here order=down)"
    with refuses_name("mode", "ordr", "order", where="supports"):
        odd.unmet_requirement(wide, {})
    assert narrow.bytes() == 12 and wide.bytes() == 24
    assert narrow.make_inputs(1)["a"].dtype == np.uint16


def test_a_result_stored_in_bf16_may_be_off_by_its_rounding_and_exact_products_by_nothing_more(tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    folder.mkdir()
    (folder / "operator.py").write_text(STORED)
    stored = Catalog([tmp_path]).operator("stored")
    narrow, wide = stored.parse("(n=3,dtype=bf16)"), stored.parse("(n=3)")
    assert wide.tolerance("f32").norm < 1e-6 < wide.tolerance("bf16").norm
    assert narrow.tolerance("bf16") == narrow.tolerance("f32")
    assert 2.0**-8 <= narrow.tolerance("f32").norm <= 2.0**-6


def test_a_million_configs_are_refused_with_their_count(tmp_path: Path) -> None:
    values = list(range(1, 1001))
    header = f'title = "t"\n// tune = {{ A = {values}, B = {values} }}'
    path = write(tmp_path, RELU.replace('title = "a kernel of a test"', header))
    with refuses("too-many-configs", "tune", value=1_000_000, allowed=10_000):
        read_variants(path)
