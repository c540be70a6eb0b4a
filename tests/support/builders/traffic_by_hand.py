"""Traffic of a small transposition, written by hand, and what is wrong with it."""

from __future__ import annotations

import io

from rich.console import Console

from opbench.backend.counts import BranchTraffic, KernelTraffic, LineTraffic, Traffic
from opbench.backend.findings import Finding
from opbench.cli.explain import print_explanation
from opbench.gpu.limits.ceilings import Peaks
from opbench.insight.advice import advise_lines
from opbench.insight.diagnosis import Diagnosis, diagnose
from opbench.insight.explain import Explanation, explain
from opbench.insight.subject import Subject
from opbench.kernels.folders import case_named
from opbench.results.advice import CaseAdvice
from support.common import CATALOG

SHARED = "transpose/shared[ROWS=8](rows=64,cols=64)"


FILE = "kernel.cu"


SOURCE = """\
__global__ void turn(const float* x, float* out) {
  __shared__ float tile[32][32];
  tile[threadIdx.y][threadIdx.x] = x[i];
  __syncthreads();
  out[i] = tile[threadIdx.x][threadIdx.y];
}
"""


def entry(line: int, space: str, kind: str, **counts: int) -> LineTraffic:
    """One line's traffic; lanes, sectors and wavefronts are full and ideal unless given."""
    given = {"width": 4, "requests": 128, **counts}
    requests, width = given["requests"], given["width"]
    full: dict[str, int] = {"lanes": 32 * requests}
    lanes = given.get("lanes", full["lanes"])
    if space == "global":
        full |= {"sectors": lanes * width // 32, "ideal_sectors": lanes * width // 32}
    else:
        full |= {"wavefronts": requests * width // 4, "ideal_wavefronts": requests * width // 4}
    return LineTraffic("turn", FILE, line, space, kind, **{**full, **given})


TURN = (
    entry(3, "global", "load"),
    entry(3, "shared", "store"),
    entry(5, "global", "store"),
    entry(5, "shared", "load", wavefronts=4096),
)


PARITY = BranchTraffic("turn", FILE, 4, executions=128, divergent=96, fewest_lanes=16 * 96)


def traffic(*lines: LineTraffic, blocks: int = 4, counted: int = 4, barriers: int = 4) -> Traffic:
    """The lines, all of one kernel."""
    return Traffic(lines, (KernelTraffic("turn", 1, blocks, counted, 256, barriers),))


def problems(case: str, *lines: LineTraffic, barriers: int = 4) -> list[Diagnosis]:
    """What is wrong with such lines in a case's own kernel."""
    found = case_named(case)
    return diagnose(
        Subject.of_case(found, CATALOG.variants(found.variant.operator)),
        traffic(*lines, barriers=barriers),
        {FILE: SOURCE},
    )


def explained(counts: Traffic, *findings: Finding, ceilings: Peaks | None = None) -> Explanation:
    """The explanation of `SHARED` with these counts."""
    return explain(
        Subject.of_case(case_named(SHARED), CATALOG.variants("transpose")), counts, findings, {FILE: SOURCE}, ceilings
    )


def printed(explanation: Explanation) -> str:
    """What the terminal shows."""
    out = io.StringIO()
    advice = tuple(advise_lines(explanation.problems))
    advised = CaseAdvice(explanation.case, "transpose", "", 0.0, 0.0, advice, modelled=True)
    print_explanation(explanation, advised, Console(file=out, width=400, color_system=None))
    return out.getvalue()
