"""The header's key `tile`: validated, read with its config, and true of the launches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from opbench.errors import UsageError
from opbench.kernels.case import Case
from opbench.kernels.header import read_variants
from opbench.kernels.tile import Tile
from opbench.kernels.variant import Variant
from support.common import CATALOG, RELU

TILED = [
    v
    for name in CATALOG.operator_names()
    for v in CATALOG.variants(name)
    if "m" in v.tile and "fewer_operations" not in v.mechanism  # whose products are others than the problem's
]
TITLE = 'title = "a kernel of a test"'


def read_with(folder: Path, header: str) -> Variant:
    """Return the variant of a kernel that has this line in its header, too."""
    path = folder / "mine.cu"
    path.write_text(RELU.replace(TITLE, f"{TITLE}\n// define = {{ ROWS = 32 }}\n// {header}", 1))
    (variant,) = read_variants(path)
    return variant


def test_a_tile_is_read_with_the_config() -> None:
    case = CATALOG.case(
        "conv2d/nhwc_mma_tf32_split[BM=64,BN=64,STAGES=6,SPLIT=8](n=1,c=64,h=8,w=8,k=64,r=3,s=3,layout=nhwc)"
    )
    assert case.tile == Tile(m=64, n=64, split=8)
    (patch,) = (v for v in CATALOG.variants("conv2d") if v.name == "nhwc_wgmma_patch_bf16")
    problem = CATALOG.operator("conv2d").parse("(n=1,c=64,h=8,w=8,k=64,r=3,s=3,layout=nhwc,dtype=bf16)")
    assert Case(patch, patch.configs[0], problem).tile == Tile(patch_height=patch.configs[0]["HEIGHT"], patch_width=8)


def test_macros_and_numbers_are_allowed(tmp_path: Path) -> None:
    variant = read_with(tmp_path, 'tile = { m = "2 * ROWS", n = 8 }')
    problem = CATALOG.operator("relu").from_axes({"n": 64})
    assert Case(variant, variant.configs[0], problem).tile == Tile(m=64, n=8)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('tile = { rows = "ROWS" }', "tile: unknown key 'rows'; known: k, m, n,"),
        ('tile = { m = "COLUMNS" }', "tile.m: unknown tunable or macro 'COLUMNS'"),
        ('tile = "ROWS"', "tile = 'ROWS' is not allowed; write a table"),
    ],
)
def test_another_key_or_macro_is_refused_at_its_line(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_with(tmp_path, header)
    assert caught.value.location and caught.value.location.line == 5
    assert message in caught.value.message


SIZES = {
    "matmul": {"m": 768, "n": 768, "k": 768},
    "batched_matmul": {"batch": 2, "m": 384, "n": 768, "k": 128},
    "triangular_matmul": {"n": 768},
    "grouped_matmul": {"m": 768, "n": 768, "k": 128, "groups": 1},
    "int4_matmul": {"m": 384, "n": 768, "k": 256},
    "int8_matmul": {"m": 384, "n": 768, "k": 256},
    "scaled_matmul": {"m": 384, "n": 768, "k": 256},
    "conv2d": {"n": 3, "c": 384, "h": 16, "w": 16, "k": 384, "r": 3, "s": 3, "padding": 1},
    "attention": {"batch": 2, "heads": 3, "kv_heads": 3, "queries": 384, "keys": 384, "depth": 128},
    "attention_mla_decode": {"sequences": 6, "heads": 64, "keys": 16},
    "upsample_concat_conv2d": {"n": 3, "c1": 192, "c2": 192, "h": 8, "w": 8, "k": 384, "r": 3, "s": 3, "padding": 1},
}
SIZES["conv3d"] = {"n": 3, "c": 384, "d": 4, "h": 8, "w": 8, "k": 384, "t": 1, "r": 1, "s": 3, "padding_w": 1}
SIZES["conv_transpose3d"] = {**SIZES["conv3d"], "w": 16, "stride_w": 2, "s": 2, "padding_w": 0}
SIZES |= dict.fromkeys(("linear", "linear_dgrad", "linear_wgrad"), SIZES["matmul"])
SIZES |= dict.fromkeys(("conv2d_dgrad", "conv2d_wgrad"), SIZES["conv2d"])


@pytest.mark.parametrize("variant", TILED, ids=lambda v: v.id)
def test_the_blocks_of_a_tile_cover_the_output(variant: Variant) -> None:
    """On a device with a multiprocessor for each tile, one of the launches does."""
    sizes = SIZES[variant.operator]
    if variant.operator == "conv2d" and "r == 1" in " ".join(variant.requires):
        sizes = {**sizes, "r": 1, "s": 1, "padding": 0}
    if "1 < stride" in " ".join(variant.requires):
        sizes = {**sizes, "stride": 2}
    modes = {mode: values[-1] for mode, values in variant.supports.items()}
    if "none" in variant.supports.get("epilogue", ("none",)):
        modes.pop("epilogue", None)
    problem = CATALOG.operator(variant.operator).from_axes({**sizes, **modes})
    config = next(config for config in variant.configs if variant.unmet_requirement(problem, config) is None)
    case = Case(variant, config, problem)
    elements = max(math.prod(tensor.shape) for tensor in problem.output_tensors())
    extent = case.tile.m * case.tile.n / case.tile.split / elements
    covered = [math.prod(step.grid) * extent for step in case.launches(10**6) if step.kernel]
    assert any(1 <= share <= 1.35 for share in covered), covered
