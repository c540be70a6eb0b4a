"""`opbench::compute`: any operator's problem on tensors in its physical order, differentiable by the operator's rule.

Traced programs hold it as a call with the operator's and the problem's names; an eager call goes straight to `execute`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.catalog.gradient import GRADIENT, Gradient, bound, like_tensor, rule
from opbench.catalog.operator import Operator
from opbench.errors import UsageError
from opbench.integrations.pytorch import peers
from opbench.integrations.pytorch.choice import CACHES, choice_for, problem_of, settings
from opbench.integrations.pytorch.devices import ALIGNED, TORCH_DTYPES

if TYPE_CHECKING:
    from torch import Tensor

NAMESPACE = "opbench"
library = torch.library.Library(NAMESPACE, "FRAGMENT")
"""Where the operators are registered."""


@dataclass(frozen=True)
class Signature:
    """A problem with the shapes and types of its tensors."""

    problem: Operator
    inputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    outputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


_signatures: dict[object, Signature] = {}
CACHES.append(_signatures.clear)


def signature(operator: str, text: str) -> Signature:
    """Of the problem that prints as `text`."""
    found = _signatures.get((operator, text))
    if found is None:
        problem = problem_of(operator, text)
        sides = (
            tuple((t.name, t.shape, TORCH_DTYPES[t.dtype]) for t in tensors)
            for tensors in (problem.input_tensors(), problem.output_tensors())
        )
        found = _signatures[operator, text] = Signature(problem, *sides)
    return found


def execute(operator: str, text: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a problem, computed now; inputs that lie otherwise are copied.

    Raises UsageError for inputs of other shapes, types or devices.
    """
    known = signature(operator, text)
    index = inputs[0].get_device()
    ready = [_dense(known, given, place, index) for given, place in zip(inputs, known.inputs, strict=True)]
    chosen = choice_for(operator, text, index)
    if chosen.runner is None:
        return peers.compute(known.problem, ready)
    device = ready[0].device
    outputs = [torch.empty(shape, dtype=dtype, device=device) for _, shape, dtype in known.outputs]
    chosen.runner.launch([*ready, *outputs])
    return outputs


def _dense(known: Signature, given: Tensor, place: tuple[str, tuple[int, ...], torch.dtype], index: int) -> Tensor:
    name, shape, dtype = place
    if tuple(given.shape) != shape or given.dtype != dtype or given.get_device() != index:
        problem = known.problem
        raise UsageError(
            f"{problem.name}{problem}: '{name}' is {given.dtype} {list(given.shape)} on {given.device}; "
            f"{dtype} {list(shape)} on one device with the others is needed"
        )
    dense = given.detach().contiguous()
    return dense if dense.data_ptr() % ALIGNED == 0 else dense.clone()


def _fake(operator: str, text: str, inputs: list[Tensor]) -> list[Tensor]:
    return [inputs[0].new_empty(shape, dtype=dtype) for _, shape, dtype in signature(operator, text).outputs]


