"""Tasks of KernelBench, written in PyTorch: the operators that the guide names for them compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.common import CATALOG

torch = pytest.importorskip("torch", reason="what a task computes is said in PyTorch")
functional = torch.nn.functional

COMPUTED: dict[str, tuple[str, Callable]] = {
    "3": ("batched_matmul(batch=2,m=5,n=7,k=6)", torch.bmm),
    "14": ("triangular_matmul(n=9)", lambda a, b: torch.triu(a @ b)),
    "15": ("triangular_matmul(n=9,triangle=lower)", lambda a, b: torch.tril(a @ b)),
    "16": ("batched_matmul(batch=1,m=5,n=7,k=6,a_order=col)", lambda a, b: a[0].T @ b[0]),
    "18": ("batched_matmul(batch=1,m=5,n=7,k=6,a_order=col,b_order=col)", lambda a, b: a[0].T @ b[0].T),
    "36": ("normalize(outer=3,axis=4,inner=30,norm=rms)", lambda x: x / (x.square().mean(1, True) + 1e-5).sqrt()),
    "37": ("normalize(outer=1,axis=120)", lambda x: x / torch.norm(x, p="fro")),
    "38": ("normalize(outer=5,axis=33,norm=mean_abs)", lambda x: x / x.abs().mean(1, True)),
    "39": ("normalize(outer=5,axis=33)", lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True)),
    "41": (
        "maxpool3d(n=2,c=3,d=1,h=1,w=64,window=8,stride=1,padding=4,dilation=3)",
        lambda x: functional.max_pool1d(x[:, :, 0, 0], 8, 1, 4, 3),
    ),
    "43": (
        "maxpool3d(n=1,c=2,d=9,h=11,w=12,window=3,padding=1,dilation=3)",
        lambda x: functional.max_pool3d(x, 3, 2, 1, 3),
    ),
    "44": (
        "avgpool3d(n=2,c=3,d=1,h=1,w=64,window=8,stride=1,padding=4)",
        lambda x: functional.avg_pool1d(x[:, :, 0, 0], 8, 1, 4),
    ),
    "46": ("avgpool3d(n=1,c=2,d=5,h=6,w=7,window=3,padding=1)", lambda x: functional.avg_pool3d(x, 3, 2, 1)),
    "96": ("huber_loss(n=100)", functional.smooth_l1_loss),
    "98": (
        "kl_div_loss(rows=4,cols=9,x_scale=linear)",
        lambda x, target: functional.kl_div(torch.log(x), target, reduction="batchmean"),
    ),
    "99": ("triplet_margin_loss(rows=6,cols=9)", torch.nn.TripletMarginLoss(margin=1.0)),
    "100": ("hinge_loss(rows=4,cols=9)", lambda x, target: torch.mean(torch.clamp(1 - x * target, min=0))),
}
"""For tasks of the table, a small problem of the operator, and what the task computes of the problem's inputs."""


@pytest.mark.parametrize("task", COMPUTED)
def test_an_operator_computes_what_the_task_does(task: str) -> None:
    """Its first output does; other outputs, such as gradients, are what the task leaves to autograd."""
    text, function = COMPUTED[task]
    name, sizes = text.split("(")
    problem = CATALOG.operator(name).parse(f"({sizes}")
    inputs = problem.widened(problem.make_inputs(1))
    wanted = function(*(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values())).numpy()
    found = problem.evaluated(inputs)[next(iter(problem.outputs))]
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-12, atol=1e-12)
