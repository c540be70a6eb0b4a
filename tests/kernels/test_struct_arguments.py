"""Structures that kernels take by value: laid out as C does, as large as the kernel's, filled with these buffers."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench import api
from opbench.errors import LaunchError, UsageError
from opbench.gpu.driver.memory import DeviceArray, MovableArray
from opbench.gpu.driver.program import _c_value
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.scalar import Scalar, Struct, element_bytes
from opbench.shipping.launching import _argument_text
from support.checks.errors import refuses

pytestmark = pytest.mark.usefixtures("forked_workers")

C_TYPES = {
    "bool": ctypes.c_bool, "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16, "u16": ctypes.c_uint16,
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip
ADDRESS = 0x7F12_3456_7890
FIELD = st.one_of(
    st.just("x"),
    st.integers(-9, 9),
    st.sampled_from([0.5, -2.0]),
    st.builds(Scalar, st.sampled_from(sorted(C_TYPES)), st.just(1)),
)


@given(st.lists(FIELD, min_size=1, max_size=9))
def test_fields_lie_where_c_puts_them(fields: list[str | int | float | Scalar]) -> None:
    def kind(field: object) -> type:
        if isinstance(field, Scalar):
            return C_TYPES[field.type]
        return {str: ctypes.c_uint64, int: ctypes.c_int32, float: ctypes.c_float}[type(field)]

    class Wanted(ctypes.Structure):
        _fields_ = tuple((f"f{number}", kind(field)) for number, field in enumerate(fields))

    wanted = Wanted()
    for number, field in enumerate(fields):
        value = field.value if isinstance(field, Scalar) else ADDRESS if isinstance(field, str) else field
        setattr(wanted, f"f{number}", value)
    found = Struct(tuple(fields)).packed(lambda name: ADDRESS)
    assert len(found) == ctypes.sizeof(Wanted)
    seen = Wanted.from_buffer_copy(found)
    assert [getattr(seen, f"f{n}") for n in range(len(fields))] == [
        getattr(wanted, f"f{n}") for n in range(len(fields))
    ]


KERNEL = """// /// opbench
// operator = "relu"
// title = "a structure by value"
// launch = [{ kernel = "shaped", grid = ["cdiv(n, 128)"], block = ["128"], args = [ARGS] }]
// ///
struct Params {
    int n;
    const float* in;
    float floor;
    float* out;
    long long size;
    unsigned char flag;
};
__global__ void shaped(Params p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n && i < p.size && p.flag == 3) p.out[i] = p.in[i] > p.floor ? p.in[i] : p.floor;
}
"""
RIGHT = '{ struct = ["n", "x", { f32 = 0.0 }, "out", { i64 = "n" }, { u8 = 3 }] }'


def checked(path: Path, arguments: str) -> list[str]:
    path.write_text(KERNEL.replace("ARGS", arguments))
    results = api.check([path], random_shapes=1, cpu_only=True)
    return sorted({result.reason or result.status for result in results})


def test_a_kernel_gets_its_structure(tmp_path: Path) -> None:
    assert checked(tmp_path / "shaped.cu", RIGHT) == ["right"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (RIGHT.replace(', { i64 = "n" }', ""), "has 40 bytes; the kernel's parameter has 48 (pointers 8"),
        ('"x"', "has the type pointer, but the kernel's parameter has the type struct; write { struct = … }"),
        ('"n"', "has the type int, but the kernel's parameter has the type struct; write { struct = … }"),
        (RIGHT.replace("u8 = 3", "u8 = 300"), "{ u8 = 300 }: 300 is outside the range of u8"),
        (RIGHT.replace("{ u8 = 3 }", '{ struct = ["n"] }'), "a struct in a struct is not allowed"),
        ("{ struct = [] }", 'write the structure\'s fields as { struct = ["x", "n", { f32 = 1.0 }] }'),
        (RIGHT.replace('"x"', '"y"'), "unknown name 'y'"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(tmp_path: Path, arguments: str, said: str) -> None:
    try:
        reason = checked(tmp_path / "shaped.cu", arguments)[0]
    except UsageError as error:
        reason = str(error)
    assert said in reason and "shaped.cu:" in reason


def test_on_a_gpu_it_holds_the_buffers_addresses() -> None:
    launch = KernelLaunch("k", (1, 1, 1), (1, 1, 1), 0, (Struct(("x", 7)),))
    assert launch.buffers() == {"x"}
    array = DeviceArray(None, "x", (4,), np.dtype("f4"), 0x1000)
    value = _c_value(launch.args[0], launch, {"x": array}, 16)
    assert bytes(value) == (0x1000).to_bytes(8, "little") + (7).to_bytes(4, "little") + bytes(4)
    moving = MovableArray(None, "x", (4,), np.dtype("f4"), ctypes.c_uint64(0x1000))
    with refuses("fixed-address", "k", value="x", error=LaunchError):
        _c_value(launch.args[0], launch, {"x": moving}, 16)


def test_one_with_fields_of_one_type_is_shipped() -> None:
    assert (
        _argument_text(Struct((Scalar("i64", 7), Scalar("i64", -1))), 16)
        == "Fields<int64_t, 2>{{int64_t(7), int64_t(-1)}}"
    )
    assert _argument_text(Struct((7, -1)), 8) == "Fields<int, 2>{{int(7), int(-1)}}", "plain whole numbers are C's int"


@pytest.mark.parametrize("fields", [("x", 7), (Scalar("i64", 7), Scalar("u32", 7)), (Scalar("bf16", 1.0),)])
def test_another_is_not_shipped(fields: tuple[Any, ...]) -> None:
    with refuses("structure"):
        _argument_text(Struct(fields), 16)


def test_an_element_of_8_bits_takes_a_whole_number_that_is_given_as_a_float() -> None:
    assert element_bytes(np.dtype(np.int8), -3.0) == b"\xfd"
    assert element_bytes(np.dtype(np.uint8), 3.0) == b"\x03"
