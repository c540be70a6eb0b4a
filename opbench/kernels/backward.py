"""The backward pass of one problem: the problems that compute its gradients, with their tensors and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from opbench.errors import UsageError
from opbench.kernels.gradient import GRADIENT_PREFIX, Gradient
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays, Tensor


def forward_tensor_of(problem: Operator, name: str) -> Tensor:
    """Return the forward tensor whose shape a name in a rule has: "image" for "d.image", "out" for "out.masked"."""
    tensors = {t.name: t for t in (*problem.input_tensors(), *problem.output_tensors())}
    plain = name.removeprefix(GRADIENT_PREFIX).partition(".")[0]
    if plain not in tensors:
        raise UsageError(f"{problem.name}: its gradients name '{name}'; its tensors are {', '.join(tensors)}")
    return tensors[plain]


def problem_of_entry(entry: Gradient, operator: Callable[[str], type[Operator]], where: str) -> Operator:
    """Return the problem of one entry of a gradient rule.

    Raises UsageError, which starts with `where`, for axes or tensors that do not exist.
    """
    try:
        problem = operator(entry.operator).from_axes(entry.axes)
    except UsageError as error:
        raise UsageError(f"{where}: its gradient: {error}", cause=error) from None
    for role, tied, tensors in (
        ("inputs", entry.inputs, problem.input_tensors()),
        ("outputs", entry.outputs, problem.output_tensors()),
    ):
        names = {t.name for t in tensors}
        if tied.keys() - names or (role == "inputs" and names - tied.keys()):
            raise UsageError(
                f"{where}: its gradient names the {role} {', '.join(tied)} of {entry.operator}, "
                f"which has {', '.join(names)}"
            )
    return problem


def compute_gradients(
    problem: Operator,
    operator: Callable[[str], type[Operator]],
    tensors: Arrays,
    cotangents: Arrays,
    wanted: Sequence[str],
) -> Arrays:
    """Compute the gradients of inputs in float64, by name, from the forward tensors and the gradients of the outputs.

    The reference of its own operator computes each entry of the problem's rule.
    """
    known = dict(tensors) | {GRADIENT_PREFIX + name: array for name, array in cotangents.items()}
    for entry in gradient_entries(problem, wanted, problem.name):
        if not entry.operator:
            (source,), (target,) = entry.inputs.values(), entry.outputs.values()
            known[target] = known[source].reshape(forward_tensor_of(problem, target).shape)
            continue
        step = problem_of_entry(entry, operator, problem.name)
        shapes = {t.name: t.shape for t in step.input_tensors()}
        outputs = step.computed(**{name: known[tied].reshape(shapes[name]) for name, tied in entry.inputs.items()})
        for name, tied in entry.outputs.items():
            known[tied] = np.asarray(outputs[name]).reshape(forward_tensor_of(problem, tied).shape)
    return {name: known[GRADIENT_PREFIX + name] for name in wanted}


def gradient_entries(problem: Operator, wanted: Sequence[str], where: str) -> Sequence[Gradient]:
    """Return the entries of the gradient rule that the wanted inputs need; raise UsageError without a rule."""
    entries = problem.gradients(frozenset(wanted))
    tied_outputs = {tied for entry in entries or () for tied in entry.outputs.values()}
    if missing := [name for name in wanted if GRADIENT_PREFIX + name not in tied_outputs]:
        raise UsageError(
            f"{where}: {problem.name}{problem} has no gradient for '{missing[0]}'; give its operator.py one "
            "(gradients), or exclude the layers before it from training",
            kind="no-gradient",
            subject=problem.name,
            value=missing[0],
        )
    return entries or ()
