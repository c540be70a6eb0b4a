"""Copies by tensor maps and products of matrix descriptors: the bytes that an H200 gave, bit by bit."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import Program
from opbench.emulator import CpuBackend
from opbench.kernels.expression import cdiv
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensor_map import TensorMap
from support.builders.on_cpu import compilers, described

FOLDER = Path(__file__).parent / "hopper"
ON_H200 = json.loads((FOLDER / "on_h200.json").read_text())
SEED, DUMP_BYTES, IMAGE_BYTES = 7, 8192, 64 << 10
KINDS = ("bf16_kk", "bf16_km", "bf16_mk", "bf16_mm", "bf16_rk", "f16_kk", "tf32_kk", "tf32_rk")
"""Type of a and b, and where each comes from: k K-major or m MN-major shared memory, r registers."""
KERNELS = ("load_tile", "store_tile", "multiply_cases")


def global_memory() -> np.ndarray:
    """64 KB of random floats, ties of TF32's rounding, infinities and subnormal numbers among them."""
    words = np.random.default_rng(SEED).standard_normal(16384).astype(np.float32).view(np.uint32)
    words[::5] = words[::5] & 0xFFFFE000 | 0x1000
    words[7:14] = [0x7F800000, 0xFF800000, 0x7FC00001, 0x7F7FFFFF, 1, 0x80000001, 0x007FFFFF]
    return words


def copy_bytes(tensor: TensorMap) -> int:
    """The bytes for which one copy signals a barrier, with those outside of the tensor."""
    if tensor.is_im2col:
        return tensor.row_bytes * tensor.pixels
    rows = (cdiv(extent, stride) for extent, stride in zip(tensor.box[1:], tensor.element_strides[1:], strict=True))
    return tensor.row_bytes * math.prod(rows)


Load = tuple[TensorMap, int, tuple[int, ...], int]


def loads() -> Iterator[Load]:
    """Map, kind of the copy, place and offset in shared memory."""
    flat = (40, 20)
    boxes = (("none", 8), ("none", 36), ("32B", 8), ("64B", 16), ("128B", 32), ("128B", 16), ("64B", 4), ("32B", 4))
    for swizzle, inner in boxes:
        for place in ((0, 0), (-4, -2), (36, 15), (4, 3)):
            for offset in (0, 128, 384, 512) if place == (4, 3) else (0,):
                yield described("f32", flat, (inner, 10), swizzle=swizzle), 2, place, offset
    for swizzle, inner in (("32B", 16), ("64B", 32), ("128B", 64), ("none", 64)):
        yield described("bf16", (80, 30), (inner, 16), swizzle=swizzle), 2, (8, 5), 0
    yield described("f32", flat, (32, 8), element_strides=(1, 2)), 2, (4, 1), 0
    yield described("f32", flat, (32, 10), element_strides=(1, 3)), 2, (4, -2), 0
    yield described("f32", (40, 20, 6), (32, 3, 4)), 3, (4, 18, -1), 0
    yield described("bf16", (64, 30, 3), (64, 8, 3), strides=(400, 128)), 3, (0, 25, 1), 0
    yield described("f32", (12, 5, 7, 9), (8, 3, 4, 2), swizzle="32B"), 4, (4, 3, -1, 8), 0
    for swizzle in ("none", "128B"):
        yield described("tf32", flat, (32, 12), swizzle=swizzle), 2, (0, 0), 0
    yield from windows()


def windows() -> Iterator[Load]:
    """im2col copies: corners of the bounding box, steps, starts in it and positions of a filter."""
    dims = (16, 7, 5, 3)  # images of 16 channels, 7 pixels wide, 5 high, 3 of them
    corners = (((-1, -1), (-1, -1)), ((-1, -2), (-1, 0)), ((0, 0), (-2, -2)), ((-2, -1), (1, 0)), ((0, 0), (0, 0)))
    for (lower, upper), step in itertools.product(corners, (1, 2)):
        last = [dims[axis + 1] - 1 + upper[axis] for axis in (0, 1)]
        for c, across, down, n in ((0, 0, 0, 0), (8, 2, 1, 1), (0, 1, 2, 2)):
            start = (c, min(last[0], lower[0] + across * step), min(last[1], lower[1] + down * step), n)
            for filter_at in ((0, 0), (2, 1), (1, 2)):
                walk = {"lower": lower, "upper": upper, "channels": 8, "pixels": 37, "swizzle": "32B"}
                image = described("f32", dims, element_strides=(1, step, step, 1), **walk)
                yield image, 5, (*start, *filter_at), 0
    wide = described("bf16", (72, 7, 5, 3), lower=(-1, -1), upper=(-1, -1), channels=64, pixels=48)
    yield wide, 5, (64, 3, 2, 0, 1, 0), 0


