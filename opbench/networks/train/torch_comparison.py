"""Compare opbench's training step with PyTorch's: first the results, then the times, measured in turn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench.backend.base import Backend, LibraryBackend, TimedBackend
from opbench.graph.layouts import permuted_from
from opbench.graph.training_step import Training
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.executor import Network
from opbench.networks.plan.node_times import TIMING, node_samples, node_times
from opbench.networks.plan.options import ChoosingOptions
from opbench.networks.plan.torch_comparison import require_known_libraries
from opbench.networks.plan.torch_gpu import TorchGpu, find_torch, on_one_line, versions_of
from opbench.networks.plan.torch_module import to_module
from opbench.networks.records.training import Comparison, FirstStepRecord, StepPeer, StepTimes
from opbench.networks.train.steps import Step
from opbench.networks.train.torch_training import FirstStep, StepProblem, TimedStep, first_step, timed_steps
from opbench.timing.clock import Launch
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import measure

ALLOWED_ERRORS = {"f32": (1e-5, 1e-3, 2e-2), "tf32": (5e-3, 0.1, 0.3), "bf16": (2e-2, 0.7, 0.9)}
"""By precision, the largest allowed distance of opbench's first step from PyTorch's, relative, in norm: of the loss, of
the gradient of each weight, and of the step's change of all parameters.

Both sides round. In float32 one ReLU or pooling that selects another element changes a gradient by about 1e-4; in bf16
tens of layers add up to tenths. A different computation is off by 1 or more. Adam's first step is the learning rate
with the sign of the gradient: if a gradient is about 0, its sign is arbitrary, and a share f of such parameters changes
the result by 2 sqrt(f), 0.02 for one in ten thousand."""
ERROR_FACTOR = 2.0
"""How many times as far from PyTorch's float64 step opbench may be as PyTorch's step in the same precision.

