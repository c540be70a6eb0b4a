"""Ranks the cases of a problem that nobody measured: by the ladder, and matrix products by a model of their time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from opbench.backend.environment import Environment
from opbench.gpu.limits.capability import missing_capability, parse_capability
from opbench.gpu.limits.ceilings import Ceilings, committed
from opbench.gpu.limits.products import MULTIPROCESSORS, product_key
from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.mechanism import CONVERTED_AHEAD, FEW_CHANNELS
from opbench.kernels.operator import Operator
from opbench.kernels.setup import Setup
from opbench.source.precision import UNIT_ROUNDOFF

STAND_IN = "h200"
"""Whose rates stand for those of a GPU that is not known: only their ratios decide here."""
WGMMA_SHARE, TENSOR_SHARE, CORE_SHARE, TILELESS_SHARE = 0.9, 0.52, 0.5, 0.15
"""Of its unit's rate that kernels reach with large tiles: by wgmma, by mma.sync, on cores, and there without tiles."""
LARGE_TILE = 64
"""BM * BN / (BM + BN) of a tile of 128 x 128; smaller ones move more for each product."""
WARPS = 8
"""Of each multiprocessor that keep its memory busy, or its ordinary cores."""
LAUNCH_S = 1.5e-6
"""What a further kernel costs in a graph."""
WINDOWS_SHARE = 0.7
"""Of tensor cores' rate that filters' gradients reach whose pixels are fetched for each position of the filter."""
COPIED = 0.85
"""Of DRAM's rate that tiles copied by threads reach, beside TMA's."""
IN_BLOCK_SHARE = {"f16": 0.5, "f16x3": 0.7}
"""Of its rate that a kernel keeps which splits floats into f16 itself; others get planes from a pass."""
VECTOR, ONE_BY_ONE = 4, 0.2
"""Fewer channels than so many are copied one by one; what is left of a tile's rate then."""
PATCH = 32
"""Rows of the tallest patch; lower ones load filters more often for their products."""
FEW_WARPS_SHARE = 0.8
"""Of its rate that is left to tiles by mma.sync where a multiprocessor has half of WARPS or fewer."""
PARTLY = 0.8
"""Power of the part of the GPU that few tiles of wgmma fill: those that work have its clock and L2 for themselves."""
ENDLESS = 10**6
"""Multiprocessors of a GPU on which each block has one tile."""


@dataclass(frozen=True)
class ChosenFor:
    """The GPU that is chosen for."""

    ceilings: Ceilings
    sm_count: int
    capability: tuple[int, int]
    shared_per_block: int
    gpu: str = ""
    """The driver's name of it."""

    def runs(self, case: Case) -> bool:
        """Whether it has the instructions and the shared memory."""
        if missing_capability(self.capability, case.variant.compute_capability):
            return False
        return all(step.shared_bytes <= self.shared_per_block for step in case.launches(self.sm_count))


def target(environment: Environment) -> ChosenFor | None:
    """The GPU of a backend's environment; None where there is none."""
    if environment.capability is None:
        return None
    limits = MULTIPROCESSORS.get(environment.capability)
    shared = limits.shared_per_block if limits else 48 * 1024
    return ChosenFor(
        committed(product_key(environment.gpu) or STAND_IN),
        environment.sm_count,
        environment.capability,
        shared,
        environment.gpu,
    )


def ranked(
    fitting: Sequence[Case], gpu: ChosenFor | None, *, product: bool, constant: Collection[str] = ()
) -> list[Case]:
    """Return the cases that fit a node, best first; `fitting` has the ladder's order, bottom first.

    `product` says whether the operator's ladder goes on to tensor cores, `constant` which inputs never change.

    By the ladder the top variant of the finest precision comes first, in its first config, and variants that need
    special instructions come last. The cpu backend chooses so, where these are slow, and a GPU for operators that are
    bound by memory, whose ladders end at the measured peak. A matrix product has no single top: tensor cores beat
    ordinary ones several times and large tiles beat small ones, but a few large tiles leave most of a GPU idle.
    There `expected_s` decides.
    """
    able = [case for case in fitting if gpu.runs(case)] if gpu else []
    if gpu and product and able:
        made_for = [case for case in able if FEW_CHANNELS in case.variant.mechanism]
        order = {case.variant.name: number for number, case in enumerate(fitting)}
        return sorted(made_for or able, key=lambda case: (expected_s(case, gpu, constant), -order[case.variant.name]))
    first = {case.variant.name: case for case in reversed(fitting)}  # of each variant, the top one first
    return sorted(first.values(), key=lambda c: (UNIT_ROUNDOFF[c.variant.precision], _capability(c)))


def _capability(case: Case) -> tuple[int, ...]:
    """What its instructions need; of variants that need none, nothing."""
    return parse_capability(case.variant.compute_capability) or ()