def descriptors(kind: str, count: int = 64) -> np.ndarray:
    """Pairs: the canonical layouts first, then arbitrary ones, starts off the swizzle's period among them."""
    chance = np.random.default_rng([SEED, KINDS.index(kind)])

    def one(k_major: bool, canonical: bool) -> int:
        mode = int(chance.integers(0, 4))
        span, start, base_offset = (16, 128, 64, 32)[mode], int(chance.integers(0, 8)) * 1024, 0
        if canonical and k_major:
            leading, stride = (128, 256) if mode == 0 else (16, 8 * span)
            start += 32 * int(chance.integers(0, max(1, span // 32)))
        elif canonical:
            leading, stride = (128, 1024) if mode == 0 else (16 * span, 8 * span)
        else:
            leading, stride = (16 * int(chance.integers(1, 256)) for _ in range(2))
            start += 16 * int(chance.integers(0, 64))
            base_offset = int(chance.integers(0, 8)) * int(chance.integers(0, 2))
        return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base_offset << 49 | mode << 62

    a_major, b_major = kind.split("_")[1]
    pairs = [(one(a_major != "m", i < count // 2), one(b_major != "m", i < count // 2)) for i in range(count)]
    return np.array(pairs, np.uint64)


def operands(kind: str) -> np.ndarray:
    """Shared memory full of small whole numbers in the kind's type, so that every order of adding gives the same."""
    chance, type_name = np.random.default_rng([SEED, 100 + KINDS.index(kind)]), kind.split("_", maxsplit=1)[0]
    numbers = chance.integers(-4, 5, IMAGE_BYTES // (4 if type_name == "tf32" else 2))
    if type_name == "f16":
        return numbers.astype(np.float16).view(np.uint32)
    single = numbers.astype(np.float32).view(np.uint32)
    return single if type_name == "tf32" else (single >> 16).astype(np.uint16).view(np.uint32)


class Machine:
    """The kernels, loaded once."""

    def __init__(self, backend: CpuBackend) -> None:
        request = BuildRequest(FOLDER / "copies_and_products.cu", KERNELS, (), "9.0a")
        self.backend = backend
        self.program: Program = backend.load(request)

    def run(
        self, kernel: str, shared: int, args: Sequence[object], maps: Sequence[TensorMap], **arrays: np.ndarray
    ) -> str:
        """The digest of what the kernel wrote into `out`."""
        types = {"uint32": "u32", "uint64": "i64", "float32": "f32"}
        buffers = {name: self.backend.allocate(name, a.shape, types[a.dtype.name]) for name, a in arrays.items()}
        for name, array in arrays.items():
            buffers[name].write(array.view(np.int64) if array.dtype == np.uint64 else array)
        launch = KernelLaunch(kernel, (1, 1, 1), (128, 1, 1), shared, tuple(args), tensor_maps=tuple(maps))  # type: ignore[arg-type]
        self.program.bind([launch], buffers)()
        assert self.backend.synchronize() == []
        written = buffers["out" if "out" in buffers else "memory"].read().tobytes()
        self.backend.free(buffers)
        return hashlib.sha256(written).hexdigest()[:16]


@pytest.fixture(scope="module", params=compilers())
def machine(request: pytest.FixtureRequest, cache: Path) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPBENCH_CXX", request.param)
        yield Machine(CpuBackend(cache))


def test_loads(machine: Machine) -> None:
    """Boxes, clipped and not, every swizzle, element strides, TF32's rounding, and windows of images."""
    memory, out = global_memory(), np.zeros(DUMP_BYTES // 4, np.uint32)
    found = []
    for tensor, kind, place, offset in loads():
        at = place if kind == 5 else (*place, *[0] * (6 - len(place)))
        args = ("map", "out", kind, *at, offset, DUMP_BYTES, copy_bytes(tensor))
        found.append(machine.run("load_tile", 1024 + DUMP_BYTES, args, [tensor], memory=memory, out=out))
    assert found == ON_H200["loads"]


def test_stores(machine: Machine) -> None:
    contents = np.arange(2048, dtype=np.uint32) * np.uint32(40503)
    found = []
    for swizzle, inner, at in (
        ("128B", 64, (0, 0)),
        ("64B", 32, (56, 25)),
        ("128B", 64, (16, 29)),
        ("none", 40, (8, 20)),
    ):
        tensor = described("bf16", (80, 30), (inner, 16), swizzle=swizzle)
        before = np.full(1200, 0xABABABAB, np.uint32)
        args = ("map", "contents", *at, DUMP_BYTES)
        found.append(machine.run("store_tile", DUMP_BYTES, args, [tensor], memory=before, contents=contents))
    assert found == ON_H200["stores"]


@pytest.mark.parametrize("kind", KINDS)
def test_products(machine: Machine, kind: str) -> None:
    """Canonical and arbitrary descriptors: any start of 16 bytes, any offsets."""
    found = []
    for pairs in np.split(descriptors(kind), 2):
        arrays = {
            "image": operands(kind),
            "pairs": pairs,
            "registers": np.resize(operands(kind), len(pairs) * 512),
            "out": np.zeros(len(pairs) * 4096, np.float32),
        }
        args = ("image", IMAGE_BYTES, "pairs", "registers", "out", KINDS.index(kind), len(pairs))
        found.append(machine.run("multiply_cases", IMAGE_BYTES, args, [], **arrays))
    assert found == ON_H200["products"][kind]
