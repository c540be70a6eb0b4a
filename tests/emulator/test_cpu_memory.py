"""Where the system refuses memory, the cpu backend raises an environment fault; it never goes on with half a check."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import TraceOptions
from opbench.emulator import CpuBackend
from opbench.emulator.build import KernelBuilder
from opbench.errors import EnvironmentFault
from opbench.gpu.limits.products import PRODUCTS
from support.builders.hopper_kernels import launched, module
from support.builders.on_cpu import Tracer, floats
from support.checks.errors import refuses

MOST_REQUESTS = 400
RACY = """\
__device__ int total;
__device__ unsigned char bytes[64];
extern "C" __global__ void k(const float* a, float* out, int n) {
  __shared__ float part[64];
  __shared__ unsigned flag;
  if (threadIdx.x == 0) flag = 0;
  part[threadIdx.x] = a[threadIdx.x];
  bytes[threadIdx.x] = 1;
  __syncthreads();
  __threadfence_block();
  atomicAdd(&flag, 1u);
  if (threadIdx.x < n) out[64 * blockIdx.x + threadIdx.x] = part[63 - threadIdx.x];
  __threadfence();
  atomicAdd((int*)out + 128, 1);
  total += blockIdx.x;  // race
}"""


def trace_racy(backend: CpuBackend, folder: Path) -> set[tuple[str, int]]:
    tracer = Tracer(folder, backend)
    options = TraceOptions(limits=replace(PRODUCTS["h200"].limits, sm_count=4))
    found = tracer.run(RACY, 2, 64, floats(64), floats(129), 64, options=options).findings
    return {(f.kind, f.line) for f in found} - {
        ("block_race", tracer.line("race")),
        ("global_race", tracer.line("race")),
    }


def trace_hopper(name: str) -> Callable[[CpuBackend, Path], set[tuple[str, int]]]:
    def trace(backend: CpuBackend, folder: Path) -> set[tuple[str, int]]:
        launches, buffers = launched(name, backend)
        found = {(f.kind, f.line) for f in backend.trace(module(), launches, buffers).findings}
        backend.load(module()).bind(launches, buffers)()
        found |= {(f.kind, f.line) for f in backend.synchronize()}
        backend.free(buffers)
        return found

    return trace


TRACES = {"racy": trace_racy, **{name: trace_hopper(name) for name in ("right_multiply", "right_copy", "right_pair")}}


def refuse_each_request(name: str) -> None:
    """Refuse the first request for memory, then the second, and so on, until a run makes fewer requests."""
    with tempfile.TemporaryDirectory() as folder:
        backend = CpuBackend(Path(os.environ["KERNELS"]), workers=1)
        refuse = backend._runtime.library.opb_refuse_memory
        for number in range(1, MOST_REQUESTS):
            refuse(number)
            try:
                found = TRACES[name](backend, Path(folder))
            except EnvironmentFault as fault:
                assert "bytes more" in str(fault)
                continue
            refuse(0)
            assert found == set(), found
            print(number - 1)
            return
    raise AssertionError("requests without end")


@pytest.mark.parametrize("name", TRACES)
def test_no_refused_request_goes_unsaid(name: str, cache: Path) -> None:
    here = Path(__file__).parent
    script = f"import test_cpu_memory; test_cpu_memory.refuse_each_request({name!r})"
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}", "KERNELS": str(cache)}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) >= 15


def test_the_next_case_is_judged_again(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(int* out) {\n  out[0] += threadIdx.x;  // here\n}'
    refuse = tracer.backend._runtime.library.opb_refuse_memory
    refuse(3)
    with refuses("memory-short", error=EnvironmentFault):
        tracer.run(text, 1, 64, np.zeros(1, np.int32))
    refuse(0)
    assert tracer.run(text, 1, 64, np.zeros(1, np.int32)).findings[0].kind == "global_race"


BLOCKS_RACE = """\
// /// opbench
// operator = "copy"
// launch   = [{ kernel = "probe", grid = ["min(n, 2000)"], block = [1] }]
// ///
__device__ int total;
__global__ void probe(const float* x, float* out, int n) {
    for (int k = blockIdx.x; k < n; k += gridDim.x) out[k] = x[k];
    total += blockIdx.x;
}
"""


def test_a_limit_of_memory_is_never_taken_for_a_right_kernel(tmp_path: Path) -> None:
    """A race that the shadow of 4.5 million floats takes 250 MB to find."""
    file = tmp_path / "racy.cu"
    file.write_text(BLOCKS_RACE)
    command = [sys.executable, "-m", "opbench", "check", str(file), "--problem", "(n=4500000)", "--cpu-only"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}

    def ended(limit_bytes: int) -> subprocess.CompletedProcess[str]:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=120, preexec_fn=limit
        )

    outcomes = {megabytes: ended(megabytes << 20) for megabytes in (700, 850, 4000)}
    assert [answer.returncode for answer in outcomes.values()] == [3, 3, 1]
    assert all("not enough memory" in outcomes[megabytes].stderr for megabytes in (700, 850))
    assert "block-race" in outcomes[4000].stdout


def test_a_compiler_without_memory(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "cc1plus: out of memory allocating 65536 bytes after a total of 3145728 bytes"
    monkeypatch.setattr(KernelBuilder, "_call", lambda *_: subprocess.CompletedProcess([], 1, "", said))
    text = 'extern "C" __global__ void k(int* out) { out[1] = 7654; }'
    with refuses("memory-short", error=EnvironmentFault):
        tracer.run(text, 1, 64, np.zeros(2, np.int32))


READ_BEFORE_THE_FIRST_WRITE = """\
extern "C" __global__ void k(int* most, const int* x, int* out) {{
  const int seen = most[0];  // there
  {barrier}
  if (threadIdx.x == 63 && seen < x[63]) most[0] = x[63];  // here
  out[threadIdx.x] = seen;
}}"""


@pytest.mark.parametrize(("barrier", "kinds"), [("", {"global_race"}), ("__syncthreads();", set())])
def test_reads_before_the_first_write_of_an_initialised_buffer_are_known(
    tracer: Tracer, barrier: str, kinds: set[str]
) -> None:
    text = READ_BEFORE_THE_FIRST_WRITE.format(barrier=barrier)
    arrays = [np.zeros(1, np.int32), np.arange(64, dtype=np.int32), np.zeros(64, np.int32)]
    found = tracer.run(text, 1, 64, *arrays, unwritten=(2,)).findings
    assert {f.kind for f in found} == kinds
    assert all(f.line == tracer.line("here") and str(tracer.line("there")) in f.message for f in found)
