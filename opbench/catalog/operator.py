"""An operator: the mathematics of a problem, from which shapes, bytes, inputs and arguments follow."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from opbench.catalog.arrays import by_pieces, drawn, from_bf16, on_the_gpu, to_bf16
from opbench.catalog.gradient import Gradient
from opbench.catalog.magnitude import magnitudes, subtracts, terms
from opbench.catalog.precision import UNIT_ROUNDOFF
from opbench.catalog.variant import read_axes
from opbench.errors import UsageError, unknown

Arrays = dict[str, np.ndarray]

DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "u8": np.dtype(np.uint8),
}
"""Storage of each dtype on the host; bf16 travels as its 16 bits."""
INTEGERS = ("i32", "u8")
"""Those that count or name places: no gradient, no rounding."""
ONE_WAY = 0.01
"""A problem whose writes are at most this share of its bytes only reads, and the other way round."""

LONG_FLOPS = 2e10
"""From here on a reference takes seconds on the host's cores."""


NOT_IN_SCOPE = ("axes", "scope", "storage", "inputs", "outputs", "in_place")
"""Properties that no expression of a header can name."""


@dataclass(frozen=True)
class Tensor:
    """Name, shape and dtype of one input, output or workspace."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers, such as labels: nothing that rounding or a change of scale could mean."""
        return self.dtype in INTEGERS


