"""Lines of instructions, read from the module itself: from every compiler, of inlined code, and once a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.emulator import CpuBackend, lines
from support.builders.on_cpu import Tracer, compilers, floats

INLINED = """\
__device__ __forceinline__ float inner(const float* a, int i) {
  return a[i];  // inner
}
__device__ __forceinline__ float outer(const float* a, int i) {
  return 2.0f * inner(a, i + 1);
}
extern "C" __global__ void k(const float* a, const float4* b, float* out) {
  const int i = threadIdx.x;
  out[i] = outer(a, i);
  out[i + 32] = __ldg(b + i).x;  // shim
  atomicAdd(&out[i + 64], 1.0f);  // atomic
}"""


@pytest.mark.parametrize("compiler", compilers())
def test_the_innermost_line_of_the_users_code(
    compiler: str,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPBENCH_CXX", compiler)
    tracer = Tracer(tmp_path, CpuBackend(cache))
    traffic = tracer.clean(INLINED, 1, 32, floats(33), floats(128), floats(96)).traffic
    assert {Path(entry.file).name for entry in traffic.lines} == {"kernel.cu"}
    places = {(entry.kind, entry.width): entry.line for entry in traffic.lines if entry.kind != "store"}
    inner, shim, atomic = map(tracer.line, ("inner", "shim", "atomic"))
    assert places == {("load", 4): inner, ("load", 16): shim, ("atomic", 4): atomic}
    monkeypatch.setenv("PATH", "")  # no tool helps
    lines._table.cache_clear()
    found = tracer.only(INLINED, 1, 32, floats(32), floats(128), floats(96))
    assert (found.kind, found.line, Path(found.file)) == ("out_of_bounds", inner, tmp_path / "kernel.cu")


def test_a_module_is_read_once(tmp_path: Path, cache: Path) -> None:
    tracer = Tracer(tmp_path, CpuBackend(cache))
    lines._table.cache_clear()
    for _ in range(3):
        tracer.clean(INLINED, 1, 32, floats(33), floats(128), floats(96))
    assert lines._table.cache_info().misses == 1


def test_addresses_of_no_function_have_no_line(tmp_path: Path, cache: Path) -> None:
    tracer = Tracer(tmp_path, CpuBackend(cache))
    tracer.clean(INLINED, 1, 32, floats(33), floats(128), floats(96))
    module = next(cache.glob("kernel-traced-*.so"))
    assert lines.source_lines(module, {0, 1 << 40}) == {0: lines.UNKNOWN_POSITION, 1 << 40: lines.UNKNOWN_POSITION}
