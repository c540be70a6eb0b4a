"""The outputs of a kernel for inputs of a test's own."""

from __future__ import annotations

from opbench.backend.base import Buffer
from opbench.checking.binding import allocate
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.tensors import Arrays, from_storage


def traced_outputs(backend: CpuBackend, case: Case, inputs: Arrays) -> Arrays:
    """Return what a traced case makes of inputs; nothing may be found."""
    problem = case.problem
    tensors = [*problem.input_tensors(), *problem.output_tensors(), *case.workspace(backend.sm_count)]
    buffers: dict[str, Buffer] = allocate(backend, tensors)
    try:
        for key, array in inputs.items():
            buffers[key].write(array)
        trace = backend.trace(case.request(), case.launches(backend.sm_count), buffers)
        assert not trace.findings, trace.findings[0]
        assert all(buffer.changed_guard_offset() is None for buffer in buffers.values())
        return {t.name: from_storage(buffers[t.name].read(), t.dtype) for t in problem.output_tensors()}
    finally:
        backend.free(buffers)
