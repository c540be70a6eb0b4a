"""opbench: check, time and compare CUDA implementations of one operator, with a GPU and without one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from opbench._version import __version__

__all__ = [
    "UNIT_ROUNDOFF",
    "ActivatedProduct",
    "Arrays",
    "AttentionGeometry",
    "Builder",
    "CheckOptions",
    "ConcatGeometry",
    "Conv2dGeometry",
    "Conv3dGeometry",
    "Gradient",
    "GroupNormGeometry",
    "MeanLoss",
    "Network",
    "Operator",
    "PagedDecodeGeometry",
    "PlannedNetwork",
    "Pool2dGeometry",
    "Pool3dGeometry",
    "RunOptions",
    "Tensor",
    "Tolerance",
    "TrainOptions",
    "Upsample2dGeometry",
    "UpsampleConcatGeometry",
    "UsageError",
    "__version__",
    "by_pieces",
    "check",
    "figures",
    "from_onnx",
    "from_storage",
    "from_torch",
    "load",
    "magnitude_of_rounded",
    "matrix_product",
    "nchw_view",
    "network",
    "passed_on",
    "plan",
    "read_run",
    "rounded",
    "run",
    "to_storage",
    "torch_activate",
    "torch_launch",
    "torch_tensor",
    "torch_tensors",
    "train",
    "vector_width",
]

if TYPE_CHECKING:
    from opbench.api import check, run
    from opbench.errors import UsageError
    from opbench.graph.build import Builder
    from opbench.graph.importing import from_onnx, from_torch
    from opbench.kernels.activated_product import ActivatedProduct
    from opbench.kernels.arrays import by_pieces, matrix_product
    from opbench.kernels.attention_geometry import AttentionGeometry, PagedDecodeGeometry
    from opbench.kernels.concat_geometry import ConcatGeometry
    from opbench.kernels.gradient import Gradient, passed_on
    from opbench.kernels.mean_loss import MeanLoss
    from opbench.kernels.norm_geometry import GroupNormGeometry
    from opbench.kernels.operator import Operator
    from opbench.kernels.tensors import (
        Arrays,
        Tensor,
        Tolerance,
        from_storage,
        magnitude_of_rounded,
        rounded,
        to_storage,
        vector_width,
    )
    from opbench.kernels.torch_library import nchw_view, torch_activate, torch_launch, torch_tensor, torch_tensors
    from opbench.kernels.upsample_geometry import Upsample2dGeometry, UpsampleConcatGeometry
    from opbench.kernels.window_geometry import Conv2dGeometry, Conv3dGeometry, Pool2dGeometry, Pool3dGeometry
    from opbench.networks.api import figures, load, read_run, train
    from opbench.networks.plan.executor import Network
    from opbench.networks.plan.planned import PlannedNetwork, network, plan
    from opbench.networks.train.train_options import TrainOptions
    from opbench.running.options import CheckOptions, RunOptions
    from opbench.source.precision import UNIT_ROUNDOFF

_HOMES = {
    "UNIT_ROUNDOFF": "opbench.source.precision",
    "ActivatedProduct": "opbench.kernels.activated_product",
    "Arrays": "opbench.kernels.tensors",
    "AttentionGeometry": "opbench.kernels.attention_geometry",
    "PagedDecodeGeometry": "opbench.kernels.attention_geometry",
    "Builder": "opbench.graph.build",
    "CheckOptions": "opbench.running.options",
    "ConcatGeometry": "opbench.kernels.concat_geometry",
    "Conv2dGeometry": "opbench.kernels.window_geometry",
    "Conv3dGeometry": "opbench.kernels.window_geometry",
    "Gradient": "opbench.kernels.gradient",
    "GroupNormGeometry": "opbench.kernels.norm_geometry",
    "MeanLoss": "opbench.kernels.mean_loss",
    "Network": "opbench.networks.plan.executor",
    "Operator": "opbench.kernels.operator",
    "RunOptions": "opbench.running.options",
    "PlannedNetwork": "opbench.networks.plan.planned",
    "Pool2dGeometry": "opbench.kernels.window_geometry",
    "Pool3dGeometry": "opbench.kernels.window_geometry",
    "Tensor": "opbench.kernels.tensors",
    "Tolerance": "opbench.kernels.tensors",
    "TrainOptions": "opbench.networks.train.train_options",
    "Upsample2dGeometry": "opbench.kernels.upsample_geometry",
    "UpsampleConcatGeometry": "opbench.kernels.upsample_geometry",
    "UsageError": "opbench.errors",
    "check": "opbench.api",
    "figures": "opbench.networks.api",
    "from_onnx": "opbench.graph.importing",
    "from_torch": "opbench.graph.importing",
    "from_storage": "opbench.kernels.tensors",
    "load": "opbench.networks.api",
    "magnitude_of_rounded": "opbench.kernels.tensors",
    "by_pieces": "opbench.kernels.arrays",
    "matrix_product": "opbench.kernels.arrays",
    "nchw_view": "opbench.kernels.torch_library",
    "network": "opbench.networks.plan.planned",
    "plan": "opbench.networks.plan.planned",
    "passed_on": "opbench.kernels.gradient",
    "read_run": "opbench.networks.api",
    "rounded": "opbench.kernels.tensors",
    "run": "opbench.api",
    "to_storage": "opbench.kernels.tensors",
    "torch_activate": "opbench.kernels.torch_library",
    "torch_launch": "opbench.kernels.torch_library",
    "torch_tensor": "opbench.kernels.torch_library",
    "torch_tensors": "opbench.kernels.torch_library",
    "train": "opbench.networks.api",
    "vector_width": "opbench.kernels.tensors",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `opbench list` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'opbench' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
