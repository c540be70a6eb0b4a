"""A variant's space: ranges, and every config that the rules allow, each once, none missed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.kernels import expression
from opbench.kernels.case import Case
from opbench.kernels.header import read_variants
from opbench.kernels.space import Space, tunable_values
from opbench.kernels.space_file import with_search_space
from support.checks.errors import Refusal, refuses
from support.common import CATALOG

HEADER = """// /// opbench
// operator = "relu"
// tune     = { BLOCK = { from = 32, to = 1024, step = 32, first = 256 }, ITEMS = { from = 1, to = 8, times = 2 } }
// where    = ["BLOCK * ITEMS <= 2048"]
// launch   = [{ kernel = "relu", grid = ["cdiv(n, BLOCK * ITEMS)"], block = ["BLOCK"] }]
// ///
extern "C" __global__ void relu(const float* x, float* out, int n) {
    for (int k = 0; k < ITEMS; ++k) {
        const int i = (blockIdx.x * ITEMS + k) * BLOCK + threadIdx.x;
        if (i < n) out[i] = fmaxf(x[i], 0.0f);
    }
}
"""


def test_ranges_rise_by_a_step_or_a_factor_and_begin_with_their_default() -> None:
    assert tunable_values({"from": 16, "to": 60, "step": 16}) == (16, 32, 48)
    assert tunable_values({"from": 1, "to": 64, "times": 4, "first": 16}) == (16, 1, 4, 64)
    assert tunable_values([3, 1]) == (3, 1)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"from": 1, "to": 4}, "not-a-range"),
        ({"from": 1, "to": 4, "step": 1, "times": 2}, "not-a-range"),
        ({"from": 1, "to": 4, "step": 0}, "empty-or-endless"),
        ({"from": 0, "to": 4, "times": 2}, "empty-or-endless"),
        ({"from": 4, "to": 1, "step": 1}, "empty-or-endless"),
        ({"from": 1, "to": 4, "step": True}, "not-a-range"),
        ({"from": 1, "to": 9**9, "step": 1}, "range-too-long"),
        ({"from": 1, "to": 4, "step": 1, "first": 9}, "not-in-range"),
        ([], "not-allowed"),
        ([True], "not-allowed"),
    ],
)
def test_what_is_no_range_is_refused_with_what_one_is(value: object, kind: str) -> None:
    with refuses(kind):
        tunable_values(value)


RULES = ("A * B <= 8", "A % 2 == 0 or C > 1", "D != 3", "E < A + C", "1 == 1", "B in (1, 2, 4)")


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True), min_size=3, max_size=3),
    st.lists(st.sampled_from(RULES), max_size=4),
)
def test_the_walk_finds_what_trying_every_combination_finds_in_the_same_order(
    values: list[list[int]], rules: list[str]
) -> None:
    space = Space(dict(zip("ABC", map(tuple, values), strict=True)), tuple(rules), {"D": "A + B", "E": "D * 2 - C"})
    want = []
    for choice in itertools.product(*values):
        config = dict(zip("ABC", choice, strict=True))
        scope = {**config, "D": config["A"] + config["B"]}
        scope["E"] = scope["D"] * 2 - scope["C"]
        if all(expression.evaluate(rule, scope) for rule in rules):
            want.append(config)
    assert list(space) == want
    assert all(config in space for config in want)
    spread = space.spread(3)
    assert spread[:1] == want[:1] and all(config in want for config in spread)
    assert {"A": 99, "B": 1, "C": 1} not in space and {"A": 1} not in space


def test_a_rule_cuts_a_branch_before_the_rest_of_it_is_made() -> None:
    """10^12 combinations, of which a thousand are allowed, are found at once."""
    many = {name: tuple(range(1, 101)) for name in "ABCDEF"}
    space = Space(many, ("A == 1", "B == A", "C == 2", "D == C + B", "E <= 10"))
    assert sum(1 for _ in space) == 1000


def test_a_file_with_ranges_runs_a_few_configs_and_names_each_of_them_all(tmp_path: Path) -> None:
    path = tmp_path / "ranges.cu"
    path.write_text(HEADER)
    (variant,) = read_variants(path)
    assert variant.searched and len(list(variant.space)) == 32 + 32 + 16 + 8
    assert variant.configs[0] == {"BLOCK": 256, "ITEMS": 1} and 2 < len(variant.configs) <= 8
    name = "relu/ranges[BLOCK=224,ITEMS=8](n=1000)"
    case = CATALOG.case(name, [variant])
    assert case.name == name and case.launches(1)[0].block == (224, 1, 1)
    with refuses("no-such-config", "relu/ranges", value="BLOCK=1024,ITEMS=4"):
        CATALOG.case("relu/ranges[BLOCK=1024,ITEMS=4](n=1000)", [variant])
    path.write_text(HEADER.replace("times = 2", "times = 1"))
    with refuses("empty-or-endless", at=("ranges.cu", 3)):
        read_variants(path)


def test_a_space_file_stands_in_place_of_the_lists_and_beside_the_rules(tmp_path: Path) -> None:
    path, space = tmp_path / "ranges.cu", tmp_path / "space.toml"
    path.write_text(HEADER)
    (variant,) = read_variants(path)
    space.write_text('tune = { ITEMS = [3, 5] }\nwhere = ["BLOCK % 64 == 0"]\n')
    wider = with_search_space(variant, space)
    assert [c for c in wider.space if c["BLOCK"] % 64 or c["BLOCK"] * c["ITEMS"] > 2048] == []
    assert {c["ITEMS"] for c in wider.space} == {3, 5} and len(list(wider.space)) == 10 + 6
    assert Case(wider, wider.configs[0], CATALOG.operator("relu").parse("(n=5)")).request().macros[1] == (
        "ITEMS",
        "3",
    )
    for text, refusal in (
        ("tune = { WIDTH = [1] }", Refusal("unknown-name", "tunable", value="WIDTH")),
        ('where = ["BLOCK > 4096"]', Refusal("no-config", "where")),
        ('where = ["WIDTH > 1"]', Refusal("unknown-name", "name", value="WIDTH")),
        ("ranges = 1", Refusal("unknown-name", "key", value="ranges")),
        ("", Refusal("missing-key", "space.toml")),
    ):
        space.write_text(text)
        with refuses(refusal):
            with_search_space(variant, space)
