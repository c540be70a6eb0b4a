"""Faults of asynchronous kernels, planted one by one: each is found, of the right kind and at the kernel's own line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache as cached

import numpy as np
import pytest
from common import CHEATS
from on_cpu import compilers, described

from opbench.backends.base import Buffer
from opbench.backends.cpu import CpuBackend
from opbench.catalog.launch import BuildRequest, KernelLaunch
from opbench.traffic.findings import Finding

FAULTS = CHEATS / "hopper" / "faults.cu"
KERNEL = re.compile(r"^(?:KERNEL|MULTIPLY|DEPENDENT)\((\w+), (\w+)\)", re.MULTILINE)
EXPECTED = re.compile(r"(\w+): ([a-z ]+?)(?=;|$)")
ORDERS = 10
"""Of right kernels; a fault may take as many as a check tries."""
CHECKED_ORDERS = 4


def kernels() -> dict[str, tuple[str, int]]:
    """Name of each kernel to how it is launched and how many threads it has."""
    found, launch = {}, ""
    for line in FAULTS.read_text().splitlines():
        if line.startswith("// launch: "):
            launch = line.removeprefix("// launch: ")
        elif match := KERNEL.match(line):
            found[match[1]] = (launch, int(match[2]) if match[2].isdigit() else 160)
    return {name: known for name, known in found.items() if name != "NAME"}


def expected() -> dict[str, tuple[str, int]]:
    """Name of each kernel with a fault to the kind and line of its finding."""
    found = {}
    for number, line in enumerate(FAULTS.read_text().splitlines(), 1):
        code, _, comment = line.partition("  // ")
        if code.strip():
            found.update({name: (kind.replace(" ", "_"), number) for name, kind in EXPECTED.findall(comment)})
    return found


@pytest.fixture(scope="module", params=compilers())
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuBackend]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPBENCH_CXX", request.param)
        yield CpuBackend(tmp_path_factory.mktemp("cache"))


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


def seen(name: str, backend: CpuBackend, orders: int) -> Iterator[tuple[str, Finding]]:
    """Findings of a traced run and of so many others, and in which."""
    launches, buffers = launched(name, backend)
    for found in backend.trace(module(), launches, buffers).findings:
        yield "traced", found
    run = backend.load(module()).bind(launches, buffers)
    for order in range(orders):
        run()
        for found in backend.synchronize():
            yield f"order {order}", found
    backend.free(buffers)


@pytest.mark.parametrize("name", sorted(expected()))
def test_a_fault_is_found_at_its_line(name: str, backend: CpuBackend) -> None:
    reported = [one for _, one in seen(name, backend, CHECKED_ORDERS)]
    found = {(one.kind, line): one for one in reported for line in (one.line, one.called_from)}
    assert expected()[name] in found, [(key, one.message) for key, one in found.items()]


@pytest.mark.parametrize("name", [name for name in kernels() if name.startswith("right_")])
def test_nothing_is_found_in_right_kernels(name: str, backend: CpuBackend) -> None:
    assert [(when, one.kind, one.line, one.message) for when, one in seen(name, backend, ORDERS)] == []


def test_copies_and_operands_are_counted(backend: CpuBackend) -> None:
    """Of five steps: a box of 64 and one of 16 rows of 128 bytes, and four products of 64 x 16 x 16."""
    launches, buffers = launched("right_multiply", backend)
    traffic = backend.trace(module(), launches, buffers).traffic
    backend.free(buffers)
    (copied,), (operand,) = traffic.select(space="bulk", kind="load"), traffic.select(space="operand")
    assert (copied.requests, copied.bytes, copied.moved_bytes) == (10, 5 * 80 * 128, 5 * 80 * 128)
    assert (operand.requests, operand.bytes, operand.wavefronts) == (20, 20 * 80 * 32, 20 * 80 * 32 // 128)
    launches, buffers = launched("right_copy", backend)
    traffic = backend.trace(module(), launches, buffers).traffic
    backend.free(buffers)
    moved = {line.kind: (line.requests, line.bytes, line.sectors) for line in traffic.select(space="bulk")}
    assert moved == {"load": (4, 2048, 64), "store": (4, 2048, 64)}


def test_every_fault_is_one() -> None:
    names = set(kernels())
    assert len(expected()) >= 20
    assert set(expected()) == {name for name in names if not name.startswith("right_")}
