"""Bind a case to buffers on a device, so that it can be launched: its kernels, or its library's call."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from opbench.backend.base import Backend, Buffer, LibraryBackend, Program, TracingBackend
from opbench.checking.expected import PreparedProblem
from opbench.errors import Location, OpbenchError, UsageError
from opbench.kernels.case import Case
from opbench.kernels.folders import load_module
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.tensors import Tensor, to_storage
from opbench.timing.clock import Launch, TimedLaunch


@dataclass(frozen=True)
class Binding:
    """A case that is bound to buffers and ready to launch."""

    launch: Launch
    launches: tuple[KernelLaunch, ...] = ()
    """The kernels' launches with all numbers evaluated; empty for a library."""
    program: Program | None = None
    """The loaded module; None for a library."""


@dataclass(frozen=True)
class BoundCase:
    """A case bound to its problem's buffers and to its own workspace."""

    case: Case
    prepared: PreparedProblem
    workspace: Mapping[str, Buffer]
    binding: Binding
    traced: bool = False
    """Whether the bound build can be traced."""

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Return all buffers that the case reads or writes."""
        return {**self.prepared.buffers, **self.workspace}


def bind(
    backend: Backend,
    case: Case,
    buffers: Mapping[str, Buffer],
    sm_count: int | None = None,
    pending_inputs: Collection[str] = (),
    setup: bool | None = None,
    traced: bool = False,
    overlapped: bool = True,
) -> Binding:
    """Bind a case to its tensors and workspaces, given by name in `buffers`.

    `sm_count` is the number of multiprocessors for grid sizes; None means this backend's. `pending_inputs` are inputs
    that an earlier launch may still write: a programmatic launch that reads one of them then waits for the end of the
    earlier launch. `setup` selects the setup launches (True), the others (False) or all (None); only their buffers are
    needed. `traced` loads the instrumented build. Without `overlapped`, no launch starts before the launch before it
    ends (no programmatic dependent launch).

    Raises LaunchError if the device rejects a launch, CompileError, and UsageError for an invalid header or library
    file.
    """
    if case.variant.is_library:
        return Binding(_bind_library(backend, case, _with_in_place_outputs(case, buffers)))
    all_launches = case.launches(sm_count or backend.sm_count)
    launches = [launch for launch in all_launches if setup in (None, launch.setup)]
    # A first launch whose predecessor is not part of this binding has nothing to wait for.
    if launches and launches[0] is not all_launches[0]:
        launches[0] = replace(launches[0], programmatic=False)
    if not overlapped:
        launches = [replace(launch, programmatic=False) for launch in launches]
    for index, launch in enumerate(launches):
        if not launch.programmatic:
            break  # it starts after all earlier launches have ended, so later launches are safe, too
        if set(launch.early) & set(pending_inputs):
            launches[index] = replace(launch, programmatic=False)
            break
    load = backend.load_traced if traced and isinstance(backend, TracingBackend) else backend.load
    program = load(case.request())
    return Binding(program.bind(launches, buffers), tuple(launches), program)


def rebind(backend: Backend, case: Case, bound: Binding, buffers: Mapping[str, Buffer]) -> Launch:
    """Bind a bound case to other buffers; reuse its loaded module."""
    if bound.program is None:
        return _bind_library(backend, case, _with_in_place_outputs(case, buffers))
    return bound.program.bind(bound.launches, buffers)


def _with_in_place_outputs(case: Case, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """Return the buffers; outputs that a library updates in place are replaced by their inputs."""
    in_place = case.problem.in_place if case.variant.in_place else {}
    return {**buffers, **{input_name: buffers[output] for output, input_name in in_place.items()}}


def _bind_library(backend: Backend, case: Case, buffers: Mapping[str, Buffer]) -> Launch:
    """Call a Python variant's `bind` with arrays of its library on the buffers.

    If the returned launch has a function `collect`, that function copies the library's results into the
    outputs, outside the timed interval.
    """
    if not isinstance(backend, LibraryBackend):
        raise UsageError(
            f"{case.name}: calls a GPU library, so the variant needs a GPU; add --backend cuda",
            kind="needs-gpu",
            subject=case.name,
        )
    digest = hashlib.sha256(str(case.variant.path).encode()).hexdigest()[:8]
    module = load_module(case.variant.path, f"opbench_library_{case.variant.name}_{digest}")
    if not hasattr(module, "bind"):
        raise UsageError(
            "defines no function bind(problem, buffers, **config); define it, for example as in variants/relu/torch.py",
            Location(case.variant.path, 1),
            kind="no-bind",
            subject=case.variant.path,
        )
    with backend.on_stream():
        launch: Launch = module.bind(case.problem, backend.arrays(buffers), **case.config)

    def on_stream(launch: Launch) -> Launch:
        def enqueue() -> None:
            with backend.on_stream():
                launch()

        return enqueue

    collect: Launch | None = getattr(launch, "collect", None)
    return TimedLaunch(on_stream(launch), on_stream(collect)) if collect else on_stream(launch)


def allocate(backend: Backend, tensors: Iterable[Tensor]) -> dict[str, Buffer]:
    """Allocate buffers for all tensors; if memory is short, free them all and raise EnvironmentFault."""
    buffers: dict[str, Buffer] = {}
    try:
        for tensor in tensors:
            buffers[tensor.name] = backend.allocate(tensor.name, tensor.shape, tensor.dtype)
    except OpbenchError:
        backend.free(buffers)
        raise
    return buffers


MAX_OWN_INPUT_BYTES = 64 << 20


def bind_unchecked(backend: Backend, case: Case) -> tuple[Launch, dict[str, Buffer]]:
    """Launch a case once on new buffers without checking it; return the launch and the buffers.

    The caller frees the buffers. Inputs are the problem's own if they are small or contain integers, which may
    be indices; otherwise a few random numbers are repeated.
    """
    problem = case.problem
    input_tensors = problem.input_tensors()
    uses_own_inputs = sum(t.nbytes for t in input_tensors) <= MAX_OWN_INPUT_BYTES or any(
        t.is_integer for t in input_tensors
    )
    inputs = problem.make_inputs(0) if uses_own_inputs else {}
    random_values = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    tensors = [*problem.input_tensors(), *problem.output_tensors(), *case.workspace(backend.sm_count)]
    buffers = allocate(backend, tensors)
    try:
        for tensor in tensors:
            content = inputs.get(tensor.name)
            if content is None:
                content = _repeated(to_storage(random_values, tensor.dtype), tensor.shape)
            buffers[tensor.name].write(content)
        launch = bind(backend, case, buffers).launch
        launch()
        backend.synchronize()
    except OpbenchError:
        backend.free(buffers)
        raise
    return launch, buffers


def _repeated(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return `values` repeated to a shape, as np.resize does, which takes 12 times as long for a gigabyte."""
    repeated = np.empty(math.prod(shape), values.dtype)
    for start in range(0, repeated.size, values.size):
        repeated[start : start + values.size] = values[: repeated.size - start]
    return repeated.reshape(shape)
