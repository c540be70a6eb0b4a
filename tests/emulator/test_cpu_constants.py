"""Stores into __constant__ memory are found; constants that are read, or filled before the launch, are right."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.emulator.ptx import constant_variables
from support.builders.on_cpu import Tracer, compilers, floats


@pytest.fixture(params=compilers())
def compiler(request: pytest.FixtureRequest) -> str:
    return str(request.param)


DECLARED = [
    "__constant__ float table[4];",
    "static __constant__ float table[4];",
    "__constant__ float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};",
    "float __constant__ table[4];",
    "extern __constant__ float table[4];\n__constant__ float table[4];",
    "#define CONSTANT __constant__\nCONSTANT float other, table[4];",
    "__constant__ const float weights[2] = {1.0f, 2.0f};\n__constant__ float table[4];",
    "namespace { __constant__ __align__(16) float table[4]; }",
    "namespace tables { __constant__ float table[4]; }\nusing tables::table;",
]
KERNEL = """
extern "C" __global__ void k(float* out, float* also) {
  STORE;  // here
  out[threadIdx.x] = table[threadIdx.x % 4];
}"""
STORES = [
    "table[threadIdx.x] = 1.0f",
    "atomicAdd(&table[threadIdx.x % 4], 1.0f)",
    "memset(table, 0, sizeof table)",
    "*(float*)(threadIdx.x == 3 ? table : also) = 1.0f",
]


@pytest.mark.parametrize("declared", DECLARED)
def test_a_store_is_found_however_the_variable_is_declared(tracer: Tracer, declared: str) -> None:
    found = tracer.run(declared + KERNEL, 1, 4, floats(4), floats(4), STORE=STORES[0]).findings
    assert {(f.kind, f.line, f.buffer) for f in found} == {("constant_store", tracer.line("here"), "table")}
    tracer.clean(declared + KERNEL, 1, 4, floats(4), floats(4), STORE="also[threadIdx.x] = 1.0f")


@pytest.mark.parametrize("store", STORES[1:])
def test_every_way_to_store_is_found(tracer: Tracer, store: str) -> None:
    found = tracer.run(DECLARED[0] + KERNEL, 1, 4, floats(4), floats(4), STORE=store).findings
    assert ("constant_store", tracer.line("here"), "table") in {(f.kind, f.line, f.buffer) for f in found}


def test_a_device_variable_may_be_written(tracer: Tracer) -> None:
    out = floats(4)
    tracer.clean("__constant__ int n = 3;\n__device__ float table[4];" + KERNEL, 1, 4, out, floats(4), STORE=STORES[0])
    np.testing.assert_array_equal(out, 1)


def test_names_of_constants() -> None:
    mark = "__attribute__((opb_constant))"
    text = f"{mark} static const Pair<float, 3> a[2][N], b;\n{mark} int c = f(1, 2);\nextern {mark} S d;\nint e;"
    assert constant_variables(text) == ["a", "b", "c", "d"]
