"""Cheats that concern time are caught on a driver made of host memory."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.checking.checking import Session
from opbench.checking.measuring import measure_cases
from opbench.cli.selftest import time_cheats
from opbench.gpu.driver import CudaBackend, why_missing
from opbench.gpu.limits.ceilings import Peaks
from opbench.gpu.limits.lower_bound import lower_bound_s
from opbench.kernels.case import Case
from opbench.running.targets import own_variants
from opbench.selftest.cheats import expectation
from opbench.timing.sampling import TimingOptions
from support.common import CATALOG, CHEATS

TIME_CHEATS = {path.stem: path for path in sorted((CHEATS / "time").glob("*.py"))}


class HostArray(np.ndarray):
    """Has the pointer where CuPy's arrays have it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(ptr=self.ctypes.data)


class HostStream:
    """What goes to one that does not block is never seen to end."""

    current: list[HostStream] = []

    def __init__(self, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    @classmethod
    def from_external(cls, external: Any) -> HostStream:
        return cls()

    def use(self) -> None:
        self.current[:] = [self]

    def synchronize(self) -> None:
        return None

    def __enter__(self) -> HostStream:
        self.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.current.pop()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As much of CuPy as the cheats use, on the fake driver's memory, which is the host's."""

    def view(shape: tuple[int, ...], dtype: Any, pointer: int) -> HostArray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_char * count).from_address(pointer)
        return np.frombuffer(memory, dtype).reshape(shape).view(HostArray)

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a, **k: None if HostStream.current[-1].non_blocking else function(*a, **k)

    module = types.ModuleType("cupy")
    module.ndarray, module.float32 = view, np.float32  # type: ignore[attr-defined]
    module.matmul, module.copyto = seen(np.matmul), seen(np.copyto)  # type: ignore[attr-defined]
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Stream=HostStream,
        Device=lambda ordinal: types.SimpleNamespace(use=lambda: None),
        UnownedMemory=lambda pointer, size, owner, ordinal: pointer,
        MemoryPointer=lambda memory, offset: memory + offset,
        get_current_stream=lambda: HostStream.current[-1],
    )
    pool = types.SimpleNamespace(free_all_blocks=lambda: None)
    module.get_default_memory_pool = lambda: pool  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    yield
    HostStream.current.clear()


def case_of(path: Path) -> Case:
    """Small enough for the exact run, with whole numbers that half cannot hold."""
    (variant,) = own_variants(path, CATALOG)
    return Case(variant, variant.configs[0], CATALOG.operator("matmul").parse("(m=67,n=132,k=1000)"))


@pytest.mark.parametrize("name", [name for name in TIME_CHEATS if name != "patches_the_timing_events"])
def test_a_time_cheat_is_wrong_on_other_content(
    name: str,
    backend: CudaBackend,
    cupy: None,
) -> None:
    verdict = Session(backend).check(case_of(TIME_CHEATS[name])).verdict
    assert not verdict.right and "wrong" in expectation(TIME_CHEATS[name]).texts
    assert verdict.findings[0].rule in ("wrong-result", "unwritten-output"), verdict.reason


def test_a_patched_event_undercuts_the_floor(
    backend: CudaBackend,
    cupy: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from opbench.gpu.driver.driver import Driver

    monkeypatch.setattr(Driver, "get", Driver.get)  # what the cheat changes is put back
    case, session = case_of(TIME_CHEATS["patches_the_timing_events"]), Session(backend)
    honest_s = backend.clock().sample(lambda: None).seconds
    options = TimingOptions(max_samples=10, warmup_s=0.0)
    found = measure_cases(session, [case], options, backend.clock()).measurements[case.name]
    ceilings = Peaks(fp32_flops_per_s=case.problem.flops() / (honest_s / 10))
    least_s, bound = lower_bound_s(case, ceilings)
    assert found.median_s < least_s < honest_s and bound == "measured fp32 rate", asdict(found)


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
@pytest.mark.parametrize("path", time_cheats(), ids=lambda p: p.stem)
def test_a_time_cheat_is_caught_on_a_gpu(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="one cheat is called by CuPy")
    from opbench import selftest
    from opbench.cli.selftest import judge_cheat

    part = selftest.cheats([path], lambda file, problems: judge_cheat(file, problems, lambda line: None))
    assert [claim.holds for claim in part.claims] == [True], part.claims
