"""elementwise: sum, difference, product or quotient of two arrays, or an activation with its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from opbench import (
    UNIT_ROUNDOFF,
    Arrays,
    Gradient,
    Operator,
    UsageError,
    by_pieces,
    from_storage,
    passed_on,
    to_storage,
    vector_width,
)

DEGREES = {"add": 1, "sub": 1, "mul": 2, "div": 0, "add_relu": 1, "abs": 1, "leaky_relu": 1}
ARITHMETIC = ("add", "sub", "mul", "div", "add_relu")
BROADCASTS = ("none", "channel", "inner", "scalar", "outer_inner")
GATES = {"swiglu": "silu", "geglu": "gelu"}
"""For each gated activation, the function of its first input."""
BACKWARD = "_backward"
SPREAD = np.float32(3.0)
"""Factor of an activation's random inputs, so that few of them reach both tails and each piece of a definition."""
UNDERFLOW = 2.0**-101
"""Size that allows an error of 2**-122: kernels may replace numbers below 2**-126 by 0, and then multiply by x."""


# Activations ------------------------------------------------------------------------------------------------------


class Activation(NamedTuple):
    """An activation f and its derivative at some x; a size is the sum of the sizes of the terms of f and of x f'.

    If a definition subtracts, as 1 + tanh(u) does for a negative u, the sizes are those before the subtraction.
    """

    value: np.ndarray
    size: np.ndarray
    slope: np.ndarray
    slope_size: np.ndarray


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _silu(x: np.ndarray) -> Activation:
    """The derivative is s (1 + x (1 - s)), where s is the sigmoid."""
    s, t, size = _sigmoid(x), _sigmoid(-x), np.abs(x)
    slopes = s * (1 + size + 3 * size * t + size**2 * t * np.abs(t - s))
    return Activation(x * s, size * s * (2 + size * t), s + x * s * t, slopes)


def _gelu_tanh(x: np.ndarray) -> Activation:
    """0.5 x (1 + tanh(u)) is x s, where s is the sigmoid of w = 2 u."""
    double, cubic = 2 * math.sqrt(2 / math.pi), 0.044715
    near = np.clip(x, -1e3, 1e3)  # beyond, s is 0 or 1, and only its products with infinity are not
    w, w1, w2 = (
        double * (x + cubic * near**2 * x),
        double * (1 + 3 * cubic * near**2),
        double * 6 * cubic * np.abs(near),
    )
    s, t, size = _sigmoid(w), _sigmoid(-w), np.abs(near)
    whole, first = np.maximum(s, t), s * t * w1  # 0.5 (1 + |tanh(u)|), and the derivative of s
    lost = 0.25 * size * w1 * (1 + (s - t) ** 2)
    slopes = whole + lost + 3 * size * first + size**2 * (first * np.abs(t - s) * w1 + s * t * w2)
    return Activation(x * s, np.abs(x) * (whole + s + size * first), s + near * first, slopes)


LARGEST, CENTRE = 26.0, 3.75
"""Beyond LARGEST float64's exp(-z**2) is 0; z is mapped to (z - CENTRE) / (z + CENTRE)."""
LAST = (LARGEST - CENTRE) / (LARGEST + CENTRE)


def _scaled_erfc(mapped: np.ndarray) -> np.ndarray:
    """(1 + 2 z) exp(z**2) erfc(z), which is smooth, for z mapped to -1 to 1."""
    t = -1.0 + (mapped + 1.0) * (LAST + 1.0) / 2.0
    z = CENTRE * (1.0 + t) / (1.0 - t)
    return np.array([(1.0 + 2.0 * v) * math.exp(v * v) * math.erfc(v) for v in z])


COEFFICIENTS = chebyshev.chebinterpolate(_scaled_erfc, 28)
"""NumPy has no erf. The mapping is that of Shepherd and Laframboise, Mathematics of Computation 36 (1981)."""