On random pictures UNet's gradients are sums whose terms cancel. There, rounding in tf32 changes a gradient by 0.24, in
float32 by 0.01 (PyTorch's own in nchw 0.0085, in nhwc 0.012): a share f of ReLUs and poolings that select another
element changes such a sum by sqrt(f)."""
MIN_NORM_SHARE = 0.01
"""A gradient below this share of the norm of all gradients is compared with that norm, because it is mostly noise."""
OPBENCH_NAME = "opbench"
MODES_BUDGET_S = 1.0
"""Seconds to measure each of several modes: a step of 0.1 s gets ten samples, and seven modes take half a minute."""


@dataclass(frozen=True)
class TorchComparison:
    """Compares opbench's training step with PyTorch's: the results of the first step, then the times."""

    names: Sequence[str]
    problem: StepProblem
    training: Training
    initial_state: Arrays
    """The state that the data determine."""
    limit_s: float = ChoosingOptions.compare_limit_s
    """Seconds that each mode of PyTorch may compile and warm up."""

    def __post_init__(self) -> None:
        require_known_libraries(self.names)

    def require_possible(self, backend: str) -> None:
        """Raise UsageError, before anything runs, for a comparison that cannot succeed."""
        if self.names:
            find_torch(gpu=backend == "cuda")
            to_module(self.problem.network, training=True)

    def measure(self, network: Network, step: Step, backend: Backend) -> tuple[StepTimes, Comparison | None]:
        """Return the times of the step and its nodes, and the comparison with PyTorch if requested.

        Times need a clock. Measuring continues the training and overwrites the state: read everything that you
        need first.
        """
        comparison = self._compare_step(network, step, backend) if self.names else None
        if not isinstance(backend, TimedBackend):
            return StepTimes(), comparison
        with self._timed_modes(backend) as timed_step_by_mode:
            launch_by_name = {
                name: timed_step.launch for name, timed_step in timed_step_by_mode.items() if timed_step.launch
            }
            called = [name for name, timed_step in timed_step_by_mode.items() if not timed_step.captured]
            cold, hot, faults = _time_working_modes(backend, step.launch, launch_by_name, called)
            if comparison is not None:
                peers = {
                    name: StepPeer(timed_step.captured is not None, cold[name], hot[name], timed_step.peak_bytes)
                    if name in cold
                    else StepPeer(error=timed_step.error or faults[name])
                    for name, timed_step in timed_step_by_mode.items()
                }
                comparison = replace(comparison, ways=peers)
        nodes_s = node_times(node_samples(step.context, backend.clock("cold")))
        return StepTimes(cold[OPBENCH_NAME], hot[OPBENCH_NAME], nodes_s), comparison

    @contextlib.contextmanager
    def _timed_modes(self, backend: Backend) -> Iterator[Mapping[str, TimedStep]]:
        if not self.names or not isinstance(backend, LibraryBackend):
            yield {}
            return
        with timed_steps(self.problem, TorchGpu(backend), self.limit_s) as steps:
            yield steps

    def _compare_step(self, network: Network, step: Step, backend: Backend) -> Comparison:
        try:
            device = "cuda" if isinstance(backend, LibraryBackend) else "cpu"
            precision, exact = self.problem.precision, first_step(replace(self.problem, precision="f64"), device)
            torch_step = first_step(self.problem, device)
            opbench_step, initial_weights = self._opbench_first_step(network, step), self.problem.network.weights
            result = compare_first_steps(opbench_step, exact, initial_weights, precision, torch_step)
        except Exception as error:  # an error must not prevent saving the record of the finished training
            result = FirstStepRecord(False, f"PyTorch's step was not computed: {on_one_line(error)}")
        return Comparison(result, {}, versions_of(find_torch(gpu=False)))

    def _opbench_first_step(self, network: Network, step: Step) -> FirstStep:
        """Return the results of the first step from the initial weights, whatever was trained since."""
        training = self.training
        network.write_state(training.graph.state)
        network.write_state(self.initial_state)
        step.launch()
        step.context.settle()
        state_names = {name for name, _ in training.statistics.values()} | ({"rates"} & training.graph.state.keys())
        total = training.exchange.total_state if training.exchange else "gradients"
        state = network.read_state("losses", total, "parameters", *state_names)
        # opbench's optimiser scales gradients by the last rate while it reads them; PyTorch scales them in place.
        if "rates" in state:
            state[total] *= state["rates"][3]
        original_weights = {
            permuted_from(name, np.zeros(shape), self.problem.network.weights)[0]
            for name, (_, shape) in training.parameters.items()
        }
        gradients, parameters = training.weights({**state, "parameters": state[total]}), training.weights(state)
        return FirstStep(
            float(state["losses"][0]),
            {name: gradients[name] for name in original_weights},
            {name: parameters[name] for name in original_weights},
        )


def _time_working_modes(
    backend: TimedBackend, opbench_launch: Launch, torch_launches: Mapping[str, Launch], called: Collection[str]
) -> tuple[dict[str, Measurement], dict[str, Measurement], dict[str, str]]:
    """Return the times of opbench's and PyTorch's steps, with cold L2 and back to back, and the errors.

    If a mode fails, such as for lack of memory, the modes called from Python are left out, because a captured
    mode holds its memory. If a mode fails again, opbench's step is timed alone.
    """
    captured = {name: launch for name, launch in torch_launches.items() if name not in called}
    faults: dict[str, str] = {}
    for candidates in (torch_launches, captured) if len(captured) < len(torch_launches) else (torch_launches,):
        try:
            return *_time_launches(backend, {OPBENCH_NAME: opbench_launch, **candidates}, called), faults
        except Exception as error:
            faults |= dict.fromkeys(candidates, on_one_line(error))
    return *_time_launches(backend, {OPBENCH_NAME: opbench_launch}), faults


def _time_launches(
    backend: TimedBackend, launches: Mapping[str, Launch], called: Collection[str] = ()
) -> tuple[dict[str, Measurement], dict[str, Measurement]]:
    """Time launches in turn, with a cold L2 and back to back, in seconds.

    The launches in `called` run from Python and may wait for the device. For all others the stream is blocked
    until everything is queued.
    """
    not_holding_stream = launches.keys() & set(called)
    options = replace(TIMING, budget_s=MODES_BUDGET_S) if len(launches) > 1 else TIMING
    cold, hot = (
        measure(backend.clock(mode), launches, options, not_holding_stream=not_holding_stream)
        for mode in ("cold", "hot")
    )
    return cold, hot


def compare_first_steps(
    opbench_step: FirstStep,
    exact: FirstStep,
    initial_weights: Mapping[str, np.ndarray],
    precision: str,
    rounded: FirstStep | None = None,
) -> FirstStepRecord:
    """Return the difference of opbench's first step from PyTorch's step in float64, with a verdict.

    `initial_weights` are the weights before the step. If PyTorch's own step in the same precision, `rounded`, is far
    from float64 too, opbench's may be ERROR_FACTOR times as far. Weights that only PyTorch trains, such as a bias
    that the next batch norm subtracts, are not compared.
    """
    distances, worst = _relative_distances(opbench_step, exact, initial_weights, opbench_step.gradients)
    rounding = (
        _relative_distances(rounded, exact, initial_weights, opbench_step.gradients)[0]
        if rounded is not None
        else (0.0, 0.0, 0.0)
    )
    allowed = [
        max(limit, ERROR_FACTOR * error) for limit, error in zip(ALLOWED_ERRORS[precision], rounding, strict=True)
    ]
    quantities = ("loss", f"gradient of {worst}", "change of the parameters")
    wrong = [
        f"the {name} by {error:.2g} ({limit:.2g} allowed)"
        for name, error, limit in zip(quantities, distances, allowed, strict=True)
        if not error <= limit
    ]
    distances_text = "loss {:.1g}, gradients {:.1g}, the parameters' change {:.1g}"
    text = f"PyTorch's first step is the same: {distances_text.format(*distances)} off"
    if rounded is not None:
        text += f" its step in float64, from which its own in {precision} is {distances_text.format(*rounding)} off"
    if wrong:
        text = f"PyTorch's first step is another, so that its times say nothing here: off are {', '.join(wrong)}"
    return FirstStepRecord(
        right=not wrong,
        text=text,
        loss=opbench_step.loss,
        peer_loss=(rounded or exact).loss,
        errors={"loss": distances[0], "gradients": distances[1], "parameters": distances[2]},
        allowed=dict(zip(("loss", "gradients", "parameters"), allowed, strict=True)),
        worst_gradient=worst,
        compared=len(opbench_step.gradients),
    )


def _relative_distances(
    step: FirstStep, exact: FirstStep, initial_weights: Mapping[str, np.ndarray], names: Iterable[str]
) -> tuple[tuple[float, float, float], str]:
    """Return the relative differences of loss, worst gradient and parameters, and the gradient's name."""
    names = list(names)
    gradient_norm = _norm(exact.gradients[name] for name in names)
    errors = {
        name: float(np.linalg.norm(step.gradients[name] - exact.gradients[name]))
        / max(float(np.linalg.norm(exact.gradients[name])), MIN_NORM_SHARE * gradient_norm, 1e-30)
        for name in names
    }
    worst = max(errors, key=lambda name: errors[name])
    parameter_distance = _norm(step.parameters[name] - exact.parameters[name] for name in names)
    change = _norm(exact.parameters[name] - initial_weights[name] for name in names)
    loss = abs(step.loss - exact.loss) / max(abs(exact.loss), 1e-30)
    return (loss, errors[worst], parameter_distance / max(change, 1e-30)), worst


def _norm(arrays: Iterator[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.linalg.norm(array)) ** 2 for array in arrays))
