"""Launches that are given addresses and a stream each time, on a driver made of host memory (fakes/driver.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.errors import LaunchError
from opbench.gpu.driver import CudaBackend
from opbench.gpu.driver.movable import MovableLaunch
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensor_map import TensorMap
from opbench.kernels.tensors import Tensor
from opbench.kernels.texture import Texture
from support.checks.errors import refuses

STREAM = 0x5EED
"""The only one that the fake driver launches on."""
POKE = KernelLaunch("poke", (1, 1, 1), (1, 1, 1), 0, ("x", 1, 7, 0.5))
"""Writes a 7 to byte 1 of x."""
MAP = TensorMap("map", "x", "bf16", (64, 8), (128,), (64, 8), (1, 1))
MAPPED = KernelLaunch("mapped", (4, 1, 1), (32, 1, 1), 0, ("map",), tensor_maps=(MAP,))
"""Copies the map to where it points."""


def movable(
    backend: CudaBackend, folder: Path, launches: list[KernelLaunch], tensor: Tensor, first: int
) -> MovableLaunch:
    """The launches on one tensor."""
    source = folder / "kernel.cu"
    source.write_text(
        'extern "C" __global__ void poke(char* x, int at, int value, float half) {}\n'
        "struct __align__(64) TensorMap { unsigned long long opaque[16]; };\n"
        'extern "C" __global__ void mapped(const __grid_constant__ TensorMap map) {}\n'
    )
    program = backend.load(
        BuildRequest(source, tuple({launch.kernel for launch in launches if launch.kernel}), (), "9.0a")
    )
    return MovableLaunch(backend._device, program, launches, [tensor], {tensor.name: first})


def test_each_call_has_its_own_memory_and_stream(backend: CudaBackend, tmp_path: Path) -> None:
    places = [np.zeros(16, np.uint8) for _ in range(3)]
    zero = KernelLaunch("", (1, 1, 1), (1, 1, 1), 0, (), zero="x")
    launch = movable(backend, tmp_path, [zero, POKE], Tensor("x", (4,)), places[0].ctypes.data)
    for place in (*places, places[0]):
        place[:] = 9
        launch([place.ctypes.data], STREAM)
        assert list(place[:3]) == [0, 7, 0], "the fill and the kernel are where they were sent"
    with refuses("driver", "poke", value=1, error=LaunchError):
        launch([places[0].ctypes.data], STREAM + 1)


@pytest.mark.parametrize("programmatic", [False, True])
def test_a_tensor_map_follows_its_tensor(backend: CudaBackend, tmp_path: Path, programmatic: bool) -> None:
    places = [backend.allocate("x", (8, 64), "bf16") for _ in range(3)]
    step = replace(MAPPED, programmatic=programmatic)
    launch = movable(backend, tmp_path, [step], Tensor("x", (8, 64), "bf16"), places[0].pointer)
    for place in (*places, places[0]):
        place.poison()
        launch([place.pointer], STREAM)
        assert list(place.read().view(np.uint64).ravel()[:3]) == [place.pointer, 8, 128]


def test_a_texture_stays_with_its_buffer(backend: CudaBackend, tmp_path: Path) -> None:
    step = replace(POKE, textures=(Texture.__new__(Texture),))
    with refuses("fixed-address", "poke", error=LaunchError):
        movable(backend, tmp_path, [step], Tensor("x", (4,)), 512)