def _normal(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The standard normal's cumulative distribution and density."""
    z = np.minimum(np.abs(x) / math.sqrt(2), LARGEST + 2.0)
    t = (np.minimum(z, LARGEST) - CENTRE) / (np.minimum(z, LARGEST) + CENTRE)
    scaled, bell = chebyshev.chebval(2.0 * (t + 1.0) / (LAST + 1.0) - 1.0, COEFFICIENTS), np.exp(-z * z)
    tail = 0.5 * bell * scaled / (1.0 + 2.0 * z)
    return np.where(x > 0, 1.0 - tail, tail), bell / math.sqrt(2 * math.pi)


def _gelu(x: np.ndarray) -> Activation:
    share, density = _normal(x)
    near, whole = np.clip(x, -1e3, 1e3), np.maximum(share, 1.0 - share)  # 0.5 (1 + |erf|)
    bell = np.abs(near) * density
    slopes = (
        whole + share + bell * (3 + near**2)
    )  # share: CUDA's normcdff alone errs by up to 5 units in the last place
    return Activation(x * share, np.abs(x) * (whole + share + bell), share + near * density, slopes)


def _logistic(x: np.ndarray) -> Activation:
    s, t, size = _sigmoid(x), _sigmoid(-x), np.minimum(np.abs(x), 1e3)
    return Activation(s, s * (1 + size * t), s * t, s * (1 + size * t))


def _tanh(x: np.ndarray) -> Activation:
    value, size = np.tanh(x), np.minimum(np.abs(x), 1e3)
    slope = 4 * _sigmoid(2 * x) * _sigmoid(-2 * x)
    return Activation(value, np.abs(value) + size * slope, slope, 1 + value**2 + 2 * size * slope)


def _leaky_relu(x: np.ndarray) -> Activation:
    slope = np.where(x > 0, 1.0, 0.01)
    return Activation(x * slope, 2 * np.abs(x) * slope, slope, slope)


def _exponential_unit(x: np.ndarray, alpha: float, scale: float) -> Activation:
    below, size = np.minimum(x, 0.0), np.minimum(np.abs(x), 1e3)
    value = scale * np.where(x > 0, x, alpha * np.expm1(below))
    slope = scale * np.where(x > 0, 1.0, alpha * np.exp(below))
    value_size = np.where(x > 0, 2 * np.abs(value), scale * alpha + slope * (1 + size))
    return Activation(value, value_size, slope, slope * np.where(x > 0, 1.0, 1.0 + size))


def _elu(x: np.ndarray) -> Activation:
    return _exponential_unit(x, 1.0, 1.0)


def _selu(x: np.ndarray) -> Activation:
    """With the constants of Klambauer and others, "Self-normalizing neural networks" (2017)."""
    return _exponential_unit(x, 1.6732632423543772, 1.0507009873554805)


def _softplus(x: np.ndarray) -> Activation:
    value, s, size = np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))), _sigmoid(x), np.minimum(np.abs(x), 1e3)
    return Activation(value, value + np.abs(x) * s, s, s * (1 + size * _sigmoid(-x)))


def _softsign(x: np.ndarray) -> Activation:
    share = 1.0 / (1.0 + np.abs(x))
    return Activation(x * share, 2 * np.abs(x) * share, share**2, 3 * share**2)


def _hardswish(x: np.ndarray) -> Activation:
    """The derivative has a step at -3 and 3, where it is 0 and 1."""
    share, inside = np.clip(x + 3.0, 0.0, 6.0) / 6.0, ~(np.abs(x) >= 3.0)
    slope = np.where(inside, x / 3.0 + 0.5, x > 0)
    near = np.where(inside, x, 0.0)
    return Activation(
        x * share, np.abs(x) * 2 * share + near**2 / 6.0, slope, np.where(inside, np.abs(near) / 3.0 + 0.5, slope)
    )


def _hardsigmoid(x: np.ndarray) -> Activation:
    share, inside = np.clip(x + 3.0, 0.0, 6.0) / 6.0, np.abs(x) < 3.0
    slope = np.where(inside, 1.0 / 6.0, 0.0)
    return Activation(share, share + np.where(inside, np.abs(x), 0.0) / 6.0, slope, slope)


def _hardtanh(x: np.ndarray) -> Activation:
    value, slope = np.clip(x, -1.0, 1.0), np.where(np.abs(x) < 1.0, 1.0, 0.0)
    return Activation(value, np.abs(value), slope, slope)


def _exp(x: np.ndarray) -> Activation:
    value = np.exp(x)
    size = value * (1 + np.minimum(np.abs(x), 1e3))
    return Activation(value, size, value, size)


