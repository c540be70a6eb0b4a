"""An operator: the mathematics of a problem, which determines shapes, bytes, inputs and kernel arguments."""

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

from opbench.errors import Location, UsageError, unknown_name
from opbench.kernels.arrays import by_pieces, compute_on_gpu, draw_random
from opbench.kernels.axes import read_axes
from opbench.kernels.gradient import Gradient
from opbench.kernels.magnitude import estimated_terms, magnitudes, reference_subtracts
from opbench.kernels.tensors import DTYPES, INTEGERS, Arrays, Tensor, Tolerance, from_storage, to_storage
from opbench.source.precision import UNIT_ROUNDOFF

MAX_I32 = 2**31 - 1
"""The largest i32 number."""
ONE_WAY_SHARE = 0.01
"""If writes are at most this share of a problem's bytes, the problem counts as reading only, and vice versa."""

LONG_DOUBLE = "g"
"""NumPy's long double, in which references of f64 tensors are computed."""

LONG_FLOPS = 2e10
"""FLOPs from which a reference takes seconds on the host's cores."""


NOT_IN_SCOPE = ("axes", "scope", "storage", "inputs", "outputs", "in_place")
"""Properties that a header's expressions cannot name."""


@functools.lru_cache(256)
def _derived_names(classes: tuple[type, ...]) -> tuple[str, ...]:
    """Return the names of the properties that a header's expressions may use, of these classes."""
    return tuple(
        dict.fromkeys(
            key
            for cls in classes
            for key, value in vars(cls).items()
            if isinstance(value, property) and key not in NOT_IN_SCOPE
        )
    )


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Base class of all operators: fields are axes (int) and modes (str); an instance is a problem."""

    role: ClassVar[str] = ""
    """"training step" or "probe" for an operator that opbench uses itself; `opbench list` hides it by default."""
    inputs: ClassVar[Any] = {}
    """Tensor name to its axes, outermost first, such as {"a": "m k"}; may be a property when a mode decides."""
    outputs: ClassVar[Any] = {}
    """Tensor name to its axes for the outputs, as in `inputs`."""
    library: ClassVar[str] = ""
    """Variant to compare with, such as "cublas"; empty when no library does this operator."""
    integers_exact: ClassVar[bool] = True
    """Whether small-integer inputs must give bit-exact results in any order of summation."""
    flops_are_a_floor: ClassVar[bool] = True
    """Whether no algorithm needs fewer operations than `flops()` (false for convolution: Winograd, FFT)."""
    memory_level: ClassVar[str] = "dram"
    """The memory level of `bytes()`: "dram", or "l2" for a probe of the cache."""
    degree: ClassVar[int | None] = None
    """The d for which doubled inputs give outputs 2**d times as large, bit for bit: 1 for a sum, 2 for a product of two
    inputs. With such a d the reference of a second set of inputs is the scaled first one. None if there is no such
    d."""
    linear_in: ClassVar[Sequence[str]] = ()
    """Inputs in which the result is linear while the others are fixed: their gradients are exact adjoints."""
    in_place: ClassVar[Mapping[str, str]] = {}
    """For each output that may use an input's memory, that input: kernels read each element before they write it."""
    special_inputs: ClassVar[Mapping[str, Sequence[str]]] = {}
    """For an input, the kinds of `opbench.kernels.special_inputs` that it may contain, with a defined result."""
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """For each mode (a str field), its allowed values. A mode named `dtype` determines how all tensors are stored.

    With "i32", inputs are whole numbers and results must be exact; with "f64", results are judged with float64's
    rounding. Examples in other dtypes than the default's are optional: see `all_examples`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "edges" in vars(cls):  # Operators of earlier versions name `special_inputs` "edges".
            cls.special_inputs = vars(cls)["edges"]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            allowed = self.choices.get(field.name)
            if allowed is not None and value not in allowed:
                raise UsageError(
                    f"{self.name}: {field.name}={value!r} is not allowed; choose one of {', '.join(allowed)}",
                    kind="not-allowed",
                    subject=field.name,
                    value=value,
                    allowed=tuple(allowed),
                )
            if allowed is None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise UsageError(
                    f"{self.name}: {field.name}={value!r} is not allowed; write a whole number >= 0",
                    kind="not-allowed",
                    subject=field.name,
                    value=value,
                    allowed=">= 0",
                )
        self.validate()
        for tensor in (*self.input_tensors(), *self.output_tensors()):
            if tensor.elements < 1:
                raise UsageError(
                    f"{self}: tensor '{tensor.name}' would have shape {tensor.shape}; choose sizes with which every "
                    "axis of the tensor is at least 1",
                    kind="empty-tensor",
                    subject=tensor.name,
                    value=tensor.shape,
                )

    # Defined by each operator --------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise UsageError for axes that are inconsistent."""

    def flops(self) -> int:
        """Return the floating-point operations of the textbook algorithm; 0 for an operator that only copies data."""
        return 0

    def comparisons(self) -> int:
        """Return the comparisons of the textbook algorithm, which are no FLOPs, where they exceed its elements."""
        return 0

    reference: ClassVar[Callable[..., np.ndarray | Arrays]]
    """Method: the result from inputs by name, as an array, or as a dict by output name for several outputs.

    Inputs are float64 arrays, or long doubles for tensors stored in f64; the result has the same precision. Matrices
    are multiplied by `matrix_product`, because NumPy is slow for long doubles."""
    examples: ClassVar[Callable[[], Sequence[Operator]]]
    """Class method: small odd problems (1, primes, not divisible by any tile) that every variant must get right."""

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Return the problems that compute the gradients of the wanted inputs, in a valid order; None without a rule.

        They use the forward tensors by name and the gradients of the outputs as "d.NAME". The forward tensors
        that they name must be kept for the backward pass.
        """
        return None

    def reduction(self) -> int:
        """Return the number of products or terms that are added for one output element.

        An operator that sums overrides this. For one that subtracts, and that overrides neither this nor its
        error bounds, the number is estimated.
        """
        if self.storage in INTEGERS:
            return self.stored_as(self.modes()["dtype"]).reduction()
        uses_defaults = all(
            getattr(type(self), method) is getattr(Operator, method) for method in ("tolerance", "magnitude_outputs")
        )
        return estimated_terms(self) if uses_defaults and reference_subtracts(self) else 1

    def tolerance(self, precision: str) -> Tolerance:
        """Return the tolerance of a precision class, which grows with the square root of the reduction length.

        It applies only to results that are not whole numbers: see `allowance`.
        """
        root = float(np.sqrt(self.reduction()))
        accumulate = self.roundoff() * root
        stored = UNIT_ROUNDOFF[self.stored_outputs()]
        # Inputs stored with no more precision than the class multiplies with are not rounded again.
        inputs = self.operand_roundoff(precision) if UNIT_ROUNDOFF[precision] > stored else 0.0
        output = 2 * stored if stored != UNIT_ROUNDOFF["f32"] else 0.0
        return Tolerance(elementwise=8 * accumulate + 2 * inputs + output, norm=4 * accumulate + 2 * inputs + output)

    def allowance(self, precision: str) -> Tolerance:
        """Return the tolerance for a variant's results: zero if all results are whole numbers, else `tolerance`."""
        return Tolerance(0.0, 0.0) if self.storage in INTEGERS else self.tolerance(precision)

    def roundoff(self) -> float:
        """Return the unit roundoff of the kernel's arithmetic: float64's for f64 tensors, else float32's."""
        return UNIT_ROUNDOFF["f64" if self.storage == "f64" else "f32"]

    def operand_roundoff(self, precision: str) -> float:
        """Return the relative rounding error of a product's operands in a narrower precision class; 0 for none."""
        return 0.0 if precision in ("f32", "f64") else 2 * UNIT_ROUNDOFF[precision]

    def stored_as(self, dtype: str) -> Operator:
        """Return the same problem with its tensors stored as another dtype."""
        return type(self).from_axes({**self.axes, "dtype": dtype})

    @classmethod
    def task_problems(cls) -> tuple[Operator, ...]:
        """Return the problems with the sizes in a PyTorch task's file; none for other operators."""
        return ()

    @classmethod
    def all_examples(cls, dtypes: Iterable[str]) -> list[Operator]:
        """Return the small example problems.

        A dtype of `dtypes` without an example gets the default dtype's examples.
        """
        own_examples = list(cls.examples())
        allowed = cls.choices.get("dtype", ())
        missing = [dtype for dtype in dtypes if dtype in allowed and all(p.storage != dtype for p in own_examples)]
        default_dtype_examples = [p for p in own_examples if p.storage == cls.modes().get("dtype", p.storage)]
        return [*own_examples, *(p.stored_as(dtype) for dtype in missing for p in default_dtype_examples)]

    @classmethod
    def random_problems(cls, seed: int, count: int) -> list[Operator]:
        """Return more small problems that combine axes of the examples at random; omit inconsistent ones."""
        rng = np.random.default_rng([seed, zlib.crc32(cls.name.encode())])
        example_axes = [example.axes for example in cls.examples()]
        largest = max((e.flops() or e.bytes()) for e in cls.examples())
        problems: list[Operator] = []
        for _ in range(50 * count):
            axes = {key: example_axes[int(rng.integers(len(example_axes)))][key] for key in example_axes[0]}
            sizes = {k: v for k, v in axes.items() if isinstance(v, int) and v > 3}
            axes |= {k: int(rng.integers(1, 2 * v)) for k, v in sizes.items() if rng.random() < 0.5}
            try:
                problem = cls.from_axes(axes)
            except UsageError:
                continue
            if (problem.flops() or problem.bytes()) <= 2 * largest and problem not in problems:
                problems.append(problem)
            if len(problems) == count:
                break
        return problems

    # Derived from the definition ------------------------------------------------------------------------------------

    name: ClassVar[str] = ""
    """The operator's name, which is its folder's name; the catalog sets it."""

    @functools.cached_property
    def axes(self) -> dict[str, int | str]:
        """Return every axis and mode with its value, in declared order."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @property
    def storage(self) -> str:
        """Return the dtype of the tensors in memory."""
        return str(self.axes.get("dtype", "f32"))

    def is_number(self, tensor: Tensor) -> bool:
        """Return whether a tensor contains numbers for arithmetic: not labels or indices."""
        return not tensor.is_integer or tensor.dtype == self.storage

    def tensor_dtype(self, name: str) -> str:
        """Return the dtype of one tensor; an operator with different dtypes overrides this."""
        return self.storage

    def stored_outputs(self) -> str:
        """Return the float dtype to which outputs are rounded; of several dtypes, the least precise."""
        dtypes = [] if "dtype" in self.axes else [t.dtype for t in self.output_tensors() if t.dtype in UNIT_ROUNDOFF]
        return max(dtypes, key=UNIT_ROUNDOFF.__getitem__, default=self.storage)

    @classmethod
    def modes(cls) -> dict[str, str]:
        """Return each mode (a str field) with its default value."""
        return {f.name: str(f.default) for f in dataclasses.fields(cls) if f.name in cls.choices}

    @functools.cached_property
    def scope(self) -> dict[str, int | str]:
        """Return the variables that a header's expressions may use, with values: fields and properties."""
        derived = {key: getattr(self, key) for key in _derived_names(type(self).__mro__)}
        return {**derived, **self.axes, "dtype": self.storage}

    def _declared_tensors(self, declared: Mapping[str, str]) -> list[Tensor]:
        scope = self.scope
        tensors = []
        for name, axes in declared.items():
            for axis in axes.split():
                if not axis.isdigit() and not isinstance(scope.get(axis), int):
                    axis_names = [key for key, value in scope.items() if isinstance(value, int)]
                    file = sys.modules[type(self).__module__].__file__
                    raise UsageError(
                        unknown_name("axis", axis, axis_names, place=f"{file}: {self.name}: '{name}' = '{axes}'")
                    )
            shape = tuple(int(axis) if axis.isdigit() else int(scope[axis]) for axis in axes.split())
            if (dtype := self.tensor_dtype(name)) not in DTYPES:
                raise UsageError(unknown_name("dtype", dtype, DTYPES, place=f"{self.name}: '{name}'"))
            tensors.append(Tensor(name, shape, dtype))
        return tensors

    @functools.cached_property
    def _tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return tuple(self._declared_tensors(self.inputs)), tuple(self._declared_tensors(self.outputs))

    def input_tensors(self) -> list[Tensor]:
        """Return the inputs with their shapes."""
        return list(self._tensors[0])

    def output_tensors(self) -> list[Tensor]:
        """Return the outputs with their shapes."""
        return list(self._tensors[1])

    def bytes(self) -> int:
        """Return the compulsory bytes: each input read once, each output written once."""
        return sum(t.nbytes for t in (*self.input_tensors(), *self.output_tensors()))

    def bandwidth(self) -> str:
        """Return the bandwidth that limits the compulsory bytes: a `memory_level`, "dram_read" or "dram_write".

        DRAM reads or writes faster than it copies, so a problem that almost only reads (or writes) has that
        peak.
        """
        if self.memory_level != "dram":
            return self.memory_level
        read_bytes, written_bytes = (
            sum(t.nbytes for t in tensors) for tensors in (self.input_tensors(), self.output_tensors())
        )
        one_way_bytes = ONE_WAY_SHARE * (read_bytes + written_bytes)
        return (
            "dram_read" if written_bytes <= one_way_bytes else "dram_write" if read_bytes <= one_way_bytes else "dram"
        )

    def arguments(self) -> list[str]:
        """Return the kernel's default argument order: inputs, outputs, integer axes as declared."""
        axes = [name for name, value in self.axes.items() if isinstance(value, int)]
        return [*self.inputs, *self.outputs, *axes]

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded inputs: zero-mean normals, or small whole numbers whose sums float32 represents exactly.

        The integers are within [-limit, limit] with `limit**2 * sqrt(reduction)` far below `2**24`. Sums of products of
        two inputs also fit in the significand of outputs with 16 bits, if need be because most integers are zero: so a
        result is exact however often a variant rounds it, and no rounding hides a wrong term. Normals of f64 tensors
        use all bits of a float64. Instead of normals, i32 tensors get whole numbers up to `largest_whole_number`.
        """
        limit, share = self._small_whole_numbers() if integers else (0, 1.0)
        number_type = {"f64": np.float64, "i32": np.int32}.get(self.storage, np.float32)
        largest = limit or (self.largest_whole_number() if number_type is np.int32 else 0)

        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            if integers:
                drawn = rng.integers(-limit, limit, count, np.int8, endpoint=True)
                return (drawn if share == 1 else drawn * (rng.random(count, np.float32) < share)).astype(number_type)
            if number_type is np.int32:
                return rng.integers(-largest, largest, count, np.int32, endpoint=True)
            return rng.standard_normal(count, np.float64 if number_type is np.float64 else np.float32)

        return {
            t.name: to_storage(
                draw_random([seed, zlib.crc32(f"{self}/{t.name}".encode())], t.shape, draw, number_type), t.dtype
            )
            for t in self.input_tensors()
        }

    def _small_whole_numbers(self) -> tuple[int, float]:
        """Return the largest integer of the run on small integers, and the share of inputs that are not set to zero.

        The sum of n products of integers within [-limit, limit] has a standard deviation of
        sqrt(n) * limit * (limit + 1) / 3; eight of them fit in the significand of bf16 or f16.
        """
        terms = max(1, self.reduction())
        limit = max(1, min(8, int((2.0**22 / terms) ** 0.5)))
        output = self.stored_outputs()
        if output not in ("bf16", "f16"):
            return limit, 1.0
        deviation = 1 / UNIT_ROUNDOFF[output] / 8 / math.sqrt(terms)
        while limit > 1 and limit * (limit + 1) / 3 > deviation:
            limit -= 1
        return limit, min(1.0, deviation / (limit * (limit + 1) / 3))

    def largest_whole_number(self) -> int:
        """Return the largest whole-number input with which no partial sum exceeds 2**31 - 1.

        A result has at most as many terms as are reduced, times the number of inputs; each is a product of `degree`
        inputs, or of two if the degree is unknown. Signs are random, so many terms sum to at most 8 times their square
        root: uniform numbers exceed that once in 10**40 sums. The sums are large enough to reveal an accumulator with
        16 bits, or with a float's 24 bits.
        """
        estimated_terms = max(1, self.reduction()) * len(self.inputs)
        largest_sum = min(estimated_terms, 8 * math.isqrt(estimated_terms) + 8)
        factors = max(1, 2 if self.degree is None else self.degree)
        return max(1, int((MAX_I32 // largest_sum) ** (1 / factors)))

    def reference_outputs(self, inputs: Arrays) -> Arrays:
        """Compute the reference and return its outputs by name, in float64, or in long double for f64 tensors."""
        return self.evaluated(self.widened(inputs))

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the scale of each element's tolerance.

        See `opbench.kernels.magnitude`. An operator overrides this if it knows the sizes of the terms that its
        reference adds or subtracts.
        """
        return magnitudes(self, self.widened(inputs))

    def widened(self, inputs: Arrays) -> Arrays:
        """Return stored inputs as float64, or as long doubles for f64 tensors.

        A reference must be more precise than the kernel that it judges. A long double has a significand of 64 bits on
        x86 and 113 on ARM under Linux, float64 has 53: its rounding is at most 2**-11 of the tolerance. Whole numbers
        of 32 bits, and sums that fit in 32 bits, are exact in float64.
        """
        dtypes = {t.name: t.dtype for t in self.input_tensors()}
        number_type = LONG_DOUBLE if self.storage == "f64" else "f8"
        return {
            n: by_pieces(a, functools.partial(from_storage, dtype=dtypes[n]), number_type) for n, a in inputs.items()
        }

    def evaluated(self, wide: Arrays) -> Arrays:
        """Compute the reference on float64 inputs; on the GPU if it takes long or the inputs are there."""
        on_host = all(isinstance(array, np.ndarray) for array in wide.values())
        result = compute_on_gpu(self.computed, wide) if on_host and self.flops() >= LONG_FLOPS else None
        return self.computed(**wide) if result is None else result

    def computed(self, **wide: np.ndarray) -> Arrays:
        """Compute the reference with NumPy or, for inputs on the GPU, with CuPy; return the outputs by name.

        Raises UsageError for an output of a wrong shape.
        """
        try:
            result = self.reference(**wide)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"{self.name}{self}: reference() fails with {type(error).__name__}: {error}; correct reference() at "
                "this line",
                self._reference_at(error),
                kind="reference-fails",
            ) from error
        if not isinstance(result, dict):
            result = {next(iter(self.outputs)): result}
        for tensor in self.output_tensors():
            shape = getattr(result.get(tensor.name), "shape", None)
            if shape != tensor.shape:
                actual = f"shape {shape}" if shape is not None else "no array"
                raise UsageError(
                    f"{self.name}{self}: reference() returns {actual} for '{tensor.name}', but outputs declares "
                    f"{tensor.shape}, '{self.outputs[tensor.name]}'; correct reference() or outputs",
                    self._reference_at(),
                    kind="other-shape",
                )
            if self.storage == tensor.dtype == "i32" and (largest := float(abs(result[tensor.name]).max())) > MAX_I32:
                raise UsageError(
                    f"{self.name}{self}: reference() returns {largest:g} for '{tensor.name}', which does not fit "
                    "into i32; draw smaller numbers in make_inputs(), or set degree to the number of inputs that one "
                    "product multiplies",
                    self._reference_at(),
                    kind="beyond-i32",
                    subject=tensor.name,
                    value=largest,
                )
        return result

    def _reference_at(self, error: BaseException | None = None) -> Location:
        """Return file and line of the reference, or of the statement in it that raised `error`."""
        code = inspect.unwrap(type(self).reference).__code__
        line, trace = code.co_firstlineno, error.__traceback__ if error else None
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code is code else line
            trace = trace.tb_next
        return Location(Path(code.co_filename), line)

    def __str__(self) -> str:
        shown_values = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING or value != field.default:
                shown_values.append(f"{field.name}={value}")
        return f"({','.join(shown_values)})"

    @classmethod
    def parse(cls, text: str) -> Operator:
        """Return the problem that prints as `text`, such as "(m=64,n=64,k=64)"."""
        return cls.from_axes(read_axes(text))

    @classmethod
    def from_axes(cls, axes: Mapping[str, object]) -> Operator:
        """Return the problem with these axes; raise UsageError for an unknown or missing axis."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for key in axes:
            if key not in fields:
                raise UsageError(unknown_name("axis", key, fields, place=cls.name))
        missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in axes]
        if missing:
            raise UsageError(
                f"{cls.name}: axis '{missing[0]}' has no value; add {missing[0]} to the problem, which needs "
                f"{', '.join(fields)}",
                kind="missing-axis",
                subject=missing[0],
                allowed=tuple(fields),
            )
        return cls(**axes)
