"""How a case is tied to a device: its kernels or its library's call, on buffers that are given."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from opbench.backend.base import Backend, Buffer, Libraries, Program, Traced
from opbench.errors import Location, OpbenchError, UsageError
from opbench.kernels.case import Case
from opbench.kernels.folders import load_module
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.tensors import Tensor, to_storage
from opbench.timing.clock import Launch


@dataclass(frozen=True)
class Binding:
    """A case ready to launch."""

    launch: Launch
    launches: tuple[KernelLaunch, ...] = ()
    """Its kernels' with every number known; none of a library's."""
    program: Program | None = None
    """The loaded module; None of a library."""


def bind(
    backend: Backend,
    case: Case,
    buffers: Mapping[str, Buffer],
    sm_count: int | None = None,
    written: Collection[str] = (),
    setup: bool | None = None,
    traced: bool = False,
) -> Binding:
    """The case on these buffers, by name: its tensors and its workspace.

    `sm_count` is what grids are sized by where that is not this backend's; `written` are inputs that what is launched
    just ahead may write: a launch that reads one of them early waits for all of that in place of overlapping it.
    `setup` selects the setup launches (True) or the others (False); they need only the buffers that they name.
    `traced` takes the module that its traces run, so that one build does for both.
    Raises LaunchError for what the device refuses, CompileError, and UsageError for a header or a library's file that
    is wrong.
    """
    if case.variant.is_library:
        return Binding(_bind_library(backend, case, _joined(case, buffers)))
    every = case.launches(sm_count or backend.sm_count)
    launches = [launch for launch in every if setup in (None, launch.setup)]
    if launches and launches[0] is not every[0]:  # it may overlap what was ahead of it here, not what is elsewhere
        launches[0] = replace(launches[0], programmatic=False)
    for number, launch in enumerate(launches):
        if not launch.programmatic:
            break  # it begins when all ahead of it has ended, and so what follows reads nothing too early
        if set(launch.early) & set(written):
            launches[number] = replace(launch, programmatic=False)
            break
    load = backend.load_traced if traced and isinstance(backend, Traced) else backend.load
    program = load(case.request())
    return Binding(program.bind(launches, buffers), tuple(launches), program)


def rebind(backend: Backend, case: Case, bound: Binding, buffers: Mapping[str, Buffer]) -> Launch:
    """Return the launch of a bound case on other buffers, without looking its module up again."""
    if bound.program is None:
        return _bind_library(backend, case, _joined(case, buffers))
    return bound.program.bind(bound.launches, buffers)


def _joined(case: Case, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """Return the buffers, with outputs that a library writes over its inputs in the inputs' place."""
    own = case.problem.in_place if case.variant.in_place else {}
    return {**buffers, **{old: buffers[new] for new, old in own.items()}}


def _bind_library(backend: Backend, case: Case, buffers: Mapping[str, Buffer]) -> Launch:
    """Call a Python variant's `bind` with the buffers as the library's arrays."""
    if not isinstance(backend, Libraries):
        raise UsageError(f"{case.name}: calls a GPU library; needs the cuda backend")
    digest = hashlib.sha256(str(case.variant.path).encode()).hexdigest()[:8]
    module = load_module(case.variant.path, f"opbench_library_{case.variant.name}_{digest}")
    if not hasattr(module, "bind"):
        raise UsageError("defines no function bind(problem, buffers, **config)", Location(case.variant.path, 1))
    with backend.on_stream():
        launch: Launch = module.bind(case.problem, backend.arrays(buffers), **case.config)

    def enqueue() -> None:
        with backend.on_stream():
            launch()

    return enqueue


def allocate(backend: Backend, tensors: Iterable[Tensor]) -> dict[str, Buffer]:
    """Buffers for all of these or, when memory is short, for none: then EnvironmentFault."""
    buffers: dict[str, Buffer] = {}
    try:
        for tensor in tensors:
            buffers[tensor.name] = backend.allocate(tensor.name, tensor.shape, tensor.dtype)
    except OpbenchError:
        backend.free(buffers)
        raise
    return buffers


SMALL_BYTES = 64 << 20


def bind_bare(backend: Backend, case: Case) -> tuple[Launch, dict[str, Buffer]]:
    """A case's launch, run once, on buffers of its own, which are to be freed; no reference and no check.

    Inputs are the problem's own where they are small or index others, else a few numbers over and over.
    """
    problem = case.problem
    given = problem.input_tensors()
    own = sum(t.nbytes for t in given) <= SMALL_BYTES or any(t.is_integer for t in given)
    inputs = problem.make_inputs(0) if own else {}
    values = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    tensors = [*problem.input_tensors(), *problem.output_tensors(), *case.workspace(backend.sm_count)]
    buffers = allocate(backend, tensors)
    try:
        for tensor in tensors:
            content = inputs.get(tensor.name)
            if content is None:
                content = np.resize(to_storage(values, tensor.dtype), tensor.shape)
            buffers[tensor.name].write(content)
        launch = bind(backend, case, buffers).launch
        launch()
        backend.synchronize()
    except OpbenchError:
        backend.free(buffers)
        raise
    return launch, buffers
