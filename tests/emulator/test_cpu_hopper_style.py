"""Kernels as others write them for Hopper, and instructions that no shipped variant has, run as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from opbench.emulator import CpuBackend
from opbench.kernels.launch import BuildRequest, Dim3, KernelLaunch
from opbench.kernels.tensor_map import TensorMap
from support.builders.on_cpu import compilers, described

FOLDER = Path(__file__).parent / "hopper"
ORDERS = 3
TYPES = {"float32": "f32", "uint32": "u32", "uint16": "bf16", "int32": "i32"}
Run = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=compilers())
def run(request: pytest.FixtureRequest, cache: Path) -> Run:
    """Launches a kernel of a file in a traced build and in some orders of threads, finds nothing, gives its buffers."""
    command = request.param
    families = ("plain_bulk", "states", "pairs", "groups", "small_floats", "whole_numbers", "half_sums", "blocks")
    kernels = {"small_families": families, "pipeline_classes": ("gemm",), "queues": ("queued",)}

    def launch(
        file: str,
        kernel: str,
        grid: Dim3,
        threads: int,
        args: Sequence[object],
        shared: int = 0,
        cluster: int = 1,
        maps: Sequence[TensorMap] = (),
        **arrays: np.ndarray,
    ) -> dict[str, np.ndarray]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPBENCH_CXX", command)
            backend = CpuBackend(cache)
            built = BuildRequest(FOLDER / f"{file}.cu", kernels[file], (), "9.0a")
            assert backend.unsupported_reason(built) is None
            step = KernelLaunch(
                kernel, grid, (threads, 1, 1), shared, tuple(args), cluster=(cluster, 1, 1), tensor_maps=tuple(maps)  # type: ignore[arg-type]
            )  # fmt: skip
            results = []
            for order in range(ORDERS + 1):
                buffers = {name: backend.allocate(name, a.shape, TYPES[a.dtype.name]) for name, a in arrays.items()}
                for name, array in arrays.items():
                    buffers[name].write(array)
                if order == ORDERS:
                    found = list(backend.trace(built, [step], buffers).findings)
                else:
                    patch.setenv("OPBENCH_CPU_ORDER", f"random:{order}" if order else "forward")
                    backend.load(built).bind([step], buffers)()
                    found = backend.synchronize()
                assert [f"{one.place}: {one.kind}: {one.message}" for one in found] == []
                results.append({name: buffer.read() for name, buffer in buffers.items()})
                backend.free(buffers)
        for other in results[1:]:
            for name, array in other.items():
                assert np.array_equal(array, results[0][name], equal_nan=True), name
        return results[0]

    return launch


def to_bf16(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers, which bf16 has exactly."""
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.uint32) << 16).view(np.float32)


