"""The optimisation mechanisms that a header may name, each with the advice that recommends it."""

from __future__ import annotations

from collections.abc import Mapping

COALESCED = "coalesced"
VECTORISED_ACCESS = "vectorised_access"
SHARED_MEMORY_TILE = "shared_memory_tile"
SHARED_MEMORY_TRANSPOSE = "shared_memory_transpose"
REGISTER_TILE = "register_tile"
BANK_CONFLICT_FREE = "bank_conflict_free"
BLOCK_REDUCTION = "block_reduction"
UNIFORM_WARPS = "uniform_warps"
FEWER_BARRIERS = "fewer_barriers"
FEW_CHANNELS = "few_channels"
CONVERTED_AHEAD = "converted_ahead"

MECHANISMS: Mapping[str, str] = {
    COALESCED: "index the contiguous dimension with threadIdx.x",
    "coalesced_stores": "let neighbouring threads store neighbouring elements, where loads cannot be coalesced as well",
    VECTORISED_ACCESS: "load and store 16 bytes per thread (float4)",
    SHARED_MEMORY_TILE: "stage a tile in shared memory and use each element many times",
    SHARED_MEMORY_TRANSPOSE: "transpose a tile in shared memory, so that loads and stores are both coalesced",
    REGISTER_TILE: "compute several outputs per thread, so that each loaded value feeds several operations",
    BANK_CONFLICT_FREE: "pad the rows of the shared array by one element, or swizzle its index",
    BLOCK_REDUCTION: "reduce within the warp or block first and let one thread add the result",
    UNIFORM_WARPS: "let whole warps take the same branch",
    FEWER_BARRIERS: "synchronise warps instead of blocks, or do more work between two barriers",
    FEW_CHANNELS: "use a kernel for few channels or filters, which keeps all of them on the chip",
    "warp_shuffle": "exchange values within a warp by shuffles",
    "unrolled": "keep several independent operations in flight per thread",
    "compile_time_sizes": "make sizes compile-time constants, so that loops unroll and divisions vanish",
    "no_division": "take indices from grid dimensions instead of dividing a flat index",
    "grid_stride": "launch as many blocks as the device holds and let each stride through the data",
    "flat_index": "number the outputs by one flat index, so that no thread of a block is idle",
    "fewer_passes": "merge passes over the data, so that each element is read fewer times",
    "fused": "do in one kernel what several kernels did",
    "fewer_operations": "use an algorithm with fewer operations",
    "single_precision": "compute in float: write literals with f (0.5f) and call float functions (erff)",
    "scatter": "let each thread add its contribution to the outputs that need it",
    "split_k": "split the reduction over several blocks and add the partial results",
    "sliced_k": "split the reduction over the warps of a block and add the partial results in shared memory",
    "double_buffer": "load the next tile while the current one is used",
    "async_copy": "copy to shared memory with cp.async, without registers in between",
    "tma": "let the Tensor Memory Accelerator copy tiles",
    "tensor_core": "multiply on tensor cores",
    "operand_split": "split operands into low-precision parts and add several tensor-core products",
    CONVERTED_AHEAD: "round or split the operands in a separate kernel, so that the product reads them unchanged",
    "warp_specialised": "let some warps only copy and others only compute",
    "persistent": "keep blocks resident and let each process several tiles",
    "cluster": "let the blocks of a cluster share data or partial results",
    "overlapped_launch": "start a kernel before the previous one has ended (programmatic dependent launch)",
}
"""Descriptions of all mechanisms; a header that names another mechanism is refused."""
