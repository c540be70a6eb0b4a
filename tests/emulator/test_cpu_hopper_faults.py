"""Faults of asynchronous kernels, planted one by one: each is found, of the right kind and at the kernel's own line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from opbench.backend.findings import Finding
from opbench.emulator import CpuBackend
from support.builders.hopper_kernels import FAULTS, kernels, launched, module
from support.builders.on_cpu import compilers

EXPECTED = re.compile(r"(\w+): ([a-z ]+?)(?=;|$)")
ORDERS = 10
"""Of right kernels; a fault may take as many as a check tries."""
CHECKED_ORDERS = 4


def expected() -> dict[str, tuple[str, int]]:
    """Name of each kernel with a fault to the kind and line of its finding."""
    found = {}
    for number, line in enumerate(FAULTS.read_text().splitlines(), 1):
        code, _, comment = line.partition("  // ")
        if code.strip():
            found.update({name: (kind.replace(" ", "_"), number) for name, kind in EXPECTED.findall(comment)})
    return found


@pytest.fixture(scope="module", params=compilers())
def backend(request: pytest.FixtureRequest, cache: Path) -> Iterator[CpuBackend]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPBENCH_CXX", request.param)
        yield CpuBackend(cache)


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
