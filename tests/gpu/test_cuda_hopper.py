"""Tensor maps, clusters and programmatic launches on a driver made of host memory (support/fakes/driver.py)."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.errors import LaunchError
from opbench.gpu.driver import CudaBackend
from opbench.gpu.driver.hopper import is_extended
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensor_map import TensorMap
from opbench.kernels.tensors import Tensor
from support.checks.errors import Refusal, refuses

SOURCE = """
struct __align__(64) TensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void mapped(const __grid_constant__ TensorMap map) {}
"""
MAP = TensorMap("map", "a", "bf16", (64, 8), (128,), (64, 8), (1, 1))
WALK = TensorMap(
    "map", "a", "tf32", (4, 3, 3, 2), (16, 48, 144), (), (1, 2, 2, 1), lower=(-1, -1), upper=(-2, -2), channels=4,
    pixels=64,
)  # fmt: skip
STEP = KernelLaunch("mapped", (4, 1, 1), (32, 1, 1), 0, ("map",), tensor_maps=(MAP,))


@pytest.fixture
def request_(tmp_path: Path) -> BuildRequest:
    """A kernel that takes a map; the fake driver's copies the map to where it points."""
    source = tmp_path / "mapped.cu"
    source.write_text(SOURCE)
    return BuildRequest(source, ("mapped",), (), "9.0a")


def seen(backend: CudaBackend) -> list[int]:
    """Cluster x, y, z, programmatic, attributes; type, rank and box of the last map."""
    call = backend._device.driver._library.fake_seen
    call.restype = ctypes.POINTER(ctypes.c_uint * 8)
    return list(call().contents)


def test_each_set_of_buffers_has_its_map(backend: CudaBackend, request_: BuildRequest) -> None:
    program = backend.load(request_)
    sets = [{"a": backend.allocate("a", (8, 64), "bf16")} for _ in range(3)]
    launches = [program.bind([STEP], buffers) for buffers in sets]
    for launch in (*launches, *launches):
        launch()
    assert seen(backend)[5:] == [9, 2, 64]
    for buffers in sets:
        words = buffers["a"].read().view(np.uint64).ravel()
        assert list(words[:3]) == [buffers["a"].pointer, 8, 128]
    backend.graph([(launch, ()) for launch in launches]).close()


def test_a_view_of_an_arena_and_an_offset_count(backend: CudaBackend, request_: BuildRequest) -> None:
    arena = backend.allocate_arena(4096)
    view = backend.view(arena, Tensor("a", (8, 64), "bf16"), 1024)
    half = replace(STEP, tensor_maps=(replace(MAP, dims=(64, 4), offset=512),))
    backend.load(request_).bind([half], {"a": view})()
    assert arena.read().view(np.uint64)[(1024 + 512) // 8] == arena.pointer + 1024 + 512


def test_a_walk_over_pixels_is_encoded(backend: CudaBackend, request_: BuildRequest) -> None:
    buffer = backend.allocate("a", (2, 3, 3, 4), "f32")
    backend.load(request_).bind([replace(STEP, tensor_maps=(WALK,))], {"a": buffer})()
    assert seen(backend)[5:] == [11, 4, 4 << 16 | 64]


@pytest.mark.parametrize(
    ("cluster", "programmatic", "attributes"),
    [((2, 1, 1), False, [2, 1, 1, 0, 1]), ((1, 1, 1), True, [0, 0, 0, 1, 1]), ((1, 1, 1), False, [0] * 5),
     ((4, 1, 1), True, [4, 1, 1, 1, 2])],
)  # fmt: skip
def test_attributes_reach_the_driver(
    backend: CudaBackend,
    request_: BuildRequest,
    cluster: tuple[int, int, int],
    programmatic: bool,
    attributes: list[int],
) -> None:
    buffer = backend.allocate("a", (8, 64), "bf16")
    before = seen(backend)[:5] if attributes == [0] * 5 else attributes
    backend.load(request_).bind([replace(STEP, cluster=cluster, programmatic=programmatic)], {"a": buffer})()
    assert seen(backend)[:5] == before
    assert buffer.read().view(np.uint64).ravel()[0] == buffer.pointer


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"cluster": (3, 1, 1)}, Refusal("cluster", "mapped", value=(3, 1, 1))),
        ({"tensor_maps": ()}, Refusal("unknown-name", "buffer", value="map")),
        ({"tensor_maps": (replace(MAP, tensor="c"),)}, Refusal("unknown-name", "buffer", value="c")),
        ({"tensor_maps": (replace(MAP, strides=(120,)),)}, Refusal("tensor-map", "map")),
        ({"tensor_maps": (replace(MAP, dims=(64, 9)),)}, Refusal("tensor-map", "map")),
        ({"tensor_maps": (replace(MAP, l2=0),)}, Refusal("driver", value=1)),
        ({"args": ("a",)}, Refusal("argument-count", "mapped", value=(8,), allowed=(128,))),
    ],
)
def test_what_cannot_be_launched_is_refused_in_words(
    backend: CudaBackend, request_: BuildRequest, changes: dict[str, object], refusal: Refusal
) -> None:
    buffer = backend.allocate("a", (8, 64), "bf16")
    with refuses(refusal, error=LaunchError):
        backend.load(request_).bind([replace(STEP, **changes)], {"a": buffer})  # type: ignore[arg-type]


def test_older_gpus_refuse_by_name(
    backend: CudaBackend, request_: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, program = backend.allocate("a", (8, 64), "bf16"), backend.load(request_)
    monkeypatch.setattr(backend._device, "capability", (8, 6))
    assert backend.unsupported_reason(request_) == (
        "needs compute capability 9.0a, whose features only 9.0 has; this GPU has 8.6"
    )
    with refuses("needs-capability", value="8.6", allowed="9.0", error=LaunchError):
        program.bind([replace(STEP, cluster=(2, 1, 1))], {"a": buffer})
    overlapping = replace(STEP, cluster=(1, 1, 1), programmatic=True)
    assert is_extended(overlapping, (9, 0)) and not is_extended(overlapping, (8, 6))  # its launches follow each other
