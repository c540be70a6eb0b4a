"""Errors of a header or a launch carry the line that they are about: the kernel's, else the header's."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from opbench import api
from opbench.checking.binding import allocate, bind
from opbench.emulator import CpuBackend
from opbench.errors import CompileError, LaunchError, Location, OpbenchError, UsageError, with_location
from opbench.kernels.case import Case
from opbench.kernels.header import read_variants
from support.common import CATALOG

pytestmark = pytest.mark.usefixtures("forked_workers")

LAUNCH = 'launch   = [{ kernel = "k", grid = ["cdiv(n, 256)"], block = ["256"] }]'
KERNEL = "__global__ void __launch_bounds__(256)\nk(const float* x, float* out, int n) {"
FILE = f"""// /// opbench
// operator = "relu"
// title    = "launches of k, of out and of x"
// {LAUNCH}
// constants = {{ table = {{ f32 = [1] }} }}
// ///
// __global__ void k( in a comment is none
__constant__ float table[1];
const char* said = "__global__ void k(";
extern "C" {KERNEL}
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table[0] * fmaxf(x[i], 0.0f);
}}
"""
DECLARED = 11

CASES = {
    "threads": (('["256"] }', '["2048"] }'), DECLARED, LaunchError),
    "bounds": (('["256"] }', '["512"] }'), DECLARED, LaunchError),
    "grid": (('["cdiv(n, 256)"]', '["0"]'), DECLARED, LaunchError),
    "shared": (('["256"] }', '["256"], shared = "999999" }'), DECLARED, LaunchError),
    "cluster": (('["256"] }', '["256"], cluster = ["32"] }'), DECLARED, LaunchError),
    "count": ((", int n)", ", int n, int m)"), DECLARED, LaunchError),
    "type": ((", int n)", ", float n)"), DECLARED, LaunchError),
    "wide": (('["256"] }', '["256"], args = ["x", "out", "n * 4294967296"] }'), DECLARED, LaunchError),
    "misnamed": (('kernel = "k"', 'kernel = "kk"'), 4, CompileError),
    "unknown name": (("cdiv(n, 256)", "cdiv(m, 256)"), 4, UsageError),
    "an argument": (('["256"] }', '["256"], args = ["x",\n// "out",\n// "q"] }'), 6, UsageError),
    "filled": (("launch   = [", 'launch   = [{ zero = "q" }, '), 4, UsageError),
    "second launch": (('["256"] }', '["256"] },\n// { zero = "q" }'), 5, UsageError),
    "constant": (("f32 = [1]", "f32 = [1, 2]"), 5, LaunchError),
    "no constant": (("constants = { table", "constants = { tables"), 5, CompileError),
}


def fault(path: Path) -> OpbenchError:
    """The error of one case of a file."""
    (variant,) = read_variants(path)
    case = Case(variant, {}, CATALOG.operator("relu").parse("(n=300)"))
    backend = CpuBackend()
    tensors = [*case.problem.input_tensors(), *case.problem.output_tensors()]
    with pytest.raises(OpbenchError) as caught:
        bind(backend, case, allocate(backend, tensors))
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_an_error_carries_its_line(name: str, tmp_path: Path) -> None:
    (old, new), line, kind = CASES[name]
    assert FILE.count(old) == 1 and FILE.splitlines()[DECLARED - 1].startswith("k(")
    path = tmp_path / "mine.cu"
    path.write_text(FILE.replace(old, new))
    error = fault(path)
    assert (type(error), error.location) == (kind, Location(path, line))


def test_an_error_of_a_case_prints_its_location_first(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(FILE.replace('["256"] }', '["2048"] }'))
    (result,) = api.check([path], backend="cpu", problems=["(n=300)"], cpu_only=True)
    assert result.status == "failed" and result.reason.startswith(f"{path}:{DECLARED}: ")


def test_without_the_fault_it_is_right(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(FILE)
    (result,) = api.check([path], backend="cpu", problems=["(n=300)"], cpu_only=True)
    assert result.status == "right", result.reason


TABLES = """// /// opbench
// operator = "relu"
// where = ["A > 0"]
// tune.A = [1]
// launch = [{ kernel = "k", grid = ["1"], block = ["1"] }]
//
// [variant.first]
// title = "1"
//
// [variant.second]
// title = "2"
// where = ["A > 0",
//   "A < 9"]
// define.B = "A"
// launch = [
//   { zero = "out" },
//   { kernel = "k", grid = ["2"], block = ["1"] },
// ]
// ///
__global__ void k(const float* x, float* out, int n) {}
"""


@pytest.mark.parametrize(
    ("name", "key", "line"),
    [
        ("first", ("launch", 0, "grid", 0), 5),
        ("second", ("launch", 1, "grid", 0), 17),
        ("second", ("launch", 0, "cluster"), 16),
        ("first", ("where", 0), 3),
        ("second", ("where", 0), 3),
        ("second", ("where", 2), 13),
        ("second", ("tune", "A"), 4),
        ("second", ("define", "B"), 14),
        ("first", ("title",), 8),
        ("second", ("supports", "mode"), 10),
    ],
)
def test_a_variant_finds_its_own_lines_first(name: str, key: tuple[str | int, ...], line: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(TABLES)
    (variant,) = (one for one in read_variants(path) if one.name == name)
    assert variant.location(*key) == Location(path, line)


def test_the_innermost_location_stays() -> None:
    inner, outer = Location(Path("a.cu"), 3), Location(Path("b.cu"), 4)
    with pytest.raises(LaunchError) as caught, with_location(lambda: outer), with_location(lambda: inner):
        raise LaunchError("too many threads")
    assert caught.value.location == inner


def test_a_location_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(CompileError("no kernel", Location(Path("a.cu"), 3))))
    assert (type(error), error.message, error.location) == (CompileError, "no kernel", Location(Path("a.cu"), 3))
