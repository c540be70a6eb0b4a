"""One file that holds the variants of a mechanism: each a variant of its own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.emulator.backend import CpuBackend
from opbench.errors import Location, UsageError
from opbench.kernels.case import Case, select
from opbench.kernels.folders import Catalog
from opbench.kernels.header import read_variants
from opbench.kernels.variant import Variant
from opbench.running import targets
from opbench.running.protocol import pack, unpack
from opbench.running.suite import suite_for_variants
from support.checks.errors import refuses
from support.common import CATALOG

pytestmark = pytest.mark.usefixtures("forked_workers")

TABLES = """\
// /// opbench
// operator = "relu"
// tune     = { BLOCK = [128, 256, 512] }
// where    = ["BLOCK >= LEAST"]
// requires = ["n >= 2"]
// define   = { LEAST = "2 * HALF", PLUS = "0", TAIL = "n % BLOCK != 0", WIDE = "n > 100" }
//
// [[launch]]
// kernel = "clip"
// grid   = ["cdiv(n, 2 * HALF)"]
// block  = ["LEAST"]
//
// [variant.clip_small]
// title  = "blocks of 128"
// define = { HALF = "64", HOW = "'plain'" }
// where  = ["BLOCK < 512"]
//
// [variant.clip_large]
// builds_on = "clip_small"
// requires  = ["WIDE"]
// tune.BLOCK = [256, 512]
// define.HALF = "128"
// define.HOW  = "'plain' if n < 1000 else 'strided'"
// ///
//
// Why.
enum How { plain, strided };
constexpr How how = HOW;
extern "C" __global__ void clip(const float* x, float* out, int n) {
    const int i = blockIdx.x * 2 * HALF + threadIdx.x;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "clip.cu"
    path.write_text(TABLES)
    return path


def by_name(path: Path) -> dict[str, Variant]:
    return {variant.name: variant for variant in read_variants(path)}


def test_each_table_is_a_variant_of_its_own_name(file: Path) -> None:
    variants = by_name(file)
    small, large = variants["clip_small"], variants["clip_large"]
    assert [v.id for v in variants.values()] == ["relu/clip_small", "relu/clip_large"]
    assert (small.title, large.title, small.builds_on, large.builds_on) == (
        "blocks of 128", "clip_large", "", "clip_small",
    )  # fmt: skip
    assert small.configs == [{"BLOCK": 128}, {"BLOCK": 256}]
    assert large.configs == [{"BLOCK": 256}, {"BLOCK": 512}]
    assert small.requires == ("n >= 2",) and large.requires == ("n >= 2", "WIDE")
    assert small.why == large.why == "Why." and small.text_sha256 == large.text_sha256


def test_an_edited_table_changes_what_runs_of_its_own_variant(file: Path) -> None:
    before = {name: variant.source_sha256 for name, variant in by_name(file).items()}
    file.write_text(TABLES.replace('define.HALF = "128"', 'define.HALF = "64"').replace("blocks of 128", "small"))
    after = {name: variant.source_sha256 for name, variant in by_name(file).items()}
    assert before["clip_small"] == after["clip_small"] and before["clip_large"] != after["clip_large"]


def test_the_earlier_word_for_the_tables_is_read_with_its_lines(file: Path, tmp_path: Path) -> None:
    """Headers of earlier versions say `[rung.NAME]`; they mean the same, and errors name their lines."""
    older = tmp_path / "older.cu"
    older.write_text(TABLES.replace("[variant.", "[rung."))
    assert by_name(older).keys() == by_name(file).keys()
    assert [v.configs for v in read_variants(older)] == [v.configs for v in read_variants(file)]
    large = by_name(older)["clip_large"]
    assert large.location("tune", "BLOCK").line == by_name(file)["clip_large"].location("tune", "BLOCK").line == 21
    for wrong in ("rung = 5", "rung = 5\n// variant.a.title = 'a'"):
        refused_file = tmp_path / "refused.cu"
        start, _, rest = TABLES.split("// [variant.", maxsplit=1)[0].partition("\n")
        refused_file.write_text(f"{start}\n// {wrong}\n{rest}// ///\n")
        with refuses("not-allowed", "variant", value=5, allowed="table"):
            read_variants(refused_file)
    older.write_text(older.read_text().replace("// builds_on =", "// build_on ="))
    with pytest.raises(UsageError) as refused:
        read_variants(older)
    assert refused.value.location == Location(older, 19)


def test_defines_are_known_to_launch_where_and_requires_and_may_be_words(file: Path) -> None:
    large, relu = by_name(file)["clip_large"], CATALOG.operator("relu")
    case = Case(large, {"BLOCK": 256}, relu.from_axes({"n": 1000}))
    (launch,) = case.launches(8)
    assert (launch.grid, launch.block) == ((4, 1, 1), (256, 1, 1))
    assert dict(case.request().macros) == {
        "BLOCK": "256", "HALF": "128", "LEAST": "256", "PLUS": "0", "TAIL": "1", "WIDE": "1", "HOW": "strided",
    }  # fmt: skip
    reason = large.unmet_requirement(relu.from_axes({"n": 50}), {"BLOCK": 256})
    assert reason and (reason.kind, reason.subject) == ("requirement", "WIDE")


def test_a_file_is_all_its_variants_and_each_by_name(file: Path, tmp_path: Path) -> None:
    checked = api.check([file], random_shapes=0)
    assert {r.variant for r in checked} == {"clip_small", "clip_large"} and {r.status for r in checked} == {"right"}
    suite = suite_for_variants(targets.own_variants(file, CATALOG), CATALOG, "cpu")
    assert {c.variant.name for c in suite.cases} >= {"clip_small", "clip_large", "scalar"} and suite.name == "clip"
    assert {c.variant.name for c in select(suite.cases, ["relu/clip_large"])} == {"clip_large"}
    folder = tmp_path / "mine" / "relu"
    folder.mkdir(parents=True)
    (folder / "clip.cu").write_text(TABLES)
    catalog = Catalog([folder.parent])
    variant = catalog.variant("relu", "clip_large")
    assert [v.name for v in catalog.variants("relu") if v.path.name == "clip.cu"] == ["clip_small", "clip_large"]
    case = Case(variant, variant.configs[0], catalog.operator("relu").from_axes({"n": 500}))
    assert unpack(catalog, pack(case)) == case
    (folder / "clip_large.cu").write_text(
        TABLES.split("// [variant.clip_small]", maxsplit=1)[0].replace("2 * HALF", "128") + "// ///\n"
    )
    with refuses("duplicate-variant", value="relu/clip_large"):
        Catalog([folder.parent]).variants("relu")


def test_words_reach_the_compiler(file: Path) -> None:
    large = by_name(file)["clip_large"]
    cpu = CpuBackend()
    for n in (500, 2000):
        cpu.compile(Case(large, {"BLOCK": 256}, CATALOG.operator("relu").from_axes({"n": n})).request())


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("// builds_on =", "// build_on =", 19, "unknown key 'build_on'; did you mean 'builds_on'?"),
        ('title  = "blocks of 128"', 'operator = "relu"', 14, "unknown key 'operator'"),
        ('["BLOCK < 512"]', '["BLOCK < "]', 16, "where: 'BLOCK < ' is not a valid expression"),
        ('["WIDE"]', '["WIDE("]', 20, "requires: 'WIDE(' is not a valid expression"),
        ('["BLOCK >= LEAST"]', '["BLOCK >= "]', 4, "where: 'BLOCK >= ' is not a valid expression"),
        ('["BLOCK < 512"]', '["BLOCK < 12"]', 16, "no combination of the tune values satisfies where"),
        ('["BLOCK < 512"]', '["WIDE"]', 16, "where: expression 'WIDE': unknown name 'WIDE'"),
        ("tune.BLOCK = [256, 512]", "tune.BLOCK = []", 21, "tune.BLOCK = [] is not allowed"),
        (
            'define.HALF = "128"',
            'define.HALF = "LEAST"',
            22,
            "are defined in terms of each other; give one of them a value that names no other macro",
        ),
        ('define.HALF = "128"', 'define.BLOCK = "1"', 22, "tune.BLOCK already defines this macro"),
        ('define.HALF = "128"', 'precision = "f23"', 22, "precision = 'f23' is not allowed"),
        ('block  = ["LEAST"]', "block  = []", 11, "launch[0].block = [] is not allowed"),
        ("[variant.clip_small]", '[variant."clip small"]', 13, "write a table [variant.NAME]"),
    ],
)
def test_mistakes_are_told_with_their_line_in_the_right_table(
    file: Path, old: str, new: str, line: int, message: str
) -> None:
    file.write_text(TABLES.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read_variants(file)
    assert str(caught.value).startswith(f"{file}:{line}: ") and message in str(caught.value)


def test_a_define_that_is_neither_number_nor_word_is_refused(file: Path) -> None:
    file.write_text(TABLES.replace("'plain'\" }", "'a-b'\" }"))
    case = Case(by_name(file)["clip_small"], {"BLOCK": 128}, CATALOG.operator("relu").from_axes({"n": 5}))
    with refuses("not-allowed", "define.HOW", value="a-b"):
        case.request()
