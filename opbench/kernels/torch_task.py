"""An operator whose reference is a PyTorch module or function, computed in a separate process."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import json
import subprocess
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from opbench import paths
from opbench._version import __version__
from opbench.child_process import child_environment, start_module
from opbench.errors import EnvironmentFault, Location, UsageError
from opbench.kernels.magnitude import estimated_terms
from opbench.kernels.operator import Operator
from opbench.kernels.task_file import TorchTask
from opbench.kernels.tensors import Arrays, Tensor, Tolerance, from_storage, to_storage
from opbench.records import from_json

FLOAT32_MARGIN = 4
"""The tolerance is at least this multiple of the error of PyTorch's own float32 result."""
LIMIT_S = 300.0
MAX_INTEGER_INPUT = 8
MAX_TASK_BYTES = 2 << 30
"""Most bytes of a problem that is timed by default; its reference needs several times as much memory."""


@dataclass(frozen=True)
class TaskTensor:
    """A tensor of a task at some sizes; `parameter` names the model's parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    parameter: bool = False
    """Whether it is a parameter of the module, such as a weight, not an argument of forward()."""


@dataclass(frozen=True)
class TaskShapes:
    """The tensors of a task at some sizes."""

    inputs: tuple[TaskTensor, ...]
    outputs: tuple[TaskTensor, ...]
    flops: int
    scalars: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskFacts:
    """The axes, examples and properties of a task, which opbench finds by running the task's file."""

    axes: Mapping[str, int]
    """The numbers that decide the shapes of inputs, with the values of the file."""
    constants: Mapping[str, int]
    """The other numbers, such as a stride."""
    follow: Mapping[str, str]
    """Numbers that must equal an axis, with the axis."""
    examples: tuple[Mapping[str, int], ...]
    own: tuple[str, ...]
    """Inputs that only get_inputs() can draw, such as labels and probabilities; the others are normals."""
    special: Mapping[str, tuple[str, ...]]
    whole: bool
    """Whether results of small whole numbers are exact whole numbers."""
    float32_error: float
    """The relative error of PyTorch's own float32 result, the largest of all examples."""


