"""CUDA text run and traced on the cpu backend, and the compilers for it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.backend.base import Trace, TraceOptions
from opbench.backend.findings import Finding
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.launch import BuildRequest, Dim3, KernelLaunch
from opbench.kernels.tensor_map import ELEMENT_BYTES, TensorMap
from opbench.kernels.variant import Variant
from support.common import CATALOG, kernel_variants

TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "int32": "i32", "uint32": "u32", "uint16": "u16"}


TYPES |= {"int64": "i64", "uint8": "u8"}

ADD = """\
extern "C" __global__ void k(const float* a, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i];  // here
}"""

UNINITIALISED = """\
extern "C" __global__ void k(float* out, int n) {
  __shared__ float tile[64];
  if (threadIdx.x < n) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x];  // here
}"""

STRIDED = """\
extern "C" __global__ void k(const float* a, float* out, int n, int stride) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[(long long)i * stride];
}"""


def described(kind: str, dims: Sequence[int], box: Sequence[int] = (), **rest: object) -> TensorMap:
    """A map of a dense tensor unless strides are given."""
    size = ELEMENT_BYTES[kind]
    dense = tuple(size * prod(dims[: axis + 1]) for axis in range(len(dims) - 1))
    known = {"strides": dense, "element_strides": (1,) * len(dims)} | rest
    named = {"name": "map", "tensor": "memory", "type": kind, "dims": tuple(dims), "box": tuple(box)}
    return TensorMap(**(named | known))  # type: ignore[arg-type]


class Bench:
    """Compiles CUDA text and runs one kernel of it on NumPy arrays, in place."""

    def __init__(self, folder: Path, backend: CpuBackend) -> None:
        self.folder = folder
        self.backend = backend
        self.findings: list[Finding] = []
        self.damage: dict[str, int | None] = {}

    def request(self, text: str, *kernels: str, name: str = "kernel", **macros: str) -> BuildRequest:
        """Write the text to a file and describe its build."""
        source = self.folder / f"{name}.cu"
        source.write_text(text)
        return BuildRequest(source, kernels, tuple(macros.items()))

    def run(
        self,
        text: str,
        kernel: str,
        grid: Dim3,
        block: Dim3,
        *args: Any,
        shared: int = 0,
        name: str = "kernel",
        cooperative: bool = False,
        **macros: str,
    ) -> None:
        """Launch once; arrays are copied in and out, numbers passed as they are."""
        program = self.backend.load(self.request(text, kernel, name=name, **macros))
        arrays = {f"arg{i}": value for i, value in enumerate(args) if isinstance(value, np.ndarray)}
        buffers = {key: self.backend.allocate(key, a.shape, TYPES[a.dtype.name]) for key, a in arrays.items()}
        for key, array in arrays.items():
            buffers[key].write(array)
        launch_args = tuple(f"arg{i}" if f"arg{i}" in arrays else value for i, value in enumerate(args))
        program.bind([KernelLaunch(kernel, grid, block, shared, launch_args, cooperative=cooperative)], buffers)()
        self.findings = self.backend.synchronize()
        self.damage = {key: buffer.changed_guard_offset() for key, buffer in buffers.items()}
        for key, array in arrays.items():
            array[...] = buffers[key].read()
        self.backend.free(buffers)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Launch, and demand that nothing was found."""
        self.run(*args, **kwargs)
        assert self.findings == []
        assert set(self.damage.values()) <= {None}


def zig() -> str:
    """The compiler of the ziglang package, else an empty string."""
    found = importlib.util.find_spec("ziglang")
    folder = next(iter(found.submodule_search_locations or [""]), "") if found else ""
    return f"{folder}/zig c++" if folder else ""


def compilers() -> list[Any]:
    """Every kind of compiler that the cpu backend knows, those that are not here to be skipped."""
    commands = {"gcc": shutil.which("g++"), "clang": shutil.which("clang++"), "zig": zig()}
    absent = {name: pytest.mark.skipif(not command, reason=f"no {name}") for name, command in commands.items()}
    return [pytest.param(command or "", id=name, marks=absent[name]) for name, command in commands.items()]


class Tracer:
    """Traces one kernel of CUDA text on NumPy arrays; `// here` and `// there` mark lines that tests name."""

    def __init__(self, folder: Path, backend: CpuBackend) -> None:
        self.folder = folder
        self.backend = backend
        self.text = ""

    def line(self, mark: str) -> int:
        """The line that ends in `// mark`."""
        return next(i for i, line in enumerate(self.text.splitlines(), 1) if line.endswith(f"// {mark}"))

    def run(
        self,
        text: str,
        grid: int | Dim3,
        block: int | Dim3,
        *args: Any,
        shared: int = 0,
        kernel: str = "k",
        unwritten: tuple[int, ...] = (),
        options: TraceOptions = TraceOptions(),  # noqa: B008 (frozen)
        **macros: str,
    ) -> Trace:
        """Trace once; arrays are copied in and out, those at the positions `unwritten` left poisoned."""
        self.text = text
        source = self.folder / "kernel.cu"
        source.write_text(text)
        arrays = {f"arg{i}": a for i, a in enumerate(args) if isinstance(a, np.ndarray)}
        buffers = {key: self.backend.allocate(key, a.shape, TYPES[a.dtype.name]) for key, a in arrays.items()}
        for i, (key, array) in enumerate(arrays.items()):
            if i not in unwritten:
                buffers[key].write(array)
        launch_args = tuple(f"arg{i}" if f"arg{i}" in arrays else value for i, value in enumerate(args))
        launch = KernelLaunch(kernel, _three(grid), _three(block), shared, launch_args)
        request = BuildRequest(source, (kernel,), tuple(macros.items()))
        trace = self.backend.trace(request, [launch], buffers, options)
        for key, array in arrays.items():
            array[...] = buffers[key].read()
        self.backend.free(buffers)
        return trace

    def only(self, *args: Any, **kwargs: Any) -> Finding:
        """Trace, and return the one finding."""
        found = self.run(*args, **kwargs).findings
        assert len(found) == 1, found
        return found[0]

    def clean(self, *args: Any, **kwargs: Any) -> Trace:
        """Trace, and demand that nothing is found."""
        trace = self.run(*args, **kwargs)
        assert trace.findings == (), trace.findings
        assert trace.completed
        return trace


def _three(size: int | Dim3) -> Dim3:
    return (size, 1, 1) if isinstance(size, int) else size


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


CUDA = kernel_variants()


def smallest(variant: Variant, backend: CpuBackend, count: int) -> list[Case]:
    """The smallest examples that some config of the variant runs, with the first such config."""
    examples = sorted(CATALOG.operator(variant.operator).examples(), key=lambda p: (p.bytes(), p.flops()))
    for config in variant.configs:
        cases = [Case(variant, config, problem) for problem in examples]
        runs = [c for c in cases if c.unmet_requirement() is None and backend.unsupported_reason(c.request()) is None]
        if runs:
            return runs[:count]
    return []
