"""Tensor maps and clusters: from a header's expressions to numbers, and refused in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opbench.errors import LaunchError, UsageError
from opbench.kernels.case import Case
from opbench.kernels.header import read_variants
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.tensor_map import TensorMap
from support.common import CATALOG

KERNEL = """\
// /// opbench
// operator  = "matmul"
// title     = "a kernel of a test"
// define    = { KIND = "'bf16'" }
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [128, 64] }
// workspace = { planes = "m * k" }
//
// [tensor_maps]
// map_a = { tensor = "a", box = ["64", "BM"] }
// map_b = { tensor = "b", dims = [64, "k", "n // 64"], strides = ["2 * n", 128], box = [64, 64, 2], l2 = 128 }
// map_high = { tensor = "planes", type = "f16", dims = ["k", "m"], box = [64, "BM"], offset = "m * k", swizzle = "'64B' if BM == 64 else '128B'" }
// map_in = { tensor = "a", type = "KIND", dims = ["k", "m", 1], element_strides = [1, 2, 1], im2col = { lower = [-1], upper = ["1 - 2"], channels = 64, pixels = "BM" } }
//
// [[launch]]
// kernel = "mine"
// grid = ["4 * cdiv(m, BM)"]
// block = [128]
// cluster = [2]
// programmatic = true
// early = ["b"]
// args = ["map_a", "map_b", "map_high", "map_in", "out", "m"]
// ///
// Why.
asm("griddepcontrol.wait;");
"""  # noqa: E501 (a header's line)


def write(tmp_path: Path, text: str = KERNEL) -> Path:
    path = tmp_path / "mine.cu"
    path.write_text(text)
    return path


def launched(tmp_path: Path, text: str = KERNEL) -> KernelLaunch:
    variant = read_variants(write(tmp_path, text))[0]
    problem = CATALOG.operator("matmul").parse("(m=256,n=128,k=64,dtype=bf16)")
    return Case(variant, {"BM": 64}, problem).launches(132)[0]


def test_a_launch_has_its_maps_with_every_number(tmp_path: Path) -> None:
    step = launched(tmp_path)
    assert step.args == ("map_a", "map_b", "map_high", "map_in", "out", 256)
    assert (step.cluster, step.programmatic, step.early) == ((2, 1, 1), True, ("b",))
    a, b, high, walk = step.tensor_maps
    assert a == TensorMap("map_a", "a", "bf16", (64, 256), (128,), (64, 64), (1, 1))
    assert (b.dims, b.strides, b.box, b.l2) == ((64, 64, 2), (256, 128), (64, 64, 2), 128)
    assert (high.type, high.offset, high.swizzle) == ("f16", 256 * 64 * 2, "64B")
    assert (walk.type, walk.lower, walk.upper, walk.channels, walk.pixels) == ("bf16", (-1,), (-1,), 64, 64)
    assert a.extent_bytes == 256 * 64 * 2
    assert b.extent_bytes == 128 * 64 * 2 == high.extent_bytes // 2
    for tensor in step.tensor_maps[:2]:
        tensor.check(1 << 12, 1 << 15)


def test_a_map_of_what_the_problem_lacks_is_left_out(tmp_path: Path) -> None:
    lacking = KERNEL.replace("// map_b =", '// map_c = { tensor = "bias", box = [64] }\n// map_b =')
    step = launched(tmp_path, lacking.replace('"map_a", "map_b"', '"map_c?", "map_a?", "map_b"'))
    assert step.args[:2] == ("map_a", "map_b") and len(step.tensor_maps) == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('tensor = "a", box', 'tensr = "a", box', "12: tensor_maps.map_a"),
        ('"BM"] }', '"BM"], sizzle = 1 }', "10: tensor_maps.map_a: unknown key 'sizzle'; did you mean 'swizzle'?"),
        (
            "\"'64B' if BM == 64 else '128B'\"",
            '"48B"',
            "12: tensor_maps.map_high.swizzle = '48B' is not allowed; write one of none, 32B, 64B, 128B",
        ),
        ("l2 = 128", "l2 = 100", "one of 0, 64, 128, 256"),
        ("pixels =", "pixel =", "unknown key 'pixel'; did you mean 'pixels'?"),
        (", pixels = ", ", channels2 = ", "unknown key 'channels2'"),
        (
            ', box = ["64", "BM"] }',
            " }",
            "10: tensor_maps.map_a has the keys tensor; write either box, or im2col with lower",
        ),
        ('["64", "BM"]', "[]", "a list of 1 to 5 expressions"),
        ('"4 * cdiv(m, BM)"', '"4 * cdiv("', "is not a valid expression"),
        (
            "cluster = [2]",
            "cluster = 2",
            "launch[0].cluster = 2 is not allowed; write a list of 1 to 3 expressions, such as cluster = [2]",
        ),
        (
            "programmatic = true",
            "programmatic = 1",
            "programmatic = 1 is not allowed; write true, false or an expression",
        ),
        (
            "programmatic = true",
            "programmatic = false",
            "launch[0].early = ['b'] is not allowed; write a list of names of inputs",
        ),
        ('["b"]', '"b"', "launch[0].early = 'b' is not allowed; write a list of names of inputs"),
        ("griddepcontrol.wait", "nothing", "the kernel and its headers contain no griddepcontrol.wait"),
    ],
)
def test_mistakes_in_a_header_are_told_with_their_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write(tmp_path, KERNEL.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read_variants(path)
    assert str(caught.value).startswith(f"{path}:") and message.partition(": ")[2] in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('tensor = "a", box', 'tensor = "aa", box', "tensor map 'map_a': unknown tensor 'aa'; did you mean 'a'?"),
        ('early = ["b"]', 'early = ["bias"]', "early: unknown input 'bias'; known: a, b"),
        ('type = "f16"', 'type = "f61"', "unknown name 'f61'"),
        ('type = "f16"', "type = \"'f61'\"", "unknown type 'f61'; did you mean 'f16'?"),
        (
            'type = "f16", dims = ["k", "m"]',
            'type = "f16"',
            "dims are missing, and opbench cannot derive dims when f32 is read as f16",
        ),
    ],
)
def test_mistakes_that_a_problem_shows_are_told_too(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        launched(tmp_path, KERNEL.replace(old, new, 1))
    assert message in str(caught.value)


PLAIN = TensorMap("map", "a", "f32", (64, 8), (256,), (32, 8), (1, 1))
WALK = replace(
    PLAIN, dims=(64, 9, 9, 2), strides=(256, 2304, 20736), element_strides=(1, 2, 2, 1), box=(), lower=(-1, -1),
    upper=(-1, -1), channels=32, pixels=128,
)  # fmt: skip


@pytest.mark.parametrize(
    ("tensor", "address", "message"),
    [
        (PLAIN, 8, "begins at 0x8; choose an offset with which the tensor map begins at a multiple of 16 bytes"),
        (replace(PLAIN, offset=8), 0, "begins at 0x8"),
        (replace(PLAIN, offset=16), 0, "bytes 16 to 2064 of a buffer of 2048"),
        (replace(PLAIN, dims=(64, 9)), 0, "bytes 0 to 2304 of a buffer of 2048"),
        (
            replace(PLAIN, strides=(260,)),
            0,
            "strides of 260 bytes; each must be a multiple of 16 below 2^40; use rows of a",
        ),
        (replace(PLAIN, strides=()), 0, "0 strides for 2 dimensions; give 1 strides"),
        (replace(PLAIN, dims=(1,) * 6), 0, "6 dimensions are not allowed; use 1 to 5"),
        (replace(PLAIN, dims=(0, 8)), 0, "dims = 0, 8 is not allowed; give numbers from 1 to 2^32"),
        (replace(PLAIN, element_strides=(1, 9)), 0, "element_strides = 1, 9 is not allowed; give numbers from 1 to 8"),
        (replace(PLAIN, box=(32,)), 0, "a box of 1 extents for 2 dimensions"),
        (replace(PLAIN, box=(32, 257)), 0, "box = 32, 257 is not allowed; give extents from 1 to 256"),
        (
            replace(PLAIN, box=(30, 8)),
            0,
            "rows of 120 bytes in a copy; choose a box whose rows are a multiple of 16 bytes",
        ),
        (replace(PLAIN, box=(64, 8)), 0, "rows of 256 bytes in a copy; swizzle 128B allows 128"),
        (
            replace(WALK, dims=(64, 9), strides=(256,), element_strides=(1, 1)),
            0,
            "2 dimensions are not allowed; use 3 to 5",
        ),
        (
            replace(WALK, lower=(-1,)),
            0,
            "corners of 1 and 2 numbers; for 4 dimensions, give 2 numbers in lower and in upper",
        ),
        (
            replace(WALK, upper=(-1, 128)),
            0,
            "corners -1, -1, -1, 128 are not allowed; for 4 dimensions, give numbers from -128 to 127",
        ),
        (replace(WALK, channels=300), 0, "channels = 300 is not allowed; use 1 to 256"),
        (replace(WALK, pixels=1025), 0, "pixels = 1025 is not allowed; use 1 to 1024"),
    ],
)
def test_what_a_driver_would_call_an_invalid_value_is_said(tensor: TensorMap, address: int, message: str) -> None:
    PLAIN.check(0, 2048)
    WALK.check(0, 2 * 20736)
    with pytest.raises(LaunchError) as caught:
        tensor.check(address, 2048 if tensor.box else 2 * 20736)
    assert str(caught.value).startswith("tensor map 'map' of 'a': ") and message in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "cluster", "fault"),
    [
        ((4, 1, 1), (2, 1, 1), None),
        ((5, 1, 1), (2, 1, 1), "grid.x = 5 is not allowed with clusters of 2×1×1 blocks; use a multiple of 2"),
        ((16, 1, 1), (16, 1, 1), "a cluster of 16×1×1 blocks is not allowed; use 1 to 8 blocks"),
        ((1, 1, 1), (0, 1, 1), "a cluster of 0×1×1 blocks"),
    ],
)
def test_clusters_are_refused_in_words(
    grid: tuple[int, int, int], cluster: tuple[int, int, int], fault: str | None
) -> None:
    found = KernelLaunch("k", grid, (32, 1, 1), 0, (), cluster=cluster).fault_of_cluster()
    assert found == fault or (fault is not None and found is not None and fault in found)
