"""What a variant says it serves, an example asks of it; and examples have the sizes at which indices go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opbench.checking.checking import is_traceable
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Tensor
from opbench.kernels.variant import Variant
from support.common import CATALOG, kernels

BLOCK = 256
"""Threads of most blocks, and of a whole number of smaller ones."""
MOST_THREADS = 1024
"""Threads of the largest block: a plane of more needs a second block, or a second step."""

OF_ONE_ELEMENT = {"advance": "a counter is one element, whatever its stride"}
"""Operators none of whose tensors has a size that a block could divide."""
TILED_PIXELS = ("conv2d", "conv2d_dgrad", "conv2d_wgrad", "upsample_concat_conv2d")
"""Operators whose variants of interpreted instructions need not meet each size: their tiles run over the pixels of all
images, of which examples have several tiles, and each pixel more is interpreted lane by lane."""


def served(variant: Variant) -> list[Operator]:
    """The examples that it is meant for, in any config."""
    examples = dict.fromkeys(CATALOG.operator(variant.operator).examples())
    return [
        one for one in examples if any(variant.unmet_requirement(one, config) is None for config in variant.configs)
    ]


def tensors(problem: Operator) -> list[Tensor]:
    """What a kernel reads and writes."""
    return [*problem.input_tensors(), *problem.output_tensors()]


def fills_blocks(problem: Operator) -> bool:
    """Whether a tensor has whole blocks of elements, so that the last thread has one: `<=` for `<` goes beyond it."""
    return any(tensor.elements % BLOCK == 0 for tensor in tensors(problem))


def images(problem: Operator) -> list[Tensor]:
    """Tensors of images: where there are none, no plane can be large."""
    return [t for t in tensors(problem) if len(t.shape) == 4] if {"h", "w"} <= problem.axes.keys() else []


def large_plane(problem: Operator) -> bool:
    """Whether a channel's pixels are more than a block has threads."""
    pixels = slice(1, 3) if problem.axes.get("layout") == "nhwc" else slice(2, 4)
    planes = (t.shape[pixels] for t in images(problem))
    return any(height * width > MOST_THREADS for height, width in planes)


def lacking(operator: str, meets: Callable[[Operator], bool]) -> list[str]:
    """Variants without an example that meets it, but for those that may."""
    variants = (v for v in kernels(operator) if not (operator in TILED_PIXELS and (v.product or v.compute_capability)))
    return [variant.id for variant in variants if not any(map(meets, served(variant)))]


@pytest.mark.parametrize("operator", CATALOG.operator_names())
def test_every_value_of_every_mode_of_each_variant_is_met_by_an_example(operator: str) -> None:
    modes = CATALOG.operator(operator).modes()
    missing = []
    for variant in kernels(operator):
        examples = served(variant)
        for mode, default in modes.items():
            values = variant.supports.get(mode, [default])
            missing += [f"{variant.id}: {mode}={v}" for v in values if not any(e.axes[mode] == v for e in examples)]
    assert missing == []


@pytest.mark.parametrize("operator", CATALOG.operator_names())
def test_each_variant_has_an_example_whose_elements_fill_whole_blocks(operator: str) -> None:
    missing = lacking(operator, fills_blocks)
    assert bool(missing) == (operator in OF_ONE_ELEMENT), missing


@pytest.mark.parametrize("operator", [n for n in CATALOG.operator_names() if images(CATALOG.operator(n).examples()[0])])
def test_each_variant_of_images_has_an_example_with_a_plane_of_several_blocks(operator: str) -> None:
    assert lacking(operator, large_plane) == []


def test_who_need_not_meet_a_size_is_an_operator_with_variants_of_that_kind() -> None:
    assert all(any(v.product or v.compute_capability for v in kernels(name)) for name in TILED_PIXELS)
    assert set(OF_ONE_ELEMENT) <= set(CATALOG.operator_names())


def test_a_block_of_the_resident_batch_norm_divides_a_channel() -> None:
    """Its guards are compiled away there: a step too many is seen nowhere else."""
    variant = CATALOG.variant("batchnorm2d_train", "resident")
    cases = [Case(variant, config, one) for one in served(variant) for config in variant.configs]
    macros = [(case.problem.storage, dict(case.request().macros)) for case in cases if case.unmet_requirement() is None]
    assert {dtype for dtype, of in macros if int(of["TOTAL"]) % int(of["BLOCK"]) == 0} == {"f32", "bf16"}


LARGE_TILES = {
    *(f"conv2d/nhwc_wgmma_patch_{mode}" for mode in ("f16", "halves", "planes", "floats")),
    *(f"conv2d_dgrad/nhwc_wgmma_{mode}" for mode in ("tf32", "f16", "planes")),
    *(f"sort/{name}" for name in ("bitonic_shared", "radix", "radix_reordered")),
}
"""Persistent variants whose blocks take a second tile only in problems that the emulator is slow on. Variants of the
same file with other formats take several tiles; the passes of a sort take one element after another."""


def takes_several_tiles(variant: Variant, problem: Operator) -> bool:
    """Whether a block of a persistent grid takes several tiles on the CPU, where each access is traced."""
    case = Case(variant, variant.configs[0], problem)
    return case.launches(CpuBackend.sm_count) != case.launches(1024) and is_traceable(problem)


@pytest.mark.parametrize("operator", CATALOG.operator_names())
def test_blocks_of_a_persistent_grid_take_several_tiles(operator: str) -> None:
    for variant in kernels(operator):
        examples = [p for p in served(variant) if variant.unmet_requirement(p, variant.configs[0]) is None]
        cases = [Case(variant, variant.configs[0], problem) for problem in examples]
        if all(case.launches(1) == case.launches(1024) for case in cases):
            continue
        several = any(takes_several_tiles(variant, problem) for problem in examples)
        assert several != (variant.id in LARGE_TILES), f"{variant.id}: an example of more tiles, small enough to trace"
