"""elementwise: sum, difference, product or quotient of two arrays; the second is broadcast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Gradient, Operator, from_storage, passed_on, to_storage

DEGREES = {"add": 1, "sub": 1, "mul": 2, "div": 0}


@dataclass(frozen=True, kw_only=True)
class Elementwise(Operator):
    """out[o,c,i] = a[o,c,i] op b, where b is b[o,c,i] ("none"), b[c] ("channel"), b[i] ("inner") or b[0] ("scalar").

    `dtype` stores all arrays.
    """

    outer: int
    channels: int
    inner: int
    op: str = "add"
    broadcast: str = "none"
    dtype: str = "f32"

    choices = {
        "op": ("add", "sub", "mul", "div"),
        "broadcast": ("none", "channel", "inner", "scalar"),
        "dtype": ("f32", "bf16", "i32", "f64"),
    }
    outputs = {"out": "outer channels inner"}
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """The second array's axes are those along which it is not broadcast."""
        full = "outer channels inner"
        return {"a": full, "b": {"none": full, "channel": "channels", "inner": "inner", "scalar": "1"}[self.broadcast]}

    @property
    def degree(self) -> int:
        """Of the inputs together."""
        return DEGREES[self.op]

    @property
    def integers_exact(self) -> bool:
        """Quotients are not whole."""
        return self.op != "div"

    @property
    def elements(self) -> int:
        """Of a and of out."""
        return self.outer * self.channels * self.inner

    @property
    def lanes(self) -> int:
        """Elements of the longest vector of up to 16 bytes that does not cross what b is broadcast along."""
        lanes = 8 if self.dtype == "bf16" else 4
        if self.broadcast in ("none", "scalar"):
            return lanes  # the last elements are treated one by one
        run = self.channels if self.broadcast == "channel" and self.inner == 1 else self.inner
        while run % lanes:
            lanes //= 2
        return lanes

    def flops(self) -> int:
        """One per element."""
        return self.elements

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Of sums and products, for what is not broadcast, and of what is divided."""
        found: list[Gradient] = []
        if "a" in wanted:
            if self.op in ("add", "sub"):
                found += passed_on("d.out", "d.a")
            else:  # out = a * b or a / b: the same is done to the gradient
                found.append(Gradient(self.name, self.axes, {"a": "d.out", "b": "b"}, {"out": "d.a"}))
        if "b" in wanted and self.broadcast == "none":
            if self.op == "add":
                found += passed_on("d.out", "d.b")
            elif self.op == "mul":
                found.append(Gradient(self.name, self.axes, {"a": "d.out", "b": "a"}, {"out": "d.b"}))
        return found

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but no divisor is nearer to 0 than 1/2, and no whole one is 0."""
        arrays = super().make_inputs(seed, integers)
        if self.op == "div":
            divisor = from_storage(arrays["b"], self.dtype)
            if self.dtype == "i32":
                divisor = np.fmod(divisor, 1000)  # two numbers of one size have hardly any quotient but 0 and 1
                divisor[divisor == 0] = 1
            else:
                divisor = divisor + np.copysign(divisor.dtype.type(0.5), divisor)
            arrays["b"] = to_storage(divisor, self.dtype)
        return arrays

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """NumPy's own."""
        b = b.reshape(-1, 1) if self.broadcast == "channel" else b
        if self.op == "add":
            return a + b
        if self.op == "sub":
            return a - b
        if self.op == "mul":
            return a * b
        return np.trunc(a / b) if self.dtype == "i32" else a / b

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """On absolute values, and of a difference their sum."""
        wide = {name: np.abs(array) for name, array in self.widened(inputs).items()}
        return {"out": self.reference(wide["a"], -wide["b"] if self.op == "sub" else wide["b"])}

    @classmethod
    def examples(cls) -> Sequence[Elementwise]:
        """Every operation, broadcast and dtype, with lengths that vectors divide and that none does."""
        shapes = [(1, 1, 1), (2, 3, 16), (3, 7, 13), (5, 16, 1), (33, 24, 1), (1, 5, 1031), (2, 8, 48)]
        found = []
        for i, shape in enumerate(shapes):
            for j, broadcast in enumerate(cls.choices["broadcast"]):
                dtype = ("f32", "bf16")[(i + j) % 2]
                axes = dict(zip(("outer", "channels", "inner"), shape, strict=True))
                found.append(cls(**axes, op=cls.choices["op"][(i + j // 2) % 4], broadcast=broadcast, dtype=dtype))
        return found
