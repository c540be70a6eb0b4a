"""A table of GPU models, and functions that find a model by its name."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from opbench.gpu.limits.occupancy import DeviceLimits

KIB = 1024
MIB = 1024 * KIB

MULTIPROCESSORS = {
    (6, 1): DeviceLimits("", 0, 2048, 32, 65536, 96 * KIB, 48 * KIB, l1_bytes=144 * KIB),
    (8, 0): DeviceLimits("", 0, 2048, 32, 65536, 164 * KIB, 163 * KIB, l1_bytes=192 * KIB),
    (8, 6): DeviceLimits("", 0, 1536, 16, 65536, 100 * KIB, 99 * KIB, l1_bytes=128 * KIB),
    (8, 9): DeviceLimits("", 0, 1536, 24, 65536, 100 * KIB, 99 * KIB, l1_bytes=128 * KIB),
    (9, 0): DeviceLimits("", 0, 2048, 32, 65536, 228 * KIB, 227 * KIB, l1_bytes=256 * KIB),
}
"""Limits of a multiprocessor: CUDA C++ Programming Guide, technical specifications per compute capability."""

L1_BYTES_PER_CYCLE = 128
"""Bytes per cycle of one multiprocessor's L1 cache and shared memory, by NVIDIA's tuning guides from Volta on."""


@dataclass(frozen=True)
class GpuProduct:
    """One GPU model by its datasheet: dense rates at boost clock, which no kernel reaches."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    l2_bytes: int
    """Size of the L2 cache. An H200's driver reports 60 MiB; but a copy leaves 24 MiB of dirty lines, as in a cache of
    50 MiB half of which is written."""
    fp32_flops_per_s: float
    tf32_flops_per_s: float
    half_flops_per_s: float
    """Rate of bf16 and of f16 on tensor cores; 0 without tensor cores, as is `tf32_flops_per_s`."""
    dram_bytes_per_s: float
    boost_hz: float
    origin: str
    """The document with these rates."""

    @property
    def arch(self) -> str:
        """Return the architecture, such as "sm_90"."""
        return "sm_{}{}".format(*self.capability)

    @property
    def limits(self) -> DeviceLimits:
        """Return the limits of the model's multiprocessors, and their number."""
        limits = MULTIPROCESSORS[self.capability]
        return replace(limits, name=self.name, sm_count=self.sm_count, l2_bytes=self.l2_bytes)

    @property
    def l1_bytes_per_s(self) -> float:
        """Return the bytes per second of the L1 caches and shared memory of all multiprocessors together."""
        return L1_BYTES_PER_CYCLE * self.sm_count * self.boost_hz


A100 = "NVIDIA A100 Tensor Core GPU datasheet"
H100, H200 = "NVIDIA H100 Tensor Core GPU datasheet", "NVIDIA H200 Tensor Core GPU datasheet"
L4 = "NVIDIA L4 Tensor Core GPU datasheet"
GA102, ADA = "NVIDIA Ampere GA102 GPU Architecture whitepaper", "NVIDIA Ada GPU Architecture whitepaper"
GP102 = "NVIDIA GeForce GTX 1080 Ti specifications"
"""The sources of the rates, which reports name."""

PRODUCTS = {
    "a100": GpuProduct("A100 80GB SXM", (8, 0), 108, 40 * MIB, 19.5e12, 156e12, 312e12, 2039e9, 1410e6, A100),
    "gtx1080ti": GpuProduct("GeForce GTX 1080 Ti", (6, 1), 28, 2816 * KIB, 11.3e12, 0.0, 0.0, 484e9, 1582e6, GP102),
    "h100": GpuProduct("H100 SXM", (9, 0), 132, 50 * MIB, 67e12, 494.5e12, 989.5e12, 3350e9, 1980e6, H100),
    "h200": GpuProduct("H200", (9, 0), 132, 50 * MIB, 67e12, 494.5e12, 989.5e12, 4800e9, 1980e6, H200),
    "l4": GpuProduct("L4", (8, 9), 58, 48 * MIB, 30.3e12, 60e12, 121e12, 300e9, 2040e6, L4),
    "rtx3080": GpuProduct("GeForce RTX 3080", (8, 6), 68, 5 * MIB, 29.8e12, 29.8e12, 59.5e12, 760e9, 1710e6, GA102),
    "rtx3090": GpuProduct("GeForce RTX 3090", (8, 6), 82, 6 * MIB, 35.6e12, 35.6e12, 71.2e12, 936e9, 1695e6, GA102),
    "rtx4090": GpuProduct("GeForce RTX 4090", (8, 9), 128, 72 * MIB, 82.6e12, 82.6e12, 165.2e12, 1008e9, 2520e6, ADA),
}
"""GPU models by the name that --gpu accepts."""

_OTHER_BOARD_WORDS = {"pcie", "nvl", "laptop", "ti", "super", "40gb", "12gb", "mobile", "d", "gh200"}
"""Words in a device's name that mark a board other than the one in the table."""


def product_key(gpu: str) -> str:
    """Return a GPU's key from the driver's name ("NVIDIA H200") or the key itself; empty if unknown."""
    name_words = re.findall(r"[a-z0-9]+", gpu.lower())
    word_groups = [name_words[start:end] for start, end in itertools.combinations(range(len(name_words) + 1), 2)]
    for key in PRODUCTS:
        group = next((words for words in word_groups if "".join(words) == key), None)
        if group is not None and not _OTHER_BOARD_WORDS & (set(name_words) - set(group)):
            return key
    return ""


def product(gpu: str) -> GpuProduct | None:
    """Return a GPU model by the driver's name ("NVIDIA H200") or by key ("h200"); None if unknown."""
    return PRODUCTS.get(product_key(gpu))