def test_a_pipeline_of_classes(run: Run, rng: np.random.Generator) -> None:
    m, n, k = 256, 64, 300
    k += -k % 8
    a, b = (rng.integers(-3, 4, (rows, k)) for rows in (m, n))
    maps = [
        described("bf16", (k, m), (64, 64), name="tma_a", tensor="a"),
        described("bf16", (k, n), (64, 16), name="tma_b", tensor="b"),
        described("bf16", (n, m), (32, 64), name="tma_d", tensor="d", swizzle="none"),
    ]
    arrays = {"a": to_bf16(a), "b": to_bf16(b), "d": np.zeros((m, n), np.uint16)}
    args = ("tma_a", "tma_b", "tma_d", k)
    found = run("pipeline_classes", "gemm", (m // 64, n // 32, 1), 256, args, 48 << 10, 2, maps, **arrays)
    assert np.array_equal(from_bf16(found["d"]), from_bf16(to_bf16_rounded(a @ b.T)))


def to_bf16_rounded(numbers: np.ndarray) -> np.ndarray:
    """To nearest even."""
    words = numbers.astype(np.float32).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def test_queues_of_a_persistent_block(run: Run, rng: np.random.Generator) -> None:
    m, n, k = 256, 128, 192
    a, b = (rng.integers(-3, 4, (rows, k)) for rows in (m, n))
    maps = [
        described("bf16", (64, rows, k // 64), (64, box, 1), strides=(2 * k, 128), name=f"map_{name}", tensor=name)
        for name, rows, box in (("a", m, 128), ("b", n, 64))
    ]
    arrays = {"a": to_bf16(a), "b": to_bf16(b), "out": np.zeros((n, m), np.float32)}
    args = (m, n, k, "out", "map_a", "map_b")
    found = run("queues", "queued", (3, 1, 1), 384, args, 2 * 24 << 10, 1, maps, **arrays)
    assert np.array_equal(found["out"].T, (a @ b.T).astype(np.float32))


def test_bulk_copies_without_a_map(run: Run, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, 256).astype(np.float32)
    arrays = {"x": x, "y": np.zeros(256, np.float32), "total": np.ones(128, np.float32)}
    found = run("small_families", "plain_bulk", (2, 1, 1), 128, ("x", "y", "total"), 2048, **arrays)
    assert np.array_equal(found["y"], 2 * x)
    assert np.array_equal(found["total"], 1 + x[:128] + x[128:])


def test_a_barriers_state_and_the_arrival_of_copies(run: Run, rng: np.random.Generator) -> None:
    x = rng.standard_normal(128).astype(np.float32)
    found = run("small_families", "states", (1, 1, 1), 128, ("x", "y"), 2048, x=x, y=np.zeros(128, np.float32))
    assert np.array_equal(found["y"], x[::-1])


def test_memory_of_the_other_block(run: Run, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, 512).astype(np.float32)
    other = x.reshape(2, 2, 128)[:, ::-1]
    y = np.zeros(512, np.float32)
    found = run("small_families", "pairs", (4, 1, 1), 128, ("x", "y"), 2048, 2, x=x, y=y)
    assert np.array_equal(found["y"].reshape(2, 2, 128), 2 * other + 1 + 128 * (np.arange(128) == 0))
    found = run("small_families", "groups", (4, 1, 1), 128, ("x", "y"), 0, 2, x=x, y=y)
    assert np.array_equal(found["y"].reshape(2, 2, 128), other + 2)


def turned_halves(matrix: np.ndarray) -> np.ndarray:
    """Rows of 32 bytes under their swizzle: halves trade places in every other group of four rows."""
    turned = np.arange(len(matrix)) // 4 % 2 == 1
    return np.where(turned[:, None], np.roll(matrix, 16, axis=1), matrix)


def test_products_of_8_bit_floats(run: Run, rng: np.random.Generator) -> None:
    """With a factor of -1 on b; E4M3 of -3 to 3, whose words are made here."""
    words = np.array([0x00, 0x38, 0x40, 0x44, 0xB8, 0xC0, 0xC4], np.uint8)
    values = np.array([0, 1, 2, 3, -1, -2, -3], np.float32)
    a, b = (rng.integers(0, 7, (rows, 32)) for rows in (64, 8))
    swizzled = [turned_halves(words[a]), turned_halves(words[b])]
    arrays = {"a": swizzled[0].view(np.uint32), "b": swizzled[1].view(np.uint32), "y": np.zeros((64, 8), np.float32)}
    found = run("small_families", "small_floats", (1, 1, 1), 128, ("a", "b", "y"), 4096, **arrays)
    assert np.array_equal(found["y"], -(values[a] @ values[b].T))


def test_products_of_whole_numbers_of_8_bits(run: Run, rng: np.random.Generator) -> None:
    """Sums have more digits than a float: each has all 32 bits."""
    a, b = (rng.integers(-128, 128, (rows, 32), np.int8) for rows in (64, 16))
    y = rng.integers(-(2**30), 2**30, (64, 16), np.int32)
    swizzled = [turned_halves(array.view(np.uint8)).view(np.uint32) for array in (a, b)]
    arrays = {"a": swizzled[0], "b": swizzled[1], "y": y.copy()}
    found = run("small_families", "whole_numbers", (1, 1, 1), 128, ("a", "b", "y", 3), 4096, **arrays)
    assert np.array_equal(found["y"], y + 3 * (a.astype(np.int64) @ b.T.astype(np.int64)))


def test_sums_of_16_bits(run: Run, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-3, 4, (rows, 16)).astype(np.float16) for rows in (64, 8))
    expected = 1 + a.astype(np.float32) @ b.T.astype(np.float32)
    swizzled = [turned_halves(a.view(np.uint8)), turned_halves(b.view(np.uint8))]
    arrays = {"a": swizzled[0].view(np.uint32), "b": swizzled[1].view(np.uint32), "y": np.zeros((64, 8), np.float32)}
    found = run("small_families", "half_sums", (1, 1, 1), 128, ("a", "b", "y"), 4096, **arrays)
    assert np.array_equal(found["y"], expected)


def test_blocks_with_loops_and_scopes(run: Run, rng: np.random.Generator) -> None:
    x = rng.integers(0, 1 << 32, 128, dtype=np.uint32)
    zeros = np.zeros(128, np.uint32)
    found = run("small_families", "blocks", (1, 1, 1), 128, ("x", "bits", "swapped"), x=x, bits=zeros, swapped=zeros)
    assert found["bits"].tolist() == [bin(int(value)).count("1") for value in x]
    assert np.array_equal(found["swapped"], x >> 16 | x << 16)
