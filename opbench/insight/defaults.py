"""Rank unmeasured cases of a problem: matrix products by a model of their time, others by the order of the ladder."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from opbench.backend.environment import Environment
from opbench.gpu.limits.ceilings import Peaks, committed_ceilings
from opbench.gpu.limits.products import MULTIPROCESSORS, product_key
from opbench.kernels.capability import missing_capability, parse_capability
from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.mechanism import CONVERTED_AHEAD, FEW_CHANNELS
from opbench.kernels.operator import Operator
from opbench.kernels.setup import Setup
from opbench.source.precision import UNIT_ROUNDOFF

SUBSTITUTE_GPU = "h200"
"""The GPU whose rates are used for an unknown GPU: only ratios of rates matter here."""
WGMMA_SHARE, TENSOR_SHARE, CORE_SHARE, TILELESS_SHARE = 0.9, 0.52, 0.5, 0.15
"""Share of the unit's peak that large tiles reach: with wgmma, mma.sync, CUDA cores, and CUDA cores without tiles."""
LARGE_TILE = 64
"""m * n / (m + n) of a tile of 128 x 128; smaller tiles move more bytes per product."""
SATURATING_WARPS = 8
"""Warps per multiprocessor that saturate its memory bandwidth or its CUDA cores."""
LAUNCH_S = 1.5e-6
"""Time of each additional kernel in a graph."""
WINDOWS_SHARE = 0.7
"""Share of the tensor cores' rate for filter gradients that fetch pixels again for each filter position."""
THREAD_COPY_SHARE = 0.85
"""Share of the DRAM rate of TMA copies that copies by threads reach."""
IN_BLOCK_SHARE = {"f16": 0.5, "f16x3": 0.7}
"""Share of the rate for kernels that split floats into f16 themselves; others read planes that a pass has split."""
VECTOR_CHANNELS, SCALAR_COPY_SHARE = 4, 0.2
"""With fewer channels than VECTOR_CHANNELS, elements are copied singly, which leaves SCALAR_COPY_SHARE of the rate."""
TALL_PATCH = 32
"""Rows of the tallest patch of a convolution; lower patches load filters more often per product."""
FEW_WARPS_SHARE = 0.8
"""The smallest share of the rate for mma.sync tiles, however few warps a multiprocessor has."""
FILLED_EXPONENT = 0.8
"""Exponent of the filled share of a GPU with few wgmma tiles: each active multiprocessor gets more clock and L2."""
UNLIMITED_MULTIPROCESSORS = 10**6
"""A number of multiprocessors that is so large that each block of a persistent kernel computes one tile."""


@dataclass(frozen=True)
class RankingGpu:
    """The properties of a GPU by which unmeasured cases are ranked: peaks, multiprocessors and capability."""

    ceilings: Peaks
    sm_count: int
    capability: tuple[int, int]
    shared_per_block: int
    gpu: str = ""
    """The GPU's name from the driver."""

    def runs(self, case: Case) -> bool:
        """Return whether the GPU has the instructions and the shared memory that a case needs."""
        if missing_capability(self.capability, case.variant.compute_capability):
            return False
        return all(launch.shared_bytes <= self.shared_per_block for launch in case.launches(self.sm_count))


def ranking_gpu(environment: Environment) -> RankingGpu | None:
    """Return the properties of the GPU in a backend's environment; None without a GPU."""
    if environment.capability is None:
        return None
    limits = MULTIPROCESSORS.get(environment.capability)
    shared = limits.shared_per_block if limits else 48 * 1024
    return RankingGpu(
        committed_ceilings(product_key(environment.gpu) or SUBSTITUTE_GPU),
        environment.sm_count,
        environment.capability,
        shared,
        environment.gpu,
    )


def rank_cases(
    fitting: Sequence[Case], gpu: RankingGpu | None, *, product: bool, constant: Collection[str] = ()
) -> list[Case]:
    """Return the cases that fit a node, best first; `fitting` is in the ladder's order, bottom first.

    `product` says whether the operator is a matrix product whose ladder includes tensor cores; `constant` are inputs
    that never change. On a GPU, matrix products are ranked by `expected_s`: tensor cores are several times faster than
    CUDA cores and large tiles are faster than small ones, but a few large tiles leave most of a GPU idle.

    Otherwise the order is that of the ladder: the top variant of the finest precision is first, in its first config,
    and variants that need special instructions are last. This holds for the cpu backend, where such instructions are
    slow, and for memory-bound operators, whose ladders end at the measured peak.
    """
    runnable = [case for case in fitting if gpu.runs(case)] if gpu else []
    if gpu and product and runnable:
        specialised = [case for case in runnable if FEW_CHANNELS in case.variant.mechanism]
        ladder_index = {case.variant.name: index for index, case in enumerate(fitting)}
        return sorted(
            specialised or runnable,
            key=lambda case: (expected_s(case, gpu, constant), -ladder_index[case.variant.name]),
        )
    first_config = {case.variant.name: case for case in reversed(fitting)}  # the top variant first
    return sorted(first_config.values(), key=lambda case: (UNIT_ROUNDOFF[case.variant.precision], _capability(case)))


def _capability(case: Case) -> tuple[int, ...]:
    """Return the compute capability that the case requires; empty if it requires none."""
    return parse_capability(case.variant.compute_capability) or ()