# Gradients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackwardStep:
    """One problem of a backward pass, tied to tensors by name."""

    operator: str
    text: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """What is read, in the operator's order, in which shape."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """What each output is called, in which shape; "" for one that nobody asked for."""


@functools.lru_cache(maxsize=4096)
def steps_back(problem: Operator, wanted: frozenset[str]) -> tuple[BackwardStep, ...]:
    """What takes a problem's results back to the wanted inputs, by its operator's rule; raises UsageError for none."""
    names = [name for name in problem.inputs if name in wanted]
    return tuple(_step(problem, entry) for entry in rule(problem, names, "gradients of gradients, or of this operator"))


def _step(problem: Operator, entry: Gradient) -> BackwardStep:
    if not entry.operator:
        (source,), (to,) = entry.inputs.values(), entry.outputs.values()
        return BackwardStep("", "", ((source, ()),), ((to, like_tensor(problem, to).shape),))
    own = bound(entry, settings().catalog.operator, problem.name)
    inputs = tuple((entry.inputs[t.name], t.shape) for t in own.input_tensors())
    outputs = tuple(
        (tied, like_tensor(problem, tied).shape) if (tied := entry.outputs.get(t.name, "")) else ("", ())
        for t in own.output_tensors()
    )
    return BackwardStep(entry.operator, str(own), inputs, outputs)


def kept(problem: Operator, wanted: frozenset[str]) -> frozenset[str]:
    """The forward tensors, by name, that the way back reads."""
    forward = {*problem.inputs, *problem.outputs}
    return frozenset(name for step in steps_back(problem, wanted) for name, _ in step.inputs if name in forward)


def pulled_back(
    problem: Operator, wanted: frozenset[str], tensors: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of the wanted inputs by name, in physical order, from those of the outputs."""
    known = {**tensors, **{GRADIENT + name: tensor for name, tensor in cotangents.items()}}
    # A backward pass that is itself differentiated must be seen; every other one need not be.
    call = torch.ops.opbench.compute.default if torch.is_grad_enabled() or not eager(known.values()) else execute
    for step in steps_back(problem, wanted):
        given = [known[name].reshape(shape) if shape else known[name] for name, shape in step.inputs]
        found = call(step.operator, step.text, given) if step.operator else given
        for (name, shape), tensor in zip(step.outputs, found, strict=True):
            if name:
                known[name] = tensor.reshape(shape)
    return {name: known[GRADIENT + name] for name in wanted}


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: list[Tensor]) -> None:
    operator, text, tensors = inputs
    known = signature(str(operator), str(text))
    given: list[Tensor] = list(tensors)  # type: ignore[call-overload]
    floats = [(place[0], tensor) for place, tensor in zip(known.inputs, given, strict=True)]
    wanted = frozenset(name for name, tensor in floats if tensor.requires_grad)
    ctx.signature, ctx.wanted, ctx.saved, ctx.error = known, wanted, [], None
    try:
        names = kept(known.problem, wanted)
    except UsageError as error:
        ctx.error = str(error)
        return
    everything = {**dict(floats), **{place[0]: out for place, out in zip(known.outputs, output, strict=True)}}
    ctx.saved = sorted(names)
    ctx.save_for_backward(*(everything[name] for name in ctx.saved))


def _back(ctx: torch.autograd.function.FunctionCtx, gradients: list[Tensor | None]) -> tuple[object, ...]:
    known: Signature = ctx.signature
    if ctx.error:
        raise UsageError(ctx.error)
    cotangents = {
        name: given if given is not None else ctx.saved_tensors[0].new_zeros(shape, dtype=dtype)
        for (name, shape, dtype), given in zip(known.outputs, gradients, strict=True)
    }
    saved = dict(zip(ctx.saved, ctx.saved_tensors, strict=True))
    found = pulled_back(known.problem, ctx.wanted, saved, cotangents)
    return None, None, [found[name].to(dtype) if name in found else None for name, _, dtype in known.inputs]


library.define("compute(str operator, str problem, Tensor[] inputs) -> Tensor[]")
for _key in ("CPU", "CUDA"):
    library.impl("compute", execute, _key)
torch.library.register_fake(f"{NAMESPACE}::compute", _fake, lib=library)
torch.library.register_autograd(f"{NAMESPACE}::compute", _back, setup_context=_keep, lib=library)


# Eager or seen ----------------------------------------------------------------------------------------------------

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_functions = torch._C._len_torch_function_stack
_tracing = torch._C._get_tracing_state
_transforms = torch._C._functorch.peek_interpreter_stack
_profiling = torch.autograd._profiler_enabled


def eager(tensors: Collection[Tensor | None]) -> bool:
    """Whether nobody watches, traces or transforms the calls on these: then a kernel may be called directly."""
    if _compiling() or _modes() or _functions() or _profiling() or _tracing() is not None or _transforms() is not None:
        return False
    for tensor in tensors:  # noqa: SIM110 (a generator costs a quarter of a microsecond)
        if type(tensor) not in _PLAIN and tensor is not None:
            return False
    return True
