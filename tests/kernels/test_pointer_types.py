"""Element types of pointer parameters compared with the tensors': mistakes are named, raw bits and vectors accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.pointer_types import PointerMismatch, pointer_mismatches
from opbench.kernels.tensors import Tensor
from opbench.source.sources import include_closure
from support.common import CATALOG, ROOT, kernel_variants

pytestmark = pytest.mark.usefixtures("forked_workers")

CASES = ROOT / "tests" / "kernels" / "cases"


def found(
    folder: Path, text: str, dtype: str, kernel: str = "k", macros: dict[str, str] | None = None
) -> list[PointerMismatch]:
    path = folder / "own.cu"
    path.write_text(text)
    launch = KernelLaunch(kernel, (1, 1, 1), (1, 1, 1), 0, ("x", 4))
    return pointer_mismatches(include_closure(path), launch, {"x": Tensor("x", (4,), dtype)}, macros or {})


def with_parameter(parameter: str, before: str = "", body: str = "") -> str:
    return f"{before}\n__global__ void k({parameter}, int n) {{ {body} }}\n"


MISTAKEN = {
    "int of float": ("int* x", "", "f32", "int"),
    "double of float": ("const double* __restrict__ x", "", "f32", "double"),
    "half of float": ("const __half* x", "", "f32", "__half"),
    "half2 of float": ("half2* x", "", "f32", "half2"),
    "float of bf16": ("float const* x", "", "bf16", "float"),
    "half of bf16": ("half* x", "", "bf16", "half"),
    "bf16 of half": ("const __nv_bfloat16 *x", "", "f16", "__nv_bfloat16"),
    "float of an index": ("const float* x", "", "i32", "float"),
    "long long of an index": ("const long long* x", "", "i32", "long long"),
    "int64_t of an index": ("const int64_t* x", "", "i32", "int64_t"),
    "int of bytes": ("int* x", "", "u8", "int"),
    "an array of double": ("double x[]", "", "f32", "double"),
    "double2": ("const double2* x", "", "f32", "double2"),
    "a typedef": ("const real* x", "typedef double real;", "f32", "double"),
    "a using": ("real* x", "using real = const double;", "f32", "double"),
    "a typedef of a typedef": ("real2_t* x", "typedef double real; typedef real real2_t;", "f32", "double"),
    "a macro": ("REAL* x", "#define REAL double  // of both", "f32", "double"),
    "a pointer behind a macro": ("const REAL* KEEP x", "#define REAL int\n#define KEEP __restrict__", "f32", "int"),
    "unsigned of bytes": ("unsigned* x", "", "u8", "unsigned"),
}  # fmt: skip
ACCEPTED = {
    "float": ("const float* __restrict__ x", "", "f32"),
    "float4": ("const float4* x", "", "f32"),
    "float2 by a typedef": ("vec* x", "typedef float2 vec;", "f32"),
    "bytes": ("const char* x", "", "f32"),
    "uint8_t": ("uint8_t* x", "", "bf16"),
    "void": ("const void* x", "", "f16"),
    "uint4": ("const uint4* x", "", "bf16"),
    "int4 of half": ("const int4* x", "", "f16"),
    "unsigned of float": ("unsigned* x", "", "f32"),
    "unsigned short of bf16": ("const unsigned short* x", "", "bf16"),
    "uint16_t of half": ("uint16_t* x", "", "f16"),
    "half2": ("half2* x", "", "f16"),
    "two bf16": ("const __nv_bfloat162* x", "", "bf16"),
    "unsigned of an index": ("const unsigned int* x", "", "i32"),
    "uint32_t of an index": ("const uint32_t* x", "", "i32"),
    "bool of bytes": ("const bool* x", "", "u8"),
    "a type of no file here": ("const scalar_t* x", "", "f32"),
    "a structure": ("Pixel* x", "struct Pixel { double a; };", "f32"),
    "a member type": ("const typename Traits<float>::type* x", "", "f32"),
    "a typedef of two branches": ("real* x", "#if D\ntypedef int real;\n#else\ntypedef float real;\n#endif", "f32"),
    "a pointer to pointers": ("double** x", "", "f32"),
    "a default": ("const float* x = nullptr", "", "f32"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_another_element_type_is_named(tmp_path: Path, name: str) -> None:
    parameter, before, dtype, written = MISTAKEN[name]
    (one,) = found(tmp_path, with_parameter(parameter, before), dtype)
    assert (one.parameter, one.written, one.tensor, one.dtype) == ("x", written, "x", dtype)
    assert one.line == 2 + before.count("\n") and one.file.endswith("own.cu")


@pytest.mark.parametrize("name", ACCEPTED)
def test_raw_bits_vectors_and_unknown_types_are_accepted(tmp_path: Path, name: str) -> None:
    parameter, before, dtype = ACCEPTED[name]
    assert found(tmp_path, with_parameter(parameter, before), dtype) == []


TEMPLATE = "template <typename T, int TILE = 4, class U = double> __global__ void k(const {}* x, int n) {{}}"


@pytest.mark.parametrize(
    ("parameter", "kernel", "dtype", "written"),
    [
        ("T", "k<float>", "f32", ""),
        ("T", "k<double, 8>", "f32", "double"),
        ("T", "k<__half>", "f32", "__half"),
        ("T", "k<__half>", "f16", ""),
        ("T", "ops::k<float, 4>", "bf16", "float"),
        ("U", "k<float, 4>", "f32", "double"),
        ("U", "k<float, 4, float>", "f32", ""),
        ("T", "k<unsigned int>", "f32", ""),
        ("T", "k<long long>", "i32", "long long"),
    ],
)
def test_template_arguments_are_followed(tmp_path: Path, parameter: str, kernel: str, dtype: str, written: str) -> None:
    assert [one.written for one in found(tmp_path, TEMPLATE.format(parameter), dtype, kernel)] == [written] * bool(
        written
    )


def test_macros_of_the_header_are_followed(tmp_path: Path) -> None:
    text = with_parameter("const TYPE* x")
    assert [one.written for one in found(tmp_path, text, "f32", macros={"TYPE": "double"})] == ["double"]
    assert found(tmp_path, text, "f32", macros={"TYPE": "float"}) == []


@pytest.mark.parametrize(
    "body",
    [
        "float v = __int_as_float(x[0]);",
        "atomicMax(x, __float_as_int(1.0f));",
        "float* f = reinterpret_cast<float*>(x);",
        "float f = *(float*)x;",
        "float f; memcpy(&f, x, 4);",
    ],
)
def test_integers_whose_bits_are_reinterpreted_are_accepted(tmp_path: Path, body: str) -> None:
    assert found(tmp_path, with_parameter("int* x", body=body), "f32") == []
    assert len(found(tmp_path, with_parameter("int* x"), "f32")) == 1


def test_two_definitions_or_another_count_of_parameters_say_nothing(tmp_path: Path) -> None:
    twice = with_parameter("double* x") + "__global__ void k(float* x, int n, int m) {}"
    assert found(tmp_path, twice, "f32") == []
    assert found(tmp_path, "__global__ void k(double* x) {}", "f32") == []
    branches = "__global__ void\n#if D\nk(double* x, int n) {\n#else\nk(float* x, int n) {\n#endif\n}\n"
    assert found(tmp_path, branches, "f32") == []


SHIPPED = kernel_variants()


@pytest.mark.parametrize("operator", CATALOG.operator_names())
def test_shipped_kernels_point_to_their_tensors(operator: str) -> None:
    for variant in (v for v in SHIPPED if v.operator == operator):
        for problem in CATALOG.operator(operator).examples():
            config = next((c for c in variant.configs if variant.unmet_requirement(problem, c) is None), None)
            if config is None:
                continue
            case = Case(variant, config, problem)
            tensors = {t.name: t for t in (*problem.input_tensors(), *problem.output_tensors())}
            for launch in case.launches(8):
                if launch.kernel:
                    assert pointer_mismatches(variant.sources, launch, tensors, dict(case.request().macros)) == [], (
                        case.name
                    )


RELU = """\
// /// opbench
// operator = "relu"
// launch = [{{ kernel = "k", grid = ["cdiv(n, 64)"], block = ["64"] }}]
// ///
__global__ void k(const {0}* x, {0}* out, int n) {{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = x[i] > ({0})0 ? x[i] : ({0})0;
}}
"""


@pytest.mark.parametrize("kind", ["int", "double", "long long", "short", "half"])
def test_a_check_says_the_type_before_everything_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "own.cu"
    path.write_text(("#include <cuda_fp16.h>\n" if kind == "half" else "") + RELU.format(kind))
    results = [r for r in api.check([path], problems=["(n=1000)"], cpu_only=True) if r.status != "right"]
    if kind == "int":  # the sign and the order of floats above 0 are those of integers: it is right
        assert results == []
        return
    (result,) = results
    assert result.verdict and result.verdict.findings[0].rule == "pointer-type"
    assert f"parameter 'x' is {kind}*, and relu's x is f32" in result.reason


def test_a_sum_of_integers_is_named_as_one() -> None:
    results = api.check([CASES / "sums_integers.cu"], problems=["(n=1000)", "(n=31)"], cpu_only=True)
    assert {r.status for r in results} == {"wrong"}
    firsts = [r.verdict.findings[:2] for r in results if r.verdict]
    assert {(f.rule, f.buffer, f.line) for two in firsts for f in two} == {
        ("pointer-type", "out", 5), ("pointer-type", "x", 5),
    }  # fmt: skip