def expected_s(case: Case, gpu: RankingGpu, constant: Collection[str] = ()) -> float:
    """Estimate the seconds of a matrix product, only for ranking cases.

    Setup launches that read only inputs in `constant`, which never change, cost nothing. The estimate uses the peak of
    the variant's unit, reduced by the share of the GPU that its blocks fill, by the part of tiles outside the result,
    and by the additional traffic of small tiles. It uses the number of operations that the header states in `flops`.
    docs/networks.md states how far its choices are from the fastest measured case.
    """
    problem, tile = case.problem, case.tile
    setup = case.setup if case.setup.depends_only_on(constant) else Setup()
    launches = [
        launch for launch in case.launches(gpu.sm_count) if launch.kernel and not (setup.launches and launch.setup)
    ]
    main = max(launches, key=multiplication_key)
    blocks = math.prod(main.grid)
    tiles = math.prod(max(case.launches(UNLIMITED_MULTIPROCESSORS), key=multiplication_key).grid)
    resident_share = min(1.0, blocks * math.prod(main.block) / 32 / (SATURATING_WARPS * gpu.sm_count))
    wgmma = case.variant.compute_capability == "9.0a"
    tensor_share = WGMMA_SHARE if wgmma else TENSOR_SHARE
    filled_share, rate_share = resident_share, tensor_share if case.variant.unit else TILELESS_SHARE
    flops = float(case.flops())
    if tile.m and tile.n:
        elements = max(math.prod(tensor.shape) for tensor in problem.output_tensors())
        flops *= max(1.0, tiles * tile.m * tile.n / (tile.split * elements))
        rate_share = tensor_share if case.variant.unit else CORE_SHARE
        rate_share *= min(1.0, _full_row_share(case) * tile.m * tile.n / (tile.m + tile.n) / LARGE_TILE) ** 0.5
        if case.variant.unit and int(problem.axes.get("c", VECTOR_CHANNELS)) < VECTOR_CHANNELS:
            rate_share *= SCALAR_COPY_SHARE
        filled_share = min(1.0, blocks / gpu.sm_count)
        if case.variant.unit:
            filled_share *= max(FEW_WARPS_SHARE, resident_share / filled_share)
        if tile.slices > 1 and blocks > gpu.sm_count:  # each of these blocks occupies a whole multiprocessor
            filled_share = min(filled_share, blocks / (gpu.sm_count * -(-blocks // gpu.sm_count)))
    if tile.patch_height:
        for size, extent in zip(_covered_pixels(problem), (tile.patch_height, tile.patch_width), strict=True):
            flops *= -(-size // extent) * extent / size
        rate_share *= (tile.patch_height / TALL_PATCH) ** 0.1
    elif problem.name == "conv2d_wgrad" and tile.m and case.variant.unit:
        rate_share *= WINDOWS_SHARE
    if wgmma:  # persistent: one block per multiprocessor processes tiles in a loop
        filled_share = resident_share = tiles / (gpu.sm_count * -(-tiles // gpu.sm_count))
        if tiles < gpu.sm_count:
            filled_share **= FILLED_EXPONENT
    elif case.variant.unit:
        resident_share *= THREAD_COPY_SHARE
    rate = gpu.ceilings.flops_per_s(case.variant.unit or "f32") or math.inf
    bandwidth = gpu.ceilings.dram_bytes_per_s or math.inf
    conversion_share, extra_bytes = _conversion_cost(case, gpu.sm_count, setup)
    compute, memory = (
        flops / (rate * rate_share * conversion_share * filled_share),
        problem.bytes() / (bandwidth * resident_share),
    )
    return max(compute, memory) + extra_bytes / bandwidth + LAUNCH_S * len(launches)


def multiplication_key(launch: KernelLaunch) -> tuple[int, int]:
    """Return a key that is largest for the launch that multiplies: dynamic shared memory, then threads."""
    return launch.shared_bytes, math.prod(launch.grid) * math.prod(launch.block)


def _conversion_cost(case: Case, sm_count: int, setup: Setup) -> tuple[float, float]:
    """Return the share of the rate that remains if blocks split floats into f16, and the bytes that earlier passes
    move.

    Workspaces that `setup` has filled are read instead of the inputs that they are computed from.
    """
    workspaces, inputs = case.workspace(sm_count), case.problem.input_tensors()
    unfilled = [tensor for tensor in workspaces if tensor.name not in setup.workspaces]
    extra_bytes = 2.0 * sum(tensor.nbytes for tensor in unfilled)
    persistent_bytes = sum(tensor.nbytes for tensor in workspaces if tensor.name in setup.persistent)
    extra_bytes += max(0.0, persistent_bytes - sum(tensor.nbytes for tensor in inputs if tensor.name in setup.inputs))
    if case.variant.product not in IN_BLOCK_SHARE or inputs[0].nbytes < 4 * math.prod(inputs[0].shape):
        return 1.0, extra_bytes
    if CONVERTED_AHEAD not in case.variant.mechanism:
        return IN_BLOCK_SHARE[case.variant.product], extra_bytes
    converted_bytes = sum(tensor.nbytes for tensor in inputs if tensor.name not in setup.inputs)
    return 1.0, extra_bytes + 2.0 * converted_bytes  # read to find the largest number, and read to convert


def _full_row_share(case: Case) -> float:
    """Return the used share of the 128-byte rows that TMA copies per pixel, such as 3/4 for 96 channels in bf16."""
    channels = int(case.problem.axes.get("k" if "dimage" in case.problem.outputs else "c", 0))
    if (
        "dweight" in case.problem.outputs
        or not channels
        or "r" not in case.problem.axes
        or case.variant.compute_capability != "9.0a"
    ):
        return 1.0
    row_channels = 32 if case.variant.unit == "tf32" else 64
    return channels / (row_channels * -(-channels // row_channels))


def _covered_pixels(problem: Operator) -> tuple[int, int]:
    """Return rows and columns that a convolution's patches cover: of the image's gradient if computed, else of the
    result.
    """
    rows, columns = ("h", "w") if "dimage" in problem.outputs else ("p", "q")
    return int(problem.scope[rows]), int(problem.scope[columns])
