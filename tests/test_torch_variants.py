"""Every variant that calls PyTorch, found by looking: on its kernels for the CPU it computes what its operator says.

On a GPU a run checks them as any other; here a stand-in hands NumPy's arrays where CuPy's would be.
"""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from opbench.checking.verdict import changed_input, judge
from opbench.kernels.case import Case
from opbench.kernels.folders import load_module
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import DTYPES
from opbench.kernels.variant import Variant
from support.common import CATALOG

torch = pytest.importorskip("torch", reason="its kernels are what is called; opbench[torch] brings it")

VARIANTS = [v for n in CATALOG.operator_names() for v in CATALOG.variants(n) if v.is_library and "torch" in v.modules]
ONLY_ON_A_GPU = {
    "attention/torch_cudnn",
    "attention_backward/torch_cudnn",
    "avgpool3d/torch",  # on a CPU avg_pool3d takes no bf16
    "conv2d",
    "conv3d",
    "depthwise_conv2d",
    "groupnorm_backward",  # on a CPU it is less exact where a mean is 100, as is the next
    "layernorm_backward",
    "linear/torch",  # on a CPU its GELU is the exact one
    "rmsnorm_backward",
    "scaled_matmul",
    "upsample_concat_conv2d",
}
"""Variants, or operators of variants, that need a device, cuDNN, or dtypes side by side that the CPU has not."""

F32_ON_A_CPU = {"batchnorm2d"}
"""Operators whose variants for bf16 mix dtypes as PyTorch's kernels for the CPU do not."""


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's arrays are NumPy's, and its stream is none."""
    stream = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0))
    fake = SimpleNamespace(cuda=stream, int16=np.int16, uint8=np.uint8)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


def problems(variant: Variant) -> list[Operator]:
    """Of its operator's examples those that it fits: the first of each kind in its modes, and a few more."""
    fitting = [
        p
        for p in CATALOG.operator(variant.operator).examples()
        if Case(variant, {}, p).unmet_requirement() is None
        and (variant.operator not in F32_ON_A_CPU or p.axes.get("dtype") != "bf16")
    ]
    modes = {tuple(p.axes[mode] for mode in p.modes()): p for p in reversed(fitting)}
    return list(dict.fromkeys([*modes.values(), *fitting[:8]]))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not {v.id, v.operator} & ONLY_ON_A_GPU], ids=lambda v: v.id)
def test_a_variant_of_pytorch_computes_its_operator(variant: Variant, on_the_host: None) -> None:
    module = load_module(variant.path, f"variant_of_{variant.operator}_{variant.name}")
    found = problems(variant)
    assert found
    for problem in found:
        inputs = problem.make_inputs(3)
        buffers = {name: np.zeros_like(array) for name, array in inputs.items()}
        buffers |= {t.name: np.zeros(t.shape, DTYPES[t.dtype]) for t in problem.output_tensors()}
        own = problem.in_place if variant.in_place else {}
        launch = module.bind(problem, {**buffers, **{old: buffers[new] for new, old in own.items()}})
        for name, array in inputs.items():  # after bind: a run changes the contents between launches
            buffers[name][...] = array
        for new, old in own.items():
            buffers[new][...] = inputs[old]
        launch()
        if collect := getattr(launch, "collect", None):
            collect()
        tolerance, reference = problem.tolerance(variant.precision), problem.reference_outputs(inputs)
        magnitude = {} if tolerance.exact else problem.magnitude_outputs(inputs)
        for name, array in reference.items():
            dtype = problem.tensor_dtype(name)
            judged = judge(name, dtype, buffers[name], array, magnitude.get(name), tolerance)
            assert judged.mismatch is None, f"{problem}: {judged.mismatch.sentence()}"
        assert all(changed_input(array, buffers[name]) is None for name, array in inputs.items()), problem
