"""Provide standard headers for NVRTC, which has none: numbers and types of C, and C++ headers through libcu++.

A host-only header, such as <iostream>, is empty, because kernels cannot use it. C++ headers that a kernel can
use refer to `cuda::std` of the wheel nvidia-cuda-cccl.
"""

from __future__ import annotations

from collections.abc import Iterable

from opbench.source.device_part import is_host_header, substitute_header
from opbench.source.standard_names import STANDARD_NAMES
from opbench.source.tokens import words

COMMON = "opbench_standard.h"
"""The name of the header that `common_header` returns; every other one includes it."""
_INTEGERS = {"8": "char", "16": "short", "32": "int", "64": "long long"}
_LIMITS = {
    "CHAR_BIT": "8", "SCHAR_MAX": "127", "SCHAR_MIN": "(-128)", "UCHAR_MAX": "255", "CHAR_MAX": "127",
    "CHAR_MIN": "(-128)", "SHRT_MAX": "32767", "SHRT_MIN": "(-32768)", "USHRT_MAX": "65535",
    "INT_MAX": "2147483647", "INT_MIN": "(-2147483647 - 1)", "UINT_MAX": "4294967295u",
    "LONG_MAX": "9223372036854775807l", "LONG_MIN": "(-9223372036854775807l - 1)",
    "ULONG_MAX": "18446744073709551615ul",
    "LLONG_MAX": "9223372036854775807ll", "LLONG_MIN": "(-9223372036854775807ll - 1)",
    "ULLONG_MAX": "18446744073709551615ull", "SIZE_MAX": "18446744073709551615ul",
    "INT8_MAX": "127", "INT8_MIN": "(-128)", "UINT8_MAX": "255", "INT16_MAX": "32767", "INT16_MIN": "(-32768)",
    "UINT16_MAX": "65535", "INT32_MAX": "2147483647", "INT32_MIN": "(-2147483647 - 1)", "UINT32_MAX": "4294967295u",
    "INT64_MAX": "9223372036854775807ll", "INT64_MIN": "(-9223372036854775807ll - 1)",
    "UINT64_MAX": "18446744073709551615ull",
    "FLT_MAX": "3.402823466e+38f", "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f", "FLT_DIG": "6",
    "FLT_MANT_DIG": "24", "DBL_MAX": "1.7976931348623158e+308", "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-016", "DBL_DIG": "15", "DBL_MANT_DIG": "53",
    "INFINITY": "__int_as_float(0x7f800000)", "NAN": "__int_as_float(0x7fffffff)", "HUGE_VALF": "INFINITY",
    "HUGE_VAL": "__longlong_as_double(0x7ff0000000000000ll)",
    "M_E": "2.7182818284590452354", "M_LOG2E": "1.4426950408889634074", "M_LOG10E": "0.43429448190325182765",
    "M_LN2": "0.69314718055994530942", "M_LN10": "2.30258509299404568402", "M_PI": "3.14159265358979323846",
    "M_PI_2": "1.57079632679489661923", "M_PI_4": "0.78539816339744830962", "M_1_PI": "0.31830988618379067154",
    "M_2_PI": "0.63661977236758134308", "M_2_SQRTPI": "1.12837916709551257390", "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440", "EXIT_SUCCESS": "0", "EXIT_FAILURE": "1",
}  # fmt: skip
_C_STEMS = words("stdint stddef stdio stdlib string math float limits assert inttypes stdbool")
_C_HEADERS = frozenset(name for stem in _C_STEMS for name in (f"{stem}.h", f"c{stem}"))
_INCLUDED_BY_CUDA_H = ("stdlib.h", "stdint.h")
"""The headers that cuda.h includes."""
_MATH = words(
    """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma
    fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp lgamma llrint llround log log10 log1p log2 logb lrint
    lround modf nearbyint nextafter pow remainder remquo rint round scalbn signbit sin sinh sqrt tan tanh tgamma trunc
    acosf asinf atanf atan2f ceilf cosf coshf erff erfcf expf exp2f expm1f fabsf floorf fmaf fmaxf fminf fmodf hypotf
    logf log10f log1pf log2f powf rintf roundf sinf sinhf sqrtf tanf tanhf truncf
    """
)
"""NVRTC's built-in functions that C++ also has in namespace std."""
_CUB_HEADERS = words(
    """
    block/block_adjacent_difference block/block_discontinuity block/block_exchange block/block_histogram
    block/block_load block/block_merge_sort block/block_radix_rank block/block_radix_sort block/block_reduce
    block/block_run_length_decode block/block_scan block/block_shuffle block/block_store warp/warp_exchange
    warp/warp_load warp/warp_merge_sort warp/warp_reduce warp/warp_scan warp/warp_store thread/thread_load
    thread/thread_operators thread/thread_reduce thread/thread_scan thread/thread_store
    iterator/cache_modified_input_iterator util_type util_ptx
    """
)
"""The headers of CUB that kernels can use; <cub/cub.cuh> itself does not compile with NVRTC."""


def common_header() -> str:
    """Return the text of a header with integer types and limits; it redefines no limit."""
    lines = ["#pragma once"]
    for bits, name in _INTEGERS.items():
        signed = "signed char" if bits == "8" else name
        for prefix in ("", "_least", "_fast"):
            lines += [
                f"typedef {signed} int{prefix}{bits}_t;",
                f"typedef unsigned {name} uint{prefix}{bits}_t;",
            ]
    lines += ["typedef long long intptr_t, intmax_t;", "typedef unsigned long long uintptr_t, uintmax_t;"]
    lines += ["typedef unsigned int uint;", "typedef unsigned short ushort;", "typedef unsigned long ulong;"]
    lines += [f"#ifndef {name}\n#define {name} {value}\n#endif" for name, value in _LIMITS.items()]
    integers = [
        f"{sign}int{prefix}{bits}_t" for sign in ("", "u") for prefix in ("", "_least", "_fast") for bits in _INTEGERS
    ]
    using_declarations = [
        f"using ::{name};" for name in (*integers, "intptr_t", "uintptr_t", "size_t", "ptrdiff_t", *sorted(_MATH))
    ]
    # cuda::std defines the same limits with other expressions.
    return "\n".join(["#pragma nv_diag_suppress 47", *lines, f"namespace std {{ {' '.join(using_declarations)} }}", ""])


def headers(names: Iterable[str]) -> dict[str, str]:
    """Return the texts of the standard headers among these names, and of the headers that they include."""
    texts: dict[str, str] = {}
    requested = dict.fromkeys(names)
    for name in [*requested, *(_INCLUDED_BY_CUDA_H if "cuda.h" in requested else ())]:
        if name in STANDARD_NAMES:
            inner = " ".join(f"using ::cuda::std::{word};" for word in STANDARD_NAMES[name].split())
            texts[name] = (
                f'#pragma once\n#include "{COMMON}"\n#include <cuda/std/{name}>\nnamespace std {{ {inner} }}\n'
            )
        elif name in _C_HEADERS or (is_host_header(name) and not substitute_header(name)):
            texts[name] = f'#pragma once\n#include "{COMMON}"\n'
        elif name == "cub/cub.cuh":
            texts[name] = "".join(f"#include <cub/{header}.cuh>\n" for header in sorted(_CUB_HEADERS))
    if texts:
        texts[COMMON] = common_header()
    return texts
