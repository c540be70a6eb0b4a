"""The header that a file would need: which kernel is meant, what it computes, and what a launch says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from opbench.catalog.host_launches import HostLaunch, launches_of
from opbench.catalog.host_structs import structs_of
from opbench.catalog.host_textures import textures_of
from opbench.catalog.operator import Operator
from opbench.catalog.precision import PRODUCTS
from opbench.catalog.project import project_folders
from opbench.catalog.proposal import Proposal, write_header
from opbench.catalog.scan import Declaration, declarations
from opbench.catalog.sources import closure, matrix_classes
from opbench.errors import UsageError, unknown

OPENING_LINE = "/// opbench"
ALIASES = {
    "gemm": "matmul", "sgemm": "matmul", "hgemm": "matmul", "mm": "matmul", "matrixmul": "matmul", "mmul": "matmul",
    "matrixmultiply": "matmul", "vecadd": "add", "vectoradd": "add", "addvectors": "add", "reduce": "sum",
    "reduction": "sum", "maxpool": "maxpool2d", "avgpool": "avgpool2d", "batchnorm": "batchnorm2d", "conv": "conv2d",
    "convolution": "conv2d", "memcpy": "copy",
}  # fmt: skip
"""What kernels are called of which operator."""


def propose(path: Path, operators: Mapping[str, type[Operator]], operator: str = "", kernel: str = "") -> Proposal:
    """The header of a file; raises UsageError where no launch or no operator can be told."""
    try:
        sources = closure(path, project_folders(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(sources[0].text.splitlines(), 1):
        if OPENING_LINE in line:
            raise UsageError(f"{path}:{number}: has an opbench header already; check it with: opbench check {path}")
    everything = [one for source in sources for one in declarations(source.text)]
    for one in declarations(sources[0].text):
        if [token.text for token in one.tokens[:2]] == ["texture", "<"]:
            raise UsageError(
                f"{path}:{one.line}: texture references are gone since CUDA 12; take a cudaTextureObject_t"
            )
    kernels = {one.name: one for one in everything if one.is_kernel}
    if not kernels:
        raise UsageError(f"{path}: defines no __global__ function that can be read; write its header by hand")
    launches = launches_of(everything, sources[0].text)
    chosen, others = _chosen(path, kernels, launches, kernel)
    proposal = Proposal(operator or _operator_of(path, kernels[chosen], operators), chosen)
    if proposal.operator not in operators:
        raise UsageError(unknown("operator", proposal.operator, operators, "opbench list operators"))
    launch = next((one for one in launches if one.kernel == chosen), None)
    problem = operators[proposal.operator].examples()[0]
    functions = {one.name: one for one in everything if one.kind == "function" and one.is_device}
    write_header(proposal, kernels[chosen], launch, problem, textures_of(everything), structs_of(everything), functions)
    products = matrix_classes(sources).keys() & PRODUCTS.keys()
    if len(products) == 1:
        proposal.lines.insert(2, f'product = "{products.pop()}"')
    if launch and not any(axis in proposal.text.split("args")[0].split("grid")[-1] for axis in problem.axes):
        proposal.notes.append(
            "the grid names no axis, so that every size gets the same: write an expression of the axes"
        )
    if others:
        proposal.notes.append(f"the file has other kernels, too: {', '.join(others)}; --kernel NAME takes one of them")
    return proposal


def _chosen(
    path: Path, kernels: Mapping[str, Declaration], launches: Sequence[HostLaunch], wanted: str
) -> tuple[str, list[str]]:
    """The kernel that is meant, and the others."""
    if wanted and wanted not in kernels:
        raise UsageError(f"{path}: {unknown('kernel', wanted, kernels)}")
    launched = [name for name in dict.fromkeys(one.kernel for one in launches) if name in kernels]
    chosen = wanted or next(iter(launched or kernels))
    return chosen, [name for name in kernels if name != chosen]


def _operator_of(path: Path, kernel: Declaration, operators: Mapping[str, type[Operator]]) -> str:
    """The operator that a kernel's name, or the file's, speaks of."""
    for name in (kernel.name, path.stem):
        parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]
        joined = ["".join(parts[i:j]) for i in range(len(parts)) for j in range(len(parts), i, -1)]
        snake = ["_".join(parts[i:j]) for i in range(len(parts)) for j in range(len(parts), i, -1)]
        for word in sorted({*joined, *snake}, key=len, reverse=True):
            if (found := ALIASES.get(word, word)) in operators:
                return found
    known = ", ".join(sorted(operators))
    raise UsageError(
        f"{path}:{kernel.line}: no operator is named like kernel '{kernel.name}'; say which it computes: "
        f"opbench adopt {path} --operator NAME ({known})"
    )