def expected_s(case: Case, gpu: ChosenFor, constant: Collection[str] = ()) -> float:
    """Return the seconds that a matrix product should take, to rank cases with and not to quote.

    Inputs in `constant` never change, so setup launches that read only these cost nothing. The time follows from the
    peak of the unit that the variant names, lowered by the share of the GPU that its blocks fill, by the part of its
    tiles that lies beyond the result, and by what small tiles move. docs/networks.md states how far its choices are
    from the fastest measured case. Of operations saved it knows what a header says in `flops`.
    """
    problem, tile = case.problem, case.tile
    setup = case.setup if case.setup.serves(constant) else Setup()
    steps = [step for step in case.launches(gpu.sm_count) if step.kernel and not (setup.launches and step.setup)]
    main = max(steps, key=work)
    blocks = math.prod(main.grid)
    tiles = math.prod(max(case.launches(ENDLESS), key=work).grid)
    busy = min(1.0, blocks * math.prod(main.block) / 32 / (WARPS * gpu.sm_count))
    wgmma = case.variant.compute_capability == "9.0a"
    on_tensor_cores = WGMMA_SHARE if wgmma else TENSOR_SHARE
    filled, share = busy, on_tensor_cores if case.variant.unit else TILELESS_SHARE
    flops = float(case.flops())
    if tile.m and tile.n:
        elements = max(math.prod(tensor.shape) for tensor in problem.output_tensors())
        flops *= max(1.0, tiles * tile.m * tile.n / (tile.split * elements))
        share = on_tensor_cores if case.variant.unit else CORE_SHARE
        share *= min(1.0, _full(case) * tile.m * tile.n / (tile.m + tile.n) / LARGE_TILE) ** 0.5
        if case.variant.unit and int(problem.axes.get("c", VECTOR)) < VECTOR:
            share *= ONE_BY_ONE
        filled = min(1.0, blocks / gpu.sm_count)
        if case.variant.unit:
            filled *= max(FEW_WARPS_SHARE, busy / filled)
        if tile.slices > 1 and blocks > gpu.sm_count:  # each of these has its multiprocessor alone
            filled = min(filled, blocks / (gpu.sm_count * -(-blocks // gpu.sm_count)))
    if tile.patch_height:
        for size, extent in zip(_covered(problem), (tile.patch_height, tile.patch_width), strict=True):
            flops *= -(-size // extent) * extent / size
        share *= (tile.patch_height / PATCH) ** 0.1
    elif problem.name == "conv2d_wgrad" and tile.m and case.variant.unit:
        share *= WINDOWS_SHARE
    if wgmma:  # a block to a multiprocessor takes tiles until there are none
        filled = busy = tiles / (gpu.sm_count * -(-tiles // gpu.sm_count))
        if tiles < gpu.sm_count:
            filled **= PARTLY
    elif case.variant.unit:
        busy *= COPIED
    rate = gpu.ceilings.flops_per_s(case.variant.unit or "f32") or math.inf
    bandwidth = gpu.ceilings.dram_bytes_per_s or math.inf
    in_block, passed_on = _splitting(case, gpu.sm_count, setup)
    compute, memory = flops / (rate * share * in_block * filled), problem.bytes() / (bandwidth * busy)
    return max(compute, memory) + passed_on / bandwidth + LAUNCH_S * len(steps)


def work(step: KernelLaunch) -> tuple[int, int]:
    """What the launch that multiplies has the most of: dynamic shared memory, then threads."""
    return step.shared_bytes, math.prod(step.grid) * math.prod(step.block)


def _splitting(case: Case, sm_count: int, setup: Setup) -> tuple[float, float]:
    """What is left of the rate where a block splits floats into f16 as it multiplies, and the bytes of passes ahead.

    Workspaces that `setup` filled are read in place of the inputs that they are made from.
    """
    every, inputs = case.workspace(sm_count), case.problem.input_tensors()
    workspace = [tensor for tensor in every if tensor.name not in setup.workspaces]
    passed_on = 2.0 * sum(tensor.nbytes for tensor in workspace)
    kept = sum(tensor.nbytes for tensor in every if tensor.name in setup.kept)
    passed_on += max(0.0, kept - sum(tensor.nbytes for tensor in inputs if tensor.name in setup.inputs))
    if case.variant.product not in IN_BLOCK_SHARE or inputs[0].nbytes < 4 * math.prod(inputs[0].shape):
        return 1.0, passed_on
    if CONVERTED_AHEAD not in case.variant.mechanism:
        return IN_BLOCK_SHARE[case.variant.product], passed_on
    converted = sum(tensor.nbytes for tensor in inputs if tensor.name not in setup.inputs)
    return 1.0, passed_on + 2.0 * converted  # read for the largest, and to be converted


def _full(case: Case) -> float:
    """What part of the rows of 128 bytes that TMA brings of each pixel are channels: of 96 in bf16, three quarters."""
    channels = int(case.problem.axes.get("k" if "dimage" in case.problem.outputs else "c", 0))
    if (
        "dweight" in case.problem.outputs
        or not channels
        or "r" not in case.problem.axes
        or case.variant.compute_capability != "9.0a"
    ):
        return 1.0
    row = 32 if case.variant.unit == "tf32" else 64
    return channels / (row * -(-channels // row))


def _covered(problem: Operator) -> tuple[int, int]:
    """Rows and columns of the image that a convolution's patches lie over: the gradient's own, else the result's."""
    rows, columns = ("h", "w") if "dimage" in problem.outputs else ("p", "q")
    return int(problem.scope[rows]), int(problem.scope[columns])
