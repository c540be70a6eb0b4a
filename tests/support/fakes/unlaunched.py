"""opbench.torch on a machine without a GPU as on one with it, but that nothing is launched: what a call costs the host.

Tensors lie in the host's memory, and the driver's function does nothing; all before it is what runs on a GPU's host.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from opbench.gpu.driver.movable import MovableLaunch
from opbench.gpu.driver.program import PreparedCall
from opbench.networks.pytorch import cached_backward, choice, devices, plans, primitives
from opbench.networks.pytorch.choice import ChosenRunner
from opbench.networks.pytorch.devices import CPU, CpuRunner, CudaRunner, OpenedDevice, opened_device_of

if TYPE_CHECKING:
    import pytest

    from opbench.kernels.case import Case

NOTHING = "abs"
"""A function of libc that does nothing, and gives 0 for 0, however many arguments come after."""
ARGUMENTS = tuple(ctypes.c_void_p(0) for _ in range(4))
"""As many as cuLaunchKernelEx has."""


class UnlaunchedRunner(CudaRunner):
    """Everything of a case's runner but its kernels."""

    def _make_launch(self, addresses: object) -> MovableLaunch:
        if self._launch is None:
            problem = self.case.problem
            tensors = [*problem.input_tensors(), *problem.output_tensors(), *self._workspaces]
            driver = SimpleNamespace(without_conversion=ctypes.CDLL(None).__getitem__)
            step = PreparedCall(SimpleNamespace(__name__=NOTHING), ARGUMENTS)  # type: ignore[arg-type]
            count = len(self.case.launches(self._backend.sm_count))
            program = SimpleNamespace(steps=lambda *_, extended: [step] * count)
            self._launch = MovableLaunch(
                SimpleNamespace(driver=driver),  # type: ignore[arg-type]
                program,  # type: ignore[arg-type]
                [],
                tensors,
                dict.fromkeys((tensor.name for tensor in tensors), 0),
            )
        return self._launch


class EmulatedRunner(CudaRunner):
    """A case that is given addresses as on a GPU, and runs on the cpu backend."""

    def __init__(self, case: Case, opened_device: OpenedDevice) -> None:
        super().__init__(case, opened_device)
        host = CpuRunner(case, opened_device)
        sizes = [tensor.nbytes for tensor in (*case.problem.input_tensors(), *case.problem.output_tensors())]

        def launch_on(addresses: list[int], stream: int) -> None:
            memory = [
                (ctypes.c_uint8 * size).from_address(address) for size, address in zip(sizes, addresses, strict=True)
            ]
            host.launch([torch.frombuffer(one, dtype=torch.uint8) for one in memory])

        self.launch_on = launch_on


def unlaunched(monkeypatch: pytest.MonkeyPatch, runner: type[CudaRunner] = UnlaunchedRunner) -> None:
    """Let calls on tensors in the host's memory take the way of those on a GPU, up to the driver."""

    def chosen(name: str, text: str, index: int) -> ChosenRunner:
        place = opened_device_of(index)
        case = choice.candidates(choice.problem_of(name, text), place)[0]
        return ChosenRunner(runner(case, place), "not launched")

    empty = torch._C._dynamo.guards._empty_strided_cpu
    current = functools.partial(operator.neg, -CPU)
    for module in (plans, primitives, devices, cached_backward):
        monkeypatch.setattr(module, "EMPTY", empty)
        monkeypatch.setattr(module, "current_device", current)
        monkeypatch.setattr(module, "current_stream", abs)
    for module in (plans, primitives):
        monkeypatch.setattr(module, "choice_for", chosen)
