"""Time a problem at its first call: the variants that support it, and PyTorch's operator."""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from opbench._version import __version__
from opbench.backend.base import TimedBackend
from opbench.errors import OpbenchError
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import from_storage
from opbench.networks.plan.choosing import TUNING
from opbench.networks.pytorch import torch_operators
from opbench.networks.pytorch.devices import TORCH_DTYPES, CudaRunner, OpenedDevice, on_backend_stream
from opbench.results.book import BookEntry, BookTime
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import measure

MAX_CANDIDATES = 6
"""Most cases to compile and time for a new problem: each compilation takes seconds."""
TORCH_NAME = "torch"


def measure_candidates(problem: Operator, fitting: Sequence[Case], opened_device: OpenedDevice) -> BookEntry | None:
    """Time the first fitting cases and PyTorch with a cold L2; return the fastest case and PyTorch's time.

    Returns None if nothing can be timed. A case whose result differs from PyTorch's in float64 by more than its
    operator allows gets no time, and a message.
    """
    runnable = compile_candidates(fitting, opened_device)
    if not isinstance(opened_device.backend, TimedBackend) or not runnable:
        return None
    with torch.no_grad(), on_backend_stream(opened_device) as stream:
        inputs = _inputs(problem, opened_device)
        launches: dict[str, Callable[[], None]] = {}
        expected: list[torch.Tensor] = []
        if torch_operators.has_peer(problem):
            float64_inputs = [t.double() if t.is_floating_point() else t for t in inputs]
            # The reference is in float64, because PyTorch may compute float32 products in TF32.
            expected = torch_operators.compute(problem, float64_inputs)

            def ask() -> None:
                with torch.cuda.stream(torch.cuda.ExternalStream(stream)), torch.no_grad():
                    torch_operators.compute(problem, inputs)

            launches[TORCH_NAME] = ask
        precisions = {}
        for case in runnable:
            run = _bind_case(case, opened_device, inputs, stream, expected)
            if run is not None:
                launches[case.name], precisions[case.name] = run, case.precision
        torch.cuda.synchronize()
        if not precisions:
            return None
        measured = measure(opened_device.backend.clock("cold"), launches, TUNING)
    times = {name: _book_time(name, problem, measurement, runnable) for name, measurement in measured.items()}
    own_times = sorted((time for name, time in times.items() if name != TORCH_NAME), key=lambda time: time.median_s)
    ties = tuple(time for time in own_times[1:] if time.overlaps(own_times[0]))
    return BookEntry(
        problem.name,
        str(problem),
        precisions[own_times[0].case],
        opened_device.gpu,
        opened_device.compute_capability,
        own_times[0],
        ties,
        times.get(TORCH_NAME),
    )


def compile_candidates(fitting: Sequence[Case], opened_device: OpenedDevice) -> list[Case]:
    """Compile the first fitting cases in parallel; return those that compile and that the device can run."""
    supported = [case for case in fitting if opened_device.backend.unsupported_reason(case.request()) is None][
        :MAX_CANDIDATES
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(lambda case: _can_compile(case, opened_device), supported))
    return [case for case, is_compiled in zip(supported, compiled, strict=True) if is_compiled]


def compile_ahead(ladders: Iterable[Sequence[Case]], opened_device: OpenedDevice) -> None:
    """Compile in parallel the kernels of many problems that will be measured."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for cases in ladders:
            supported = [case for case in cases if opened_device.backend.unsupported_reason(case.request()) is None][
                :MAX_CANDIDATES
            ]
            for case in supported:
                pool.submit(_can_compile, case, opened_device)


def _can_compile(case: Case, opened_device: OpenedDevice) -> bool:
    try:
        opened_device.backend.compile(case.request())
    except OpbenchError as error:
        warnings.warn(f"{case.name} is skipped: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


def _inputs(problem: Operator, opened_device: OpenedDevice) -> list[torch.Tensor]:
    """Return the inputs of the problem on the device."""
    arrays = problem.make_inputs(0)
    tensors = []
    for tensor in problem.input_tensors():
        dense = torch.from_numpy(from_storage(arrays[tensor.name], tensor.dtype).copy())
        tensors.append(dense.to(opened_device.device, TORCH_DTYPES[tensor.dtype]))
    return tensors


def _bind_case(
    case: Case,
    opened_device: OpenedDevice,
    inputs: Sequence[torch.Tensor],
    stream: int,
    expected: Sequence[torch.Tensor],
) -> Callable[[], None] | None:
    """Bind a case to new outputs and run it once; return its launch, or None if it fails or is wrong."""
    outputs = [
        torch.empty(t.shape, dtype=TORCH_DTYPES[t.dtype], device=opened_device.device)
        for t in case.problem.output_tensors()
    ]
    addresses = [tensor.data_ptr() for tensor in (*inputs, *outputs)]
    try:
        runner = CudaRunner(case, opened_device)
        runner.launch_on(addresses, stream)
        torch.cuda.synchronize()
    except OpbenchError as error:
        warnings.warn(f"{case.name} is skipped: {error}", RuntimeWarning, stacklevel=2)
        return None
    allowed = case.problem.allowance(case.precision).norm
    for declared, out, expected_output in zip(case.problem.output_tensors(), outputs, expected, strict=False):
        values, expected_values = out.double(), expected_output.double()
        difference = float(
            torch.linalg.vector_norm(values - expected_values)
            / torch.linalg.vector_norm(expected_values).clamp_min(1e-30)
        )
        if not difference <= allowed:
            message = (
                f"{case.name}: its {declared.name} is {difference:.2g} from float64, {allowed:.2g} is allowed: not used"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return None

    def launch() -> None:
        runner.launch_on(addresses, stream)

    launch.outputs = outputs  # type: ignore[attr-defined]  # which it writes, and so must live as long
    return launch


def _book_time(name: str, problem: Operator, measurement: Measurement, cases: Sequence[Case]) -> BookTime:
    median, low, high = measurement.interval_without_offset_s
    hashes = {case.name: case.variant.source_sha256 for case in cases}
    return BookTime(
        f"{problem.name}/{TORCH_NAME}{problem}" if name == TORCH_NAME else name,
        median,
        min(low, median),
        max(high, median),
        hashes.get(name, ""),
        __version__,
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "measured as it was met",
    )