@dataclass(frozen=True)
class Tolerance:
    """What a right result may deviate from the float64 reference.

    `elementwise`: |out - reference| <= elementwise * magnitude, element by element, where magnitude is the reference
    computed on absolute values. `norm`: ||out - reference|| <= norm * ||reference||. Both 0 means bit-exact.
    Source: the standard forward error bound of an inner product (Higham, Accuracy and Stability, 2002, ch. 3), with the
    length's square root in place of the length, as errors of zero-mean data do not add up.
    """

    elementwise: float
    norm: float

    @property
    def exact(self) -> bool:
        """Whether only the very bits of the reference will do."""
        return self.elementwise == 0 and self.norm == 0


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Base of all operators: fields are axes (int) and modes (str); a bound instance is a problem."""

    inputs: ClassVar[Any] = {}
    """Tensor name to its axes, outermost first, such as {"a": "m k"}; may be a property when a mode decides."""
    outputs: ClassVar[Any] = {}
    """The same of the outputs."""
    library: ClassVar[str] = ""
    """Variant to compare with, such as "cublas"; empty when no library does this operator."""
    integers_exact: ClassVar[bool] = True
    """Whether small-integer inputs must give bit-exact results in any order of summation."""
    flops_are_a_floor: ClassVar[bool] = True
    """Whether no algorithm gets by with fewer operations than `flops()` (false for convolution: Winograd, FFT)."""
    memory_level: ClassVar[str] = "dram"
    """Where `bytes()` are meant to come from: "dram", or "l2" for a probe of the cache."""
    degree: ClassVar[int | None] = None
    """d where inputs twice as large give outputs 2**d times as large, bit for bit (1 for a sum, 2 for a product of two
    inputs): then content that changes costs no second reference. None where that does not hold."""
    linear_in: ClassVar[Sequence[str]] = ()
    """Inputs in each of which alone, the others kept, the result is linear: their gradients are adjoints, exactly."""
    in_place: ClassVar[Mapping[str, str]] = {}
    """For an output that may lie in an input's memory, that input: each kernel reads an element before it writes it."""
    edges: ClassVar[Mapping[str, Sequence[str]]] = {}
    """For an input, what of `opbench.catalog.edges` it may hold as well, with a result that the reference gives."""
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """For each str field, a mode, the values it may have. A mode called `dtype` says how all tensors are stored."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            allowed = self.choices.get(field.name)
            if allowed is not None and value not in allowed:
                raise UsageError(f"{self.name}: {field.name}={value!r} is not allowed; one of {', '.join(allowed)}")
            if allowed is None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise UsageError(f"{self.name}: {field.name}={value!r} is not allowed; a whole number >= 0")
        self.validate()
        for tensor in (*self.input_tensors(), *self.output_tensors()):
            if tensor.elements < 1:
                raise UsageError(
                    f"{self}: tensor '{tensor.name}' would have shape {tensor.shape}; every size must be >= 1"
                )

    # What an operator defines -------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Refuse axes that make no sense together by raising UsageError."""

    def flops(self) -> int:
        """Floating-point operations of the textbook algorithm; 0 for an operator that only moves data."""
        return 0

    reference: ClassVar[Callable[..., np.ndarray | Arrays]]
    """Method: the result in float64 from float64 inputs by name; an array, or a dict by output name when several."""
    examples: ClassVar[Callable[[], Sequence[Operator]]]
    """Class method: small odd problems (1, primes, not divisible by any tile) that every variant must get right."""

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """The problems that give the gradients of the wanted inputs, in an order in which they can run.

        They see the forward tensors by name and the gradients of the outputs as "d.NAME"; what they name of the
        forward tensors is what must be kept for them. None where there is no rule.
        """
        return None

    def reduction(self) -> int:
        """How many products or terms are added up into one output element.

        An operator that adds up says so; of one that subtracts, and says nothing of its errors, it is found out.
        """
        unsaid = all(getattr(type(self), own) is getattr(Operator, own) for own in ("tolerance", "magnitude_outputs"))
        return terms(self) if unsaid and subtracts(self) else 1

    def tolerance(self, precision: str) -> Tolerance:
        """What a variant of this precision class may deviate: grows with the square root of the reduction length."""
        root = float(np.sqrt(self.reduction()))
        accumulate = UNIT_ROUNDOFF["f32"] * root
        stored = UNIT_ROUNDOFF[self.stored_outputs()]
        # Inputs that are stored no finer than the class multiplies are taken as they are.
        inputs = 2 * UNIT_ROUNDOFF[precision] if UNIT_ROUNDOFF[precision] > stored else 0.0
        output = 2 * stored if stored != UNIT_ROUNDOFF["f32"] else 0.0
        return Tolerance(elementwise=8 * accumulate + 2 * inputs + output, norm=4 * accumulate + 2 * inputs + output)

    @classmethod
    def random_problems(cls, seed: int, count: int) -> list[Operator]:
        """Further small problems: axes of the examples shuffled among themselves, kept where they make sense."""
        rng = np.random.default_rng([seed, zlib.crc32(cls.name.encode())])
        pools = [example.axes for example in cls.examples()]
        largest = max((e.flops() or e.bytes()) for e in cls.examples())
        found: list[Operator] = []
        for _ in range(50 * count):
            axes = {key: pools[int(rng.integers(len(pools)))][key] for key in pools[0]}
            sizes = {k: v for k, v in axes.items() if isinstance(v, int) and v > 3}
            axes |= {k: int(rng.integers(1, 2 * v)) for k, v in sizes.items() if rng.random() < 0.5}
            try:
                problem = cls.from_axes(axes)
            except UsageError:
                continue
            if (problem.flops() or problem.bytes()) <= 2 * largest and problem not in found:
                found.append(problem)
            if len(found) == count:
                break
        return found

    # What follows from it -----------------------------------------------------------------------------------------

    name: ClassVar[str] = ""
    """The operator's name: that of its folder, set by the catalog."""

    @functools.cached_property
    def axes(self) -> dict[str, int | str]:
        """Every field with its value, in declared order."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @property
    def storage(self) -> str:
        """The dtype of its tensors in memory."""
        return str(self.axes.get("dtype", "f32"))

    def tensor_dtype(self, name: str) -> str:
        """The dtype of one tensor, for an operator whose tensors differ."""
        return self.storage

    def stored_outputs(self) -> str:
        """The float dtype that its outputs are rounded to: its storage, else the coarsest that they are given."""
        given = [] if "dtype" in self.axes else [t.dtype for t in self.output_tensors() if t.dtype in UNIT_ROUNDOFF]
        return max(given, key=UNIT_ROUNDOFF.__getitem__, default=self.storage)

    @classmethod
    def modes(cls) -> dict[str, str]:
        """Each mode (a str field) with its default."""
        return {f.name: str(f.default) for f in dataclasses.fields(cls) if f.name in cls.choices}

    @functools.cached_property
    def scope(self) -> dict[str, int | str]:
        """Names a header's expressions may use: fields and integer properties."""
        derived = {}
        for cls in type(self).__mro__:
            for key, value in vars(cls).items():
                if isinstance(value, property) and key not in NOT_IN_SCOPE:
                    derived[key] = getattr(self, key)
        return {**derived, **self.axes, "dtype": self.storage}

    def _tensors(self, declared: Mapping[str, str]) -> list[Tensor]:
        scope = self.scope
        tensors = []
        for name, axes in declared.items():
            for axis in axes.split():
                if not axis.isdigit() and not isinstance(scope.get(axis), int):
                    known = [key for key, value in scope.items() if isinstance(value, int)]
                    file = sys.modules[type(self).__module__].__file__
                    raise UsageError(f"{file}: {self.name}: '{name}' = '{axes}': {unknown('axis', axis, known)}")
            shape = tuple(int(axis) if axis.isdigit() else int(scope[axis]) for axis in axes.split())
            if (dtype := self.tensor_dtype(name)) not in DTYPES:
                raise UsageError(f"{self.name}: '{name}': {unknown('dtype', dtype, DTYPES)}")
            tensors.append(Tensor(name, shape, dtype))
        return tensors

    def input_tensors(self) -> list[Tensor]:
        """The inputs with their shapes."""
        return self._tensors(self.inputs)

    def output_tensors(self) -> list[Tensor]:
        """The outputs with their shapes."""
        return self._tensors(self.outputs)

    def bytes(self) -> int:
        """Compulsory bytes: each input read once, each output written once."""
        return sum(t.nbytes for t in (*self.input_tensors(), *self.output_tensors()))

    def bandwidth(self) -> str:
        """The bandwidth that the compulsory bytes are judged by: a `memory_level`, "dram_read" or "dram_write".

        DRAM reads or writes faster than it copies: a problem that all but only reads (or writes) has that ceiling.
        """
        if self.memory_level != "dram":
            return self.memory_level
        read, written = (sum(t.nbytes for t in tensors) for tensors in (self.input_tensors(), self.output_tensors()))
        few = ONE_WAY * (read + written)
        return "dram_read" if written <= few else "dram_write" if read <= few else "dram"

    def arguments(self) -> list[str]:
        """The kernel's default argument order: inputs, outputs, integer axes as declared."""
        axes = [name for name, value in self.axes.items() if isinstance(value, int)]
        return [*self.inputs, *self.outputs, *axes]

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded inputs: zero-mean normals, or small whole numbers whose sums float32 holds exactly.

        The integers span [-limit, limit] with `limit**2 * sqrt(reduction)` far below `2**24`.
        """
        limit = max(1, min(8, int((2.0**22 / max(1, self.reduction())) ** 0.5))) if integers else 0

        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            if integers:
                return rng.integers(-limit, limit, count, np.int8, endpoint=True).astype(np.float32)
            return rng.standard_normal(count, np.float32)

        return {
            t.name: to_storage(drawn([seed, zlib.crc32(f"{self}/{t.name}".encode())], t.shape, draw), t.dtype)
            for t in self.input_tensors()
        }

    def reference_outputs(self, inputs: Arrays) -> Arrays:
        """Reference results by output name, in float64."""
        return self.evaluated(self.widened(inputs))

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Scale of each element's allowance: see `opbench.catalog.magnitude`.

        An operator overrides this where it knows the sizes of the terms that its reference adds up or subtracts.
        """
        return magnitudes(self, self.widened(inputs))

    def widened(self, inputs: Arrays) -> Arrays:
        """Stored inputs as float64."""
        dtypes = {t.name: t.dtype for t in self.input_tensors()}
        return {n: by_pieces(a, functools.partial(from_storage, dtype=dtypes[n]), "f8") for n, a in inputs.items()}

    def evaluated(self, wide: Arrays) -> Arrays:
        """The reference's outputs by name for float64 inputs, on the GPU where long or where the inputs are there."""
        here = all(isinstance(array, np.ndarray) for array in wide.values())
        result = on_the_gpu(self.computed, wide) if here and self.flops() >= LONG_FLOPS else None
        return self.computed(**wide) if result is None else result

    def computed(self, **wide: np.ndarray) -> Arrays:
        """The same, where the inputs are; raises UsageError for a reference of a shape that is not declared."""
        try:
            result = self.reference(**wide)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"{self._reference_at(error)}: reference() fails: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(result, dict):
            result = {next(iter(self.outputs)): result}
        for tensor in self.output_tensors():
            shape = getattr(result.get(tensor.name), "shape", None)
            if shape != tensor.shape:
                seen = f"shape {shape}" if shape is not None else "no array"
                raise UsageError(
                    f"{self._reference_at()}: reference() gives {seen} for '{tensor.name}', "
                    f"declared is {tensor.shape}, '{self.outputs[tensor.name]}'"
                )
        return result

    def _reference_at(self, error: BaseException | None = None) -> str:
        """File and line of the reference, of a fault in it the line of the fault."""
        code = inspect.unwrap(type(self).reference).__code__
        line, trace = code.co_firstlineno, error.__traceback__ if error else None
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code is code else line
            trace = trace.tb_next
        return f"{code.co_filename}:{line}: {self.name}{self}"

    def __str__(self) -> str:
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING or value != field.default:
                shown.append(f"{field.name}={value}")
        return f"({','.join(shown)})"

    @classmethod
    def parse(cls, text: str) -> Operator:
        """The problem that prints as `text`, such as "(m=64,n=64,k=64)"."""
        return cls.from_axes(read_axes(text))

    @classmethod
    def from_axes(cls, axes: Mapping[str, object]) -> Operator:
        """Bind axes by name; raises UsageError for an unknown or missing one."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for key in axes:
            if key not in fields:
                raise UsageError(f"{cls.name}: {unknown('axis', key, fields)}")
        missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in axes]
        if missing:
            raise UsageError(f"{cls.name}: axis '{missing[0]}' has no value; needed: {', '.join(fields)}")
        return cls(**axes)


def to_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round float32 values to `dtype` as it is stored (to nearest, ties to even)."""
    return by_pieces(values, to_bf16, "u2") if dtype == "bf16" else values.astype(DTYPES[dtype], copy=False)


def from_storage(array: np.ndarray, dtype: str) -> np.ndarray:
    """Stored values as float32 or float64."""
    return by_pieces(array, from_bf16, "f4") if dtype == "bf16" else array


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as `dtype` stores them, in float64."""
    return from_storage(to_storage(values.astype(np.float32), dtype), dtype).astype(np.float64)


def magnitude_of_rounded(exact: np.ndarray, magnitude: np.ndarray, elementwise: float, dtype: str) -> np.ndarray:
    """Scale of the allowance of a result that is stored a second time, rounded to a coarser `dtype`.

    The result itself may be off by elementwise * magnitude: where that reaches over a tie, the number on either side is
    right, elsewhere only the nearest.
    """
    middle, allowed = rounded(exact, dtype), elementwise * magnitude
    off = (np.abs(rounded(exact + sign * allowed, dtype) - middle) for sign in (-1, 1))
    found: np.ndarray = np.maximum(*off) / elementwise
    return found
