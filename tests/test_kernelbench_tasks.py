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
    "24": ("softmax(rows=5,cols=33,log=yes)", lambda x: torch.log_softmax(x, 1)),
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
    "54": ("conv3d(n=2,c=3,d=5,h=6,w=7,k=4,t=3,r=3,s=3)", functional.conv3d),
    "57": (
        "conv_transpose3d(n=2,c=3,d=1,h=6,w=7,k=4,t=1,r=3,s=3)",
        lambda x, weight: functional.conv_transpose2d(x[:, :, 0], weight[:, :, 0]),
    ),
    "72": (
        "conv_transpose3d(n=2,c=8,d=3,h=4,w=5,k=12,t=3,r=5,s=7,stride_d=2,stride_h=2,stride_w=2,padding_d=1,padding_h=2,"
        "padding_w=3,output_padding_d=1,output_padding_h=1,output_padding_w=1,groups=4)",
        lambda x, weight: functional.conv_transpose3d(
            x, weight, stride=2, padding=(1, 2, 3), output_padding=1, groups=4
        ),
    ),
    "74": (
        "conv_transpose3d(n=2,c=3,d=1,h=1,w=13,k=4,t=1,r=1,s=5,dilation_w=3)",
        lambda x, weight: functional.conv_transpose1d(x[:, :, 0, 0], weight[:, :, 0, 0], dilation=3),
    ),
    "75": (
        "conv_transpose3d(n=2,c=8,d=1,h=6,w=7,k=12,t=1,r=3,s=5,stride_h=2,stride_w=3,padding_h=1,padding_w=2,dilation_h=2,"
        "groups=4)",
        lambda x, weight: functional.conv_transpose2d(
            x[:, :, 0], weight[:, :, 0], stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=4
        ),
    ),
    "76": (
        "conv3d(n=2,c=3,d=1,h=1,w=40,k=4,t=1,r=1,s=3,stride_w=3,dilation_w=4)",
        lambda x, weight: functional.conv1d(x[:, :, 0, 0], weight[:, :, 0, 0], stride=3, dilation=4),
    ),
    "77": (
        "conv_transpose3d(n=2,c=3,d=3,h=4,w=5,k=4,t=3,r=3,s=3,stride_d=2,stride_h=2,stride_w=2,padding_d=1,padding_h=1,"
        "padding_w=1,dilation_d=2,dilation_h=2,dilation_w=2)",
        lambda x, weight: functional.conv_transpose3d(x, weight, stride=2, padding=1, dilation=2),
    ),
    "80": (
        "conv3d(n=2,c=3,d=1,h=11,w=30,k=4,t=1,r=5,s=9,padding_h=2,padding_w=4,dilation_h=2,dilation_w=3)",
        lambda x, weight: functional.conv2d(x[:, :, 0], weight[:, :, 0], padding=(2, 4), dilation=(2, 3)),
    ),
    "93": ("scan(rows=5,cols=33,mask=given)", lambda x, mask: torch.cumsum(x * mask, 1)),
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
