"""The backward pass of one problem: the problems that compute its gradients, with their tensors and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opbench.errors import UsageError
from opbench.kernels.gradient import GRADIENT_PREFIX, Gradient
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Tensor


def forward_tensor_of(problem: Operator, name: str) -> Tensor:
    """Return the forward tensor with the shape of a tensor in a gradient rule: "image" for "d.image"."""
    tensors = {t.name: t for t in (*problem.input_tensors(), *problem.output_tensors())}
    forward_name = name.removeprefix(GRADIENT_PREFIX).partition(".")[0]
    if forward_name not in tensors:
        raise UsageError(
            f"{problem.name}: gradients in operator.py names the tensor '{name}', which the operator does not have; "
            f"use one of {', '.join(tensors)}",
            kind="unknown-name",
            subject=problem.name,
            value=name,
            allowed=tuple(tensors),
        )
    return tensors[forward_name]


def problem_of_entry(entry: Gradient, operator_class: Callable[[str], type[Operator]], message_prefix: str) -> Operator:
    """Return the problem of one entry of a gradient rule.

    Raises UsageError, which starts with `message_prefix`, for axes or tensors that do not exist.
    """
    try:
        problem = operator_class(entry.operator).from_axes(entry.axes)
    except UsageError as error:
        raise UsageError(
            f"{message_prefix}: the entry '{entry.operator}' of gradients in operator.py is not valid: {error}",
            cause=error,
        ) from None
    for role, mapping, tensors in (
        ("inputs", entry.inputs, problem.input_tensors()),
        ("outputs", entry.outputs, problem.output_tensors()),
    ):
        names = {t.name for t in tensors}
        if mapping.keys() - names or (role == "inputs" and names - mapping.keys()):
            raise UsageError(
                f"{message_prefix}: its entry of gradients names the {role} {', '.join(mapping)} of "
                f"{entry.operator}, which has {', '.join(names)}; correct the names in operator.py",
                kind="unknown-name",
                subject=entry.operator,
                value=tuple(mapping),
                allowed=tuple(names),
            )
    return problem


def gradient_entries(problem: Operator, input_names: Sequence[str], message_prefix: str) -> Sequence[Gradient]:
    """Return the entries of the gradient rule that the wanted inputs need; raise UsageError without a rule."""
    entries = problem.gradients(frozenset(input_names))
    mapped_outputs = {mapped_name for entry in entries or () for mapped_name in entry.outputs.values()}
    if missing := [name for name in input_names if GRADIENT_PREFIX + name not in mapped_outputs]:
        raise UsageError(
            f"{message_prefix}: {problem.name}{problem} has no gradient for '{missing[0]}'; add an entry to "
            "gradients in the operator's operator.py, or exclude the layers before this node from training",
            kind="no-gradient",
            subject=problem.name,
            value=missing[0],
        )
    return entries or ()
