"""The kernels of cheats/hopper/faults.cu, which have one fault each or none, and their launches."""

from __future__ import annotations

import re
from functools import cache as cached

import numpy as np

from opbench.backend.base import Buffer
from opbench.emulator import CpuBackend
from opbench.kernels.launch import BuildRequest, KernelLaunch
from support.builders.on_cpu import described
from support.common import CHEATS

FAULTS = CHEATS / "hopper" / "faults.cu"
KERNEL = re.compile(r"^(?:KERNEL|MULTIPLY|DEPENDENT)\((\w+), (\w+)\)", re.MULTILINE)


def kernels() -> dict[str, tuple[str, int]]:
    """Name of each kernel to how it is launched and how many threads it has."""
    found, launch = {}, ""
    for line in FAULTS.read_text().splitlines():
        if line.startswith("// launch: "):
            launch = line.removeprefix("// launch: ")
        elif match := KERNEL.match(line):
            found[match[1]] = (launch, int(match[2]) if match[2].isdigit() else 160)
    return {name: known for name, known in found.items() if name != "NAME"}


@cached
def module() -> BuildRequest:
    return BuildRequest(FAULTS, tuple(kernels()), (), "9.0a", (FAULTS.parent,))


def launched(name: str, backend: CpuBackend) -> tuple[list[KernelLaunch], dict[str, Buffer]]:
    """Its launches, one or a right one and itself, and their buffers."""
    how, threads = kernels()[name]
    grid = (2 if how == "pair" or name.startswith("two_blocks") else 1, 1, 1)
    chance = np.random.default_rng(5)
    if how == "dependent":
        buffers = {what: backend.allocate(what, (64,), "f32") for what in ("x", "partial", "out")}
        for what in ("x", "partial"):
            buffers[what].write(chance.standard_normal(64).astype(np.float32))
        kernels_in_turn = ("right_dependent", name)
        args = ("x", "partial", "out")
        return [KernelLaunch(k, grid, (threads, 1, 1), 0, args, programmatic=True) for k in kernels_in_turn], buffers
    if how == "multiply":
        maps = (
            described("bf16", (320, 64), (64, 64), name="map_a", tensor="a"),
            described("bf16", (320, 16), (64, 16), name="map_b", tensor="b"),
        )
        buffers = {}
        for which, shape in {"a": (64, 320), "b": (16, 320)}.items():
            buffers[which] = backend.allocate(which, shape, "bf16")
            words = chance.integers(-4, 5, shape).astype(np.float32).view(np.uint32)
            buffers[which].write((words >> 16).astype(np.uint16))
        buffers["out"] = backend.allocate("out", (64, 16), "f32")
        return [KernelLaunch(name, grid, (threads, 1, 1), 20536, ("map_a", "map_b", "out"), tensor_maps=maps)], buffers
    maps = tuple(
        described("f32", (16, 32), (16, 8), name=f"map_{what}", tensor=what, swizzle="none") for what in ("in", "out")
    )
    buffers = {what: backend.allocate(what, (32, 16), "f32") for what in ("in", "out")}
    buffers["in"].write(chance.standard_normal((32, 16)).astype(np.float32))
    cluster = (2 if how == "pair" else 1, 1, 1)
    args = ("map_in", "map_out", 32)
    return [KernelLaunch(name, grid, (threads, 1, 1), 8208, args, cluster=cluster, tensor_maps=maps)], buffers