def _abs(x: np.ndarray) -> Activation:
    value, slope = np.abs(x), (x > 0) * 1.0 - (x < 0)  # 0 for NaN, as in PyTorch
    return Activation(value, value, slope, np.abs(slope))


ACTIVATIONS: dict[str, Callable[[np.ndarray], Activation]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": _logistic,
    "tanh": _tanh,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": _selu,
    "softplus": _softplus,
    "softsign": _softsign,
    "hardswish": _hardswish,
    "hardsigmoid": _hardsigmoid,
    "hardtanh": _hardtanh,
    "exp": _exp,
    "abs": _abs,
}
FORWARD = (*ACTIVATIONS, *GATES)


# The operator -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Elementwise(Operator):
    """out[o,c,i] = a[o,c,i] op b, where `broadcast` gives the axes of b.

    b is b[o,c,i] ("none"), b[c] ("channel"), b[i] ("inner"), b[0] ("scalar") or b[o,i] ("outer_inner").
    "add_relu" is the sum, or 0 where that is below 0, as after a residual connection. An `op` such as "gelu" is a
    function f of a alone, as PyTorch defines it with its default parameters: out = f(a). "gelu_backward" is its
    gradient: out = b f'(a), where b is the gradient of f(a). "swiglu" is silu(a) b, and "geglu" is gelu(a) b.
    "swiglu_backward" and "geglu_backward" give both gradients: out = dout b f'(a) and db = dout f(a). All of these need
    broadcast "none". `dtype` stores all arrays.
    """

    outer: int
    channels: int
    inner: int
    op: str = "add"
    broadcast: str = "none"
    dtype: str = "f32"

    choices = {
        "op": (*ARITHMETIC, *FORWARD, *(name + BACKWARD for name in FORWARD)),
        "broadcast": BROADCASTS,
        "dtype": ("f32", "bf16", "i32", "f64"),
    }
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the axes of each input: b has those along which it is not broadcast, and a function has no b."""
        full = "outer channels inner"
        if self.is_gated and self.is_backward:
            return {"a": full, "b": full, "dout": full}
        if self.function and not self.is_gated and not self.is_backward:
            return {"a": full}
        return {"a": full, "b": self._axes_of_b}

    @property
    def _axes_of_b(self) -> str:
        """Return the axes of b."""
        own = {"channel": "channels", "inner": "inner", "scalar": "1", "outer_inner": "outer inner"}
        return own.get(self.broadcast, "outer channels inner")

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the axes of out and, for the gradient of a gated activation, of db."""
        full = "outer channels inner"
        return {"out": full, "db": full} if self.is_gated and self.is_backward else {"out": full}

    @property
    def function(self) -> str:
        """Return the name of the activation that `op` applies or differentiates; empty for arithmetic."""
        name = self.op.removesuffix(BACKWARD)
        return GATES.get(name, name if name in ACTIVATIONS else "")

    @property
    def is_gated(self) -> bool:
        """Return whether the activation is multiplied by a second input."""
        return self.op.removesuffix(BACKWARD) in GATES

    @property
    def is_backward(self) -> bool:
        """Return whether the operator is the gradient of an activation."""
        return self.op.endswith(BACKWARD)

    @property
    def special_inputs(self) -> Mapping[str, Sequence[str]]:
        """Return an activation's special inputs: zeros, far from 0, NaN; infinities if the reference is not NaN."""
        if not self.function:
            return {}
        infinite = () if self.is_gated or self.is_backward else ("infinite",)
        return {"a": ("zeros", "far", *infinite, "nan")}

    @property
    def degree(self) -> int | None:
        """Return the polynomial degree of the output in both inputs together; None for other functions."""
        return DEGREES.get(self.op)

    @property
    def integers_exact(self) -> bool:
        """Return whether whole inputs have whole outputs: not for quotients and most activations."""
        return self.op in ("add", "sub", "mul", "add_relu", "abs", "hardtanh")

    def validate(self) -> None:
        """Refuse an activation that is broadcast, or of whole numbers or float64."""
        if self.function and self.broadcast != "none":
            raise UsageError(
                f"{self.name}: broadcast={self.broadcast} is not allowed with op={self.op}; use broadcast=none",
                kind="not-allowed",
                subject="broadcast",
                value=self.broadcast,
                allowed=("none",),
            )
        if self.function and self.dtype not in ("f32", "bf16"):
            raise UsageError(
                f"{self.name}: dtype={self.dtype} is not allowed with op={self.op}; use dtype=f32 or dtype=bf16",
                kind="not-allowed",
                subject="dtype",
                value=self.dtype,
                allowed=("f32", "bf16"),
            )

    @property
    def elements(self) -> int:
        """Return the number of elements of a and of out."""
        return self.outer * self.channels * self.inner

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that does not cross what b is broadcast along."""
        if self.broadcast in ("none", "scalar"):
            return vector_width(self.dtype)  # the last elements are processed one by one
        return vector_width(
            self.dtype, self.channels if self.broadcast == "channel" and self.inner == 1 else self.inner
        )

    def flops(self) -> int:
        """Return one FLOP per element; an activation counts eight per result: exponential, quotient, sums, products."""
        return (8 * len(self.outputs) if self.function else 1) * self.elements

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Return the gradients of an activation or quotient or product; none for a divisor or a broadcast input."""
        if not wanted or self.is_backward:
            return []
        if self.function:
            backward = {**self.axes, "op": self.op + BACKWARD}
            if not self.is_gated:
                return [Gradient(self.name, backward, {"a": "a", "b": "d.out"}, {"out": "d.a"})]
            if "a" not in wanted:  # that of b is f(a) times the output's
                return [Gradient(self.name, self.axes, {"a": "a", "b": "d.out"}, {"out": "d.b"})]
            given = {"out": "d.a", **({"db": "d.b"} if "b" in wanted else {})}
            return [Gradient(self.name, backward, {"a": "a", "b": "b", "dout": "d.out"}, given)]
        found: list[Gradient] = []
        passed = "d.out"
        if self.op == "add_relu":  # 0 where the sum was clipped
            passed, axes = "out.masked", {"n": self.elements, "dtype": self.dtype}
            found.append(Gradient("relu_backward", axes, {"out": "out", "dout": "d.out"}, {"dx": passed}))
        if "a" in wanted:
            if self.op in ("add", "sub", "add_relu"):
                found += passed_on(passed, "d.a")
            else:  # out = a * b or a / b: the same is done to the gradient
                found.append(Gradient(self.name, self.axes, {"a": "d.out", "b": "b"}, {"out": "d.a"}))
        return [*found, *(self._gradient_of_b(passed) if "b" in wanted else ())]

    def _gradient_of_b(self, passed: str) -> Sequence[Gradient]:
        """Return the gradient of b, from that of the sum if there is one; none for a divisor or a difference."""
        if self.broadcast == "none" and self.op in ("add", "add_relu"):
            return passed_on(passed, "d.b")
        if self.broadcast == "none" and self.op == "mul":
            return [Gradient(self.name, self.axes, {"a": "d.out", "b": "a"}, {"out": "d.b"})]
        axes = self._sums_of_b() if self.op in ("add", "mul") else {}
        if not axes:
            return []
        terms, found = "d.out", []
        if self.op == "mul":
            terms = "out.product"
            product = {**self.axes, "broadcast": "none"}
            found.append(Gradient(self.name, product, {"a": "d.out", "b": "a"}, {"out": terms}))
        return [*found, Gradient("reduce", {**axes, "dtype": self.dtype}, {"x": terms}, {"out": "d.b"})]

    def _sums_of_b(self) -> dict[str, int]:
        """Return the axes of the sum, over all elements with one b, that is b's gradient; none for several sums."""
        if self.broadcast in ("inner", "scalar"):
            inner = self.inner if self.broadcast == "inner" else 1
            return {"outer": 1, "axis": self.elements // inner, "inner": inner}
        if self.broadcast == "channel" and 1 in (self.outer, self.inner):
            if self.outer == 1:
                return {"outer": self.channels, "axis": self.inner, "inner": 1}
            return {"outer": 1, "axis": self.outer, "inner": self.channels}
        return (
            {"outer": self.outer, "axis": self.channels, "inner": self.inner} if self.broadcast == "outer_inner" else {}
        )

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return random inputs; no divisor is nearer to 0 than 1/2, and no whole divisor is 0.

        The input of an activation has three times the spread.
        """
        arrays = super().make_inputs(seed, integers)
        if self.function and not integers:
            arrays["a"] = to_storage(from_storage(arrays["a"], self.dtype) * SPREAD, self.dtype)
        if self.op == "div":
            divisor = from_storage(arrays["b"], self.dtype)
            if self.dtype == "i32":
                divisor = np.fmod(divisor, 1000)  # two numbers of one size have hardly any quotient but 0 and 1
                divisor[divisor == 0] = 1
            else:
                divisor = divisor + np.copysign(divisor.dtype.type(0.5), divisor)
            arrays["b"] = to_storage(divisor, self.dtype)
        return arrays

    def reference(self, a: np.ndarray, **others: np.ndarray) -> Arrays | np.ndarray:
        """Compute arithmetic with NumPy, and activations by their definitions."""
        if self.function:
            return self._applied("value", "slope", a, **others)
        return self._calculated(a, **others)

    def _calculated(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.broadcast == "channel":
            b = b.reshape(-1, 1)
        elif self.broadcast == "outer_inner":
            b = b.reshape(self.outer, 1, self.inner)
        if self.op == "add":
            return a + b
        if self.op == "sub":
            return a - b
        if self.op == "mul":
            return a * b
        if self.op == "add_relu":
            return np.maximum(a + b, 0)
        return np.trunc(a / b) if self.dtype == "i32" else a / b

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """On absolute values, and of a difference their sum; of an activation the terms' sizes, and what underflows."""
        wide = self.widened(inputs)
        if self.function:
            others = {name: np.abs(array) for name, array in wide.items() if name != "a"}
            sizes = self._applied("size", "slope_size", wide["a"], **others)
            if self.dtype == "bf16":  # the error of float32's arithmetic, and one rounding of the result
                share = 8 * UNIT_ROUNDOFF["f32"] / self.tolerance("f32").elementwise
                results = self._applied("value", "slope", wide["a"], **others)
                sizes = {name: np.abs(results[name]) + share * size for name, size in sizes.items()}
            return {name: np.nan_to_num(size, nan=0.0, posinf=0.0) + UNDERFLOW for name, size in sizes.items()}
        wide = {name: np.abs(array) for name, array in wide.items()}
        return {"out": self._calculated(wide["a"], -wide["b"] if self.op == "sub" else wide["b"])}

    def _applied(
        self, value: str, slope: str, a: np.ndarray, b: np.ndarray | float = 1.0, dout: np.ndarray | None = None
    ) -> Arrays:
        """The results from two fields of Activation, which is evaluated in pieces that the caches hold."""

        def field(name: str) -> np.ndarray:
            return by_pieces(a, lambda piece: getattr(ACTIVATIONS[self.function](piece), name), "f8")

        with np.errstate(all="ignore"):
            if not self.is_backward:
                return {"out": field(value) * b}
            if dout is None:
                return {"out": field(slope) * b}
            return {"out": field(slope) * b * dout, "db": field(value) * dout}

    @classmethod
    def all_examples(cls, dtypes: Iterable[str]) -> list[Operator]:
        """Return the examples, and for i32 and f64 those of arithmetic in that dtype: activations have neither."""
        own = cls.examples()
        plain = [p for p in own if not p.function and p.dtype == "f32"]
        return [*own, *(p.stored_as(dtype) for dtype in dtypes if dtype in ("i32", "f64") for p in plain)]

    @classmethod
    def examples(cls) -> Sequence[Elementwise]:
        """Every operation, broadcast and dtype, with lengths that vectors divide and that none does."""
        shapes = [(1, 1, 1), (2, 3, 16), (3, 7, 13), (5, 16, 1), (33, 24, 1), (1, 5, 1031), (2, 8, 48)]
        found = []
        for i, shape in enumerate(shapes):
            for j, broadcast in enumerate(BROADCASTS):
                dtype = ("f32", "bf16")[(i + j) % 2]
                axes = dict(zip(("outer", "channels", "inner"), shape, strict=True))
                op = ARITHMETIC[(i + j // 2) % len(ARITHMETIC)]
                found.append(cls(**axes, op=op, broadcast=broadcast, dtype=dtype))
        for i, op in enumerate(cls.choices["op"][len(ARITHMETIC) :]):
            for j, dtype in enumerate(("f32", "bf16")):
                found.append(cls(outer=1, channels=1, inner=(1031, 2048, 5, 4103)[(i + j) % 4], op=op, dtype=dtype))
        return found
