"""The traced execution of one case on the cpu backend."""

from __future__ import annotations

from opbench.backends import open_backend
from opbench.catalog.case import Case
from opbench.errors import UsageError
from opbench.gpus.occupancy import DeviceLimits
from opbench.session.checking import SEED, Session
from opbench.traffic.counts import Traffic
from opbench.traffic.findings import Finding


def trace_case(
    case: Case, *, stands_for: DeviceLimits | None = None, max_blocks: int | None = None, seed: int = SEED
) -> tuple[Traffic, list[Finding]]:
    """Run a case once on seeded inputs with every memory access looked at.

    `stands_for` is the GPU that some variants size their grid by and whose caches are modelled; of each launch at most
    `max_blocks` blocks are counted. Raises UsageError when the case cannot run here.
    """
    session = Session(open_backend("cpu"), seed, stands_for)
    reason = session.unsupported(case)
    if reason:
        raise UsageError(f"{case.name}: unsupported on the cpu backend: {reason}")
    trace = session.trace(case, max_blocks)
    return trace.traffic, list(trace.findings)
