"""The traced execution of one case on the cpu backend."""

from __future__ import annotations

from opbench.backends import open_backend
from opbench.backends.base import Finding
from opbench.case import Case
from opbench.errors import UsageError
from opbench.session import SEED, Session
from opbench.traffic import Traffic


def trace_case(
    case: Case, *, sm_count: int | None = None, max_blocks: int | None = None, seed: int = SEED
) -> tuple[Traffic, list[Finding]]:
    """Run a case once on seeded inputs with every memory access looked at.

    `sm_count` stands in for a GPU's number of multiprocessors, which some variants size their grid by; of each launch
    at most `max_blocks` blocks are counted. Raises UsageError when the case cannot run here.
    """
    from opbench.backends.cpu.tracing import TraceOptions

    backend = open_backend("cpu")
    reason = Session(backend).unsupported(case)
    if reason:
        raise UsageError(f"{case.name}: unsupported on the cpu backend: {reason}")
    count = sm_count or backend.sm_count
    tensors = [*case.problem.input_tensors(), *case.problem.output_tensors(), *case.workspace(count)]
    buffers = {}
    try:
        for tensor in tensors:
            buffers[tensor.name] = backend.allocate(tensor.name, tensor.shape, tensor.dtype)
        for name, array in case.problem.make_inputs(seed).items():
            buffers[name].write(array)
        options = TraceOptions(max_blocks=max_blocks)
        trace = backend.trace(case.request(), case.launches(count), buffers, options)  # type: ignore[attr-defined]
    finally:
        backend.free(buffers)
    return trace.traffic, list(trace.findings)