def send_message(pipe: Connection, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Send a header and arrays to the other end of a task's pipe."""
    descriptions = [{"name": name, "shape": a.shape, "dtype": str(a.dtype)} for name, a in arrays.items()]
    pipe.send_bytes(json.dumps({**header, "arrays": descriptions}).encode())
    for array in arrays.values():
        pipe.send_bytes(array.tobytes())


def receive_message(pipe: Connection) -> tuple[dict[str, Any], Arrays]:
    """Receive a header and its arrays, which are read-only; raise EOFError if the other end closed."""
    header = json.loads(pipe.recv_bytes())
    return header, {
        array["name"]: np.frombuffer(pipe.recv_bytes(), array["dtype"]).reshape(array["shape"])
        for array in header.pop("arrays")
    }


class TaskProcess:
    """A separate process for one task, started when needed."""

    def __init__(self, task: TorchTask) -> None:
        self.task = task
        self.known: dict[str, TaskShapes] = {}
        """Shapes by printed problem, which another process found."""
        self._lock = threading.Lock()
        self._pipe: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def ask(
        self, action: str, sizes: Mapping[str, int], arrays: Mapping[str, np.ndarray] | None = None, seed: int = 0
    ) -> tuple[dict[str, Any], Arrays]:
        """Send a request and return the answer.

        Raise UsageError if the task fails, EnvironmentFault without PyTorch.
        """
        request = {"do": action, "sizes": dict(sizes), "seed": seed}
        with self._lock:
            try:
                pipe = self._started()
                send_message(pipe, request, {n: np.ascontiguousarray(a) for n, a in (arrays or {}).items()})
                if not pipe.poll(LIMIT_S):
                    raise UsageError(
                        f"the PyTorch task takes longer than {LIMIT_S:g} s; use smaller sizes in this file",
                        self._location(1),
                        kind="too-slow",
                    )
                header, received = receive_message(pipe)
            except (EOFError, OSError):
                self.stop()
                raise UsageError(
                    "the process that runs the PyTorch task died; run the task's Model in python3 to see the cause, "
                    "and check that enough memory is free",
                    self._location(1),
                    kind="process-died",
                ) from None
            except UsageError:
                self.stop()
                raise
        if "error" in header:
            if header["kind"] == "no-torch":
                raise EnvironmentFault(
                    f"{self.task.file.name} is a PyTorch task, and PyTorch cannot be imported ({header['error']}); "
                    "install PyTorch with: python3 -m pip install 'torch>=2.5' --index-url "
                    "https://download.pytorch.org/whl/cpu",
                    kind="no-torch",
                )
            raise UsageError(f"the PyTorch task {header['error']}", self._location(header["line"]), kind="task-failed")
        return header, received

    def _location(self, line: int) -> Location:
        return Location(Path(paths.path_from_here(str(self.task.file))), line)

    def _started(self) -> Connection:
        if self._pipe is None:
            self._process, self._pipe = start_module(
                "opbench.kernels.torch_process",
                str(self.task.file),
                self.task.model,
                environment=child_environment(),
            )
            atexit.register(self.stop)
        return self._pipe

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._process, self._pipe = None, None


@dataclass(frozen=True, kw_only=True)
class TorchOperator(Operator):
    """The base class of operators that PyTorch tasks define; the fields are the task's axes."""

    torch_task: ClassVar[TorchTask]
    process: ClassVar[TaskProcess]
    facts: ClassVar[TaskFacts]
    flops_are_a_floor = False

    @functools.cached_property
    def shapes(self) -> TaskShapes:
        """Return the tensors of this problem."""
        if (cached := self.process.known.get(str(self))) is not None:
            return cached
        header, _ = self.process.ask("shapes", self.sizes)
        return self.process.known.setdefault(str(self), from_json(TaskShapes, header))

    @property
    def sizes(self) -> dict[str, int]:
        """Return all sizes in the task's file: axes, sizes computed from them, and constants."""
        axes = {name: int(value) for name, value in self.axes.items()}
        return {**self.facts.constants, **axes, **{name: axes[axis] for name, axis in self.facts.follow.items()}}

    @functools.cached_property
    def scope(self) -> dict[str, int | str]:
        """Return the variables for a header's expressions: axes, constants, and each tensor's size and dimensions."""
        derived: dict[str, int | str] = {**self.shapes.scalars, **self.facts.constants}
        for tensor in (*self.shapes.inputs, *self.shapes.outputs):
            derived[f"{tensor.name}_size"] = int(np.prod(tensor.shape))
            derived |= {f"{tensor.name}_dim{index}": size for index, size in enumerate(tensor.shape)}
        return {**derived, **self.axes, "dtype": self.storage}

    @property
    def inputs(self) -> dict[str, str]:
        """Return each input with the names of its dimensions."""
        return {t.name: _dimensions(t) for t in self.shapes.inputs}

    @property
    def outputs(self) -> dict[str, str]:
        """Return each output with the names of its dimensions."""
        return {t.name: _dimensions(t) for t in self.shapes.outputs}

    @functools.cached_property
    def _tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        inputs, outputs = (
            tuple(Tensor(t.name, t.shape, t.dtype) for t in tensors)
            for tensors in (self.shapes.inputs, self.shapes.outputs)
        )
        return inputs, outputs

    def tensor_dtype(self, name: str) -> str:
        """Return the dtype of one tensor."""
        return next(t.dtype for t in (*self.shapes.inputs, *self.shapes.outputs) if t.name == name)

    def flops(self) -> int:
        """Return the FLOPs that PyTorch counts: those of matrix products and convolutions."""
        return self.shapes.flops

    def reduction(self) -> int:
        """Return the number of input elements that an output element depends on."""
        return estimated_terms(self)

    def tolerance(self, precision: str) -> Tolerance:
        """Return the usual tolerance, or a multiple of the error of PyTorch's own float32 result if that is larger.

        The length of a task's sums is unknown, so its float32 result is compared with float64 on the examples.
        """
        default_tolerance, minimum = super().tolerance(precision), FLOAT32_MARGIN * self.facts.float32_error
        return Tolerance(max(default_tolerance.elementwise, minimum), max(default_tolerance.norm, minimum))

    def reference(self, **inputs: np.ndarray) -> Arrays:
        """Compute the outputs in float64 in the task's process."""
        return self.process.ask("f64", self.sizes, {n: np.asarray(a, np.float64) for n, a in inputs.items()})[1]

    def evaluated(self, wide: Arrays) -> Arrays:
        """Compute the outputs on float64 inputs in the task's process."""
        return self.reference(**wide)

    computed = reference

    @classmethod
    def examples(cls) -> Sequence[Operator]:
        """Return small problems that the task accepts."""
        return [cls.from_axes(axes) for axes in cls.facts.examples]

    @classmethod
    def task_problems(cls) -> tuple[Operator, ...]:
        """Return the problem with the sizes of the task's file, if it fits into the memory of most GPUs."""
        problem = cls.from_axes(cls.facts.axes)
        return (problem,) if problem.bytes() <= MAX_TASK_BYTES else ()

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals or small integers; for some inputs, the values that get_inputs() generates."""
        drawn = self.process.ask("draw", self.sizes, seed=seed)[1] if self.facts.own else {}
        inputs = {}
        for tensor in self.input_tensors():
            rng = np.random.default_rng([seed, zlib.crc32(f"{self}/{tensor.name}".encode())])
            if tensor.name in self.facts.own:
                values = drawn[tensor.name]
            elif integers:
                limit = max(1, min(MAX_INTEGER_INPUT, int((2.0**22 / max(1, self.reduction())) ** 0.5)))
                values = rng.integers(-limit, limit, tensor.shape, endpoint=True).astype(np.float64)
            else:
                values = rng.standard_normal(tensor.shape, np.float32)
            inputs[tensor.name] = to_storage(values, tensor.dtype)
        return inputs

    def widened(self, inputs: Arrays) -> Arrays:
        """Return stored inputs as float64."""
        dtypes = {t.name: t.dtype for t in self.input_tensors()}
        return {name: from_storage(array, dtypes[name]).astype(np.float64) for name, array in inputs.items()}


def _dimensions(tensor: TaskTensor) -> str:
    return " ".join(f"{tensor.name}_dim{axis}" for axis in range(len(tensor.shape)))


@functools.cache
def torch_operator(task: TorchTask) -> type[TorchOperator]:
    """Return the operator of a PyTorch task; raise UsageError with file and line where the task fails."""
    process = TaskProcess(task)
    try:
        facts = _facts_of(task, process)
    except UsageError:
        process.stop()
        raise
    return _operator_of(task, process, facts)


def _operator_of(task: TorchTask, process: TaskProcess, task_facts: TaskFacts) -> type[TorchOperator]:
    operator_class: type[TorchOperator] = dataclasses.make_dataclass(
        "".join(word.capitalize() for word in task.name.split("_")),
        [(name, int) for name in task_facts.axes],
        bases=(TorchOperator,),
        namespace={"__module__": __name__, "__doc__": f"The PyTorch task {task.file.name}, {task.model}."},
        frozen=True,
        kw_only=True,
    )
    operator_class.process, operator_class.facts, operator_class.name = process, task_facts, task.name
    operator_class.special_inputs, operator_class.integers_exact, operator_class.torch_task = (
        task_facts.special,
        task_facts.whole,
        task,
    )
    return operator_class


@dataclass(frozen=True)
class PackedTask:
    """A PyTorch task and the shapes of one problem, for processes without PyTorch.

    It holds the task's axes, constants and properties.
    """

    task: TorchTask
    facts: TaskFacts
    shapes: TaskShapes


def pack_task(problem: Operator) -> PackedTask | None:
    """Return the task of a problem as plain data; None if no task defines the problem's operator."""
    if not isinstance(problem, TorchOperator):
        return None
    return PackedTask(problem.process.task, problem.facts, problem.shapes)


_UNPACKED: dict[TorchTask, type[TorchOperator]] = {}


def unpack_task(packed: PackedTask, axes: Mapping[str, int | str]) -> type[Operator]:
    """Return the operator that `pack_task` packed."""
    operator_class = _UNPACKED.get(packed.task)
    if operator_class is None or operator_class.facts != packed.facts:
        operator_class = _UNPACKED[packed.task] = _operator_of(packed.task, TaskProcess(packed.task), packed.facts)
    operator_class.process.known[f"({','.join(f'{name}={value}' for name, value in axes.items())})"] = packed.shapes
    return operator_class


def _facts_of(task: TorchTask, process: TaskProcess) -> TaskFacts:
    """Return a task's axes, constants, examples and properties; from the cache if its file is unchanged."""
    text = f"{__version__}/{task.model}/".encode() + task.file.read_bytes()
    text += Path(__file__).with_name("torch_process.py").read_bytes()
    cached = paths.cache_folder("tasks") / f"{hashlib.sha256(text).hexdigest()[:32]}.json"
    try:
        return from_json(TaskFacts, json.loads(cached.read_bytes()))
    except (OSError, ValueError):
        pass
    header, _ = process.ask("describe", {})
    task_facts = from_json(TaskFacts, header)
    paths.write_atomically(cached, json.dumps(header).encode())
    return task_facts
