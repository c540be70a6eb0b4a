"""Every compiler sees the same of a kernel: what is wrong with it, on which lines, and what it counts."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path

import pytest

from opbench.backend.base import Trace
from opbench.backend.counts import Traffic
from opbench.emulator import CpuBackend
from opbench.errors import CompileError, LaunchError
from opbench.kernels.case import Case
from opbench.kernels.variant import Variant
from opbench.running import targets
from support.builders.on_cpu import CATALOG, CUDA, compilers, smallest
from support.common import CHEATS

pytestmark = [*compilers()[0].marks]  # g++ is what the others are compared with

Counts = dict[tuple[str, str, str, int], tuple[int, ...]]

OWN_STRUCTURE = "LLVM copies the members of a structure of the variant's own one by one"
ONE_STORE = "LLVM makes one store of those in two branches"
OTHERWISE = {
    "conv2d/multi_channel_out": OWN_STRUCTURE,
    "maxpool2d/multi_output": OWN_STRUCTURE,
    "conv2d/nhwc_few_channels_mma_*": OWN_STRUCTURE,
    "conv2d/nhwc_mma_*": OWN_STRUCTURE,
    "conv2d/nhwc_winograd_*": OWN_STRUCTURE,
    "upsample_concat_conv2d/nhwc_mma_*": OWN_STRUCTURE,
    "batchnorm2d_train/nhwc_split": OWN_STRUCTURE,
    "batchnorm2d_train/nhwc_vector": OWN_STRUCTURE,
    "conv2d_dgrad/nhwc_mma_*": OWN_STRUCTURE,
    "conv2d_wgrad/implicit_gemm_split": OWN_STRUCTURE,
    "upsample_concat/nhwc_vector": ONE_STORE,
    "record/scalar": ONE_STORE,
}
"""Variants whose requests differ, and why; the bytes that lanes ask for are equal there too."""
FEWER = {
    "batchnorm2d_backward/nhwc_split",
    "batchnorm2d_backward/nhwc_vector",
    "batchnorm2d_backward/nhwc_resident",
    "conv2d/nhwc_direct",
    "conv2d_wgrad/nhwc_few_channels",
    "conv2d_wgrad/nhwc_image_shared",
}
"""LLVM leaves out loads of these that g++ makes ahead of a loop that may not run, or again: their bytes differ."""
ONE_LOAD = {"prefetches_past_the_end"}
"""LLVM makes one instruction of the load before a loop and the one in it, which then has the loop's line."""
ENDLESS = {"counts_without_end"}


@pytest.fixture(params=compilers()[1:])
def both(
    request: pytest.FixtureRequest,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Case], list[Trace]]:
    """The traces of a case by g++ and by another compiler; what one of them refuses, the other must, too."""

    def trace(case: Case) -> list[Trace]:
        traces: list[Trace] = []
        refused: list[CompileError | LaunchError] = []
        for command in ("g++", request.param):
            monkeypatch.setenv("OPBENCH_CXX", command)
            try:
                traces.append(traced(case, CpuBackend(cache)))
            except (CompileError, LaunchError) as error:
                refused.append(error)
        if refused:
            assert not traces, f"{case.name}: one compiler alone refuses it: {refused[0]}"
            raise refused[0]
        return traces

    return trace


def traced(case: Case, backend: CpuBackend) -> Trace:
    problem = case.problem
    tensors = [*problem.input_tensors(), *problem.output_tensors(), *case.workspace(backend.sm_count)]
    buffers = {t.name: backend.allocate(t.name, t.shape, t.dtype) for t in tensors}
    for name, array in problem.make_inputs(1).items():
        buffers[name].write(array)
    try:
        return backend.trace(case.request(), case.launches(backend.sm_count), buffers)
    finally:
        backend.free(buffers)


def counted(traffic: Traffic) -> Counts:
    """By kernel, space, kind and width; compilers name different lines of a statement that has several."""
    found: Counts = {}
    for line in traffic.lines:
        key = (line.kernel, line.space, line.kind, line.width)
        counts = (line.requests, line.lanes, line.sectors, line.wavefronts, line.collisions)
        found[key] = tuple(map(sum, zip(found.get(key, (0,) * 5), counts, strict=True)))
    return found


def asked_for(traffic: Traffic) -> dict[tuple[str, str], int]:
    keys = {(line.space, line.kind) for line in traffic.lines}
    return {(space, kind): traffic.total("bytes", space=space, kind=kind) for space, kind in keys}


def assert_fewer(by_llvm: Traffic, by_gcc: Traffic) -> None:
    """What is stored is the same, and no more is loaded."""
    ours, theirs = asked_for(by_llvm), asked_for(by_gcc)
    assert ours.keys() == theirs.keys()
    for (space, kind), asked in ours.items():
        assert asked <= theirs[space, kind] if kind == "load" else asked == theirs[space, kind], (space, kind)


def one_of_each(variants: list[Variant]) -> list[Variant]:
    """All but those on tensor cores, of which the first of a precision: the others cut the same loops otherwise."""
    first = {v.precision: v for v in reversed(variants) if v.compute_capability}
    return [v for v in variants if not v.compute_capability or first[v.precision] is v]


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_compilers_agree_on_the_tree(name: str, both: Callable[[Case], list[Trace]], cache: Path) -> None:
    for variant in one_of_each([v for v in CUDA if v.operator == name]):
        for case in smallest(variant, CpuBackend(cache), 1 if variant.compute_capability else 2):
            gcc, other = both(case)
            assert (gcc.findings, other.findings) == ((), ()), case.name
            if case.problem.storage != "f32":
                # The shim's 16-bit numbers are classes: compilers merge their loads and branches differently.
                continue
            if variant.id in FEWER:
                assert_fewer(other.traffic, gcc.traffic)
                continue
            assert asked_for(other.traffic) == asked_for(gcc.traffic), case.name
            if not any(fnmatch.fnmatchcase(variant.id, pattern) for pattern in OTHERWISE):
                assert counted(other.traffic) == counted(gcc.traffic), case.name


@pytest.mark.parametrize("path", sorted(CHEATS.glob("*.cu")), ids=lambda p: p.stem)
def test_compilers_find_the_same(path: Path, both: Callable[[Case], list[Trace]], cache: Path) -> None:
    if path.stem in ENDLESS:
        pytest.skip("never ends, so there is no trace to compare; test_cheats stops it by its time limit")
    (variant,) = targets.own_variants(path, CATALOG)
    for case in smallest(variant, CpuBackend(cache), 2):
        try:
            gcc, other = both(case)
        except (CompileError, LaunchError):
            pytest.skip("does not compile or launch with either, so there is nothing to compare")
        line = 0 if path.stem in ONE_LOAD else 1
        expected, found = ({(f.kind, f.line * line, f.kernel) for f in t.findings} for t in (gcc, other))
        assert found == expected, case.name
        assert gcc.completed == other.completed, case.name
