"""The compute capabilities of GPUs by name, and the oldest that opbench supports."""

from __future__ import annotations

from opbench.errors import UsageError
from opbench.gpu.limits.products import PRODUCTS, product
from opbench.kernels.capability import parse_capability

OLDEST_CAPABILITY = (6, 1)
"""The oldest supported compute capability (Pascal, GTX 10), for which all variants without a requirement compile."""


def capability_of(gpu: str) -> tuple[int, int]:
    """Return the compute capability of a GPU given by name ("h100") or number ("8.6", "sm_86").

    Raises UsageError for an unknown GPU.
    """
    gpu_product = product(gpu)
    capability = gpu_product.capability if gpu_product else parse_capability(gpu)
    if capability is None:
        raise UsageError(
            f"no compute capability is known for GPU '{gpu}'; use one of {', '.join(PRODUCTS)}, or a compute "
            "capability such as 8.6",
            kind="unknown-name",
            subject="GPU",
            value=gpu,
            allowed=tuple(PRODUCTS),
        )
    return capability
