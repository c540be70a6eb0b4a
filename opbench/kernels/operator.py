"""An operator: the mathematics of a problem, from which shapes, bytes, inputs and arguments follow."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from opbench.errors import Location, UsageError, unknown
from opbench.kernels.arrays import by_pieces, drawn, on_the_gpu
from opbench.kernels.axes import read_axes
from opbench.kernels.gradient import Gradient
from opbench.kernels.magnitude import magnitudes, subtracts, terms
from opbench.kernels.tensors import DTYPES, INTEGERS, Arrays, Tensor, Tolerance, from_storage, to_storage
from opbench.source.precision import UNIT_ROUNDOFF

MOST_I32 = 2**31 - 1
"""The largest number that i32 holds."""
ONE_WAY = 0.01
"""A problem whose writes are at most this share of its bytes only reads, and the other way round."""

WIDE = "g"
"""NumPy's long double: what references of f64 tensors are computed in."""

LONG_FLOPS = 2e10
"""From here on a reference takes seconds on the host's cores."""


NOT_IN_SCOPE = ("axes", "scope", "storage", "inputs", "outputs", "in_place")
"""Properties that no expression of a header can name."""


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
    special_inputs: ClassVar[Mapping[str, Sequence[str]]] = {}
    """For an input, what of `opbench.kernels.special_inputs` it may hold as well; the reference says the result."""
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """For each str field, a mode, the values it may have. A mode called `dtype` says how all tensors are stored.

    With "i32" in it, inputs are whole numbers, and results are judged exactly; with "f64", results are judged with
    float64's rounding. Examples in other dtypes than the default's are optional: see `all_examples`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "edges" in vars(cls):  # what operators of earlier versions call them
            cls.special_inputs = vars(cls)["edges"]

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
    """Method: the result from inputs by name, an array, or a dict by output name when several.

    Inputs are float64 arrays, of tensors that are stored in f64 long doubles: the result has their precision. Matrices
    are multiplied by `matrix_product`, as NumPy takes long for long doubles.
    """
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
        if self.storage in INTEGERS:
            return self.stored_as(self.modes()["dtype"]).reduction()
        unsaid = all(getattr(type(self), own) is getattr(Operator, own) for own in ("tolerance", "magnitude_outputs"))
        return terms(self) if unsaid and subtracts(self) else 1

    def tolerance(self, precision: str) -> Tolerance:
        """What a variant of this precision class may deviate: grows with the square root of the reduction length.

        Asked only of results that are no whole numbers: see `allowance`.
        """
        root = float(np.sqrt(self.reduction()))
        accumulate = self.roundoff() * root
        stored = UNIT_ROUNDOFF[self.stored_outputs()]
        # Inputs that are stored no finer than the class multiplies are taken as they are.
        inputs = self.operand_roundoff(precision) if UNIT_ROUNDOFF[precision] > stored else 0.0
        output = 2 * stored if stored != UNIT_ROUNDOFF["f32"] else 0.0
        return Tolerance(elementwise=8 * accumulate + 2 * inputs + output, norm=4 * accumulate + 2 * inputs + output)

    def allowance(self, precision: str) -> Tolerance:
        """Return what a variant's results may deviate: nothing where they are whole numbers, else `tolerance`."""
        return Tolerance(0.0, 0.0) if self.storage in INTEGERS else self.tolerance(precision)

    def roundoff(self) -> float:
        """Return the unit roundoff of its arithmetic: float64's for tensors stored in f64, else float32's."""
        return UNIT_ROUNDOFF["f64" if self.storage == "f64" else "f32"]

    def operand_roundoff(self, precision: str) -> float:
        """Return the relative error of a product whose two operands a narrower precision class rounds, else 0."""
        return 0.0 if precision in ("f32", "f64") else 2 * UNIT_ROUNDOFF[precision]

    def stored_as(self, dtype: str) -> Operator:
        """Return the same problem with its tensors stored as another dtype."""
        return type(self).from_axes({**self.axes, "dtype": dtype})

    @classmethod
    def all_examples(cls, dtypes: Iterable[str]) -> list[Operator]:
        """Return the examples, and for each of the `dtypes` that no example has those of the default stored so."""
        own = list(cls.examples())
        known = cls.choices.get("dtype", ())
        missing = [dtype for dtype in dtypes if dtype in known and all(p.storage != dtype for p in own)]
        plain = [p for p in own if p.storage == cls.modes().get("dtype", p.storage)]
        return [*own, *(p.stored_as(dtype) for dtype in missing for p in plain)]

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

    def is_number(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds numbers that are computed with, not labels or indices."""
        return not tensor.is_integer or tensor.dtype == self.storage

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

        The integers span [-limit, limit] with `limit**2 * sqrt(reduction)` far below `2**24`. Normals of f64 tensors
        have all bits of a float64. In place of normals i32 tensors get whole numbers up to `largest_whole_number`.
        """
        limit = max(1, min(8, int((2.0**22 / max(1, self.reduction())) ** 0.5))) if integers else 0
        kind = {"f64": np.float64, "i32": np.int32}.get(self.storage, np.float32)
        largest = limit or (self.largest_whole_number() if kind is np.int32 else 0)

        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            if integers:
                return rng.integers(-limit, limit, count, np.int8, endpoint=True).astype(kind)
            if kind is np.int32:
                return rng.integers(-largest, largest, count, np.int32, endpoint=True)
            return rng.standard_normal(count, np.float64 if kind is np.float64 else np.float32)

        return {
            t.name: to_storage(drawn([seed, zlib.crc32(f"{self}/{t.name}".encode())], t.shape, draw, kind), t.dtype)
            for t in self.input_tensors()
        }

    def largest_whole_number(self) -> int:
        """Return the size of whole-number inputs with which no partial sum passes 2**31 - 1.

        A result has at most as many terms as are reduced, times the number of inputs; each is a product of as many
        inputs as `degree` says, of two where that is not known. Signs are drawn, so that many terms add up to 8 times
        their square root at most: uniform numbers reach that once in 10**40 sums. Sums then are large enough to show an
        accumulator of 16 bits, or a float's 24.
        """
        terms = max(1, self.reduction()) * len(self.inputs)
        largest_sum = min(terms, 8 * math.isqrt(terms) + 8)
        factors = max(1, 2 if self.degree is None else self.degree)
        return max(1, int((MOST_I32 // largest_sum) ** (1 / factors)))

    def reference_outputs(self, inputs: Arrays) -> Arrays:
        """Reference results by output name, in float64, of f64 tensors in long double."""
        return self.evaluated(self.widened(inputs))

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Scale of each element's allowance: see `opbench.kernels.magnitude`.

        An operator overrides this where it knows the sizes of the terms that its reference adds up or subtracts.
        """
        return magnitudes(self, self.widened(inputs))

    def widened(self, inputs: Arrays) -> Arrays:
        """Stored inputs as float64; those of f64 tensors as long doubles.

        A reference must be better than the kernel that it judges. A long double has 64 bits of significand on x86 and
        113 on ARM under Linux, float64 has 53: its rounding is 2**-11 of what is allowed, or less. Whole numbers of 32
        bits, and sums that 32 bits hold, are exact in float64.
        """
        dtypes = {t.name: t.dtype for t in self.input_tensors()}
        kind = WIDE if self.storage == "f64" else "f8"
        return {n: by_pieces(a, functools.partial(from_storage, dtype=dtypes[n]), kind) for n, a in inputs.items()}

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
                f"{self.name}{self}: reference() fails: {type(error).__name__}: {error}", self._reference_at(error)
            ) from error
        if not isinstance(result, dict):
            result = {next(iter(self.outputs)): result}
        for tensor in self.output_tensors():
            shape = getattr(result.get(tensor.name), "shape", None)
            if shape != tensor.shape:
                seen = f"shape {shape}" if shape is not None else "no array"
                raise UsageError(
                    f"{self.name}{self}: reference() gives {seen} for '{tensor.name}', "
                    f"declared is {tensor.shape}, '{self.outputs[tensor.name]}'",
                    self._reference_at(),
                )
            if self.storage == tensor.dtype == "i32" and (largest := float(abs(result[tensor.name]).max())) > MOST_I32:
                raise UsageError(
                    f"{self.name}{self}: reference() gives {largest:g} for '{tensor.name}', beyond i32; let "
                    "make_inputs() draw smaller numbers, or degree say how many inputs a product has",
                    self._reference_at(),
                )
        return result

    def _reference_at(self, error: BaseException | None = None) -> Location:
        """File and line of the reference, of a fault in it the line of the fault."""
        code = inspect.unwrap(type(self).reference).__code__
        line, trace = code.co_firstlineno, error.__traceback__ if error else None
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code is code else line
            trace = trace.tb_next
        return Location(Path(code.co_filename), line)

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
