"""What only a GPU can show: guards, limits, death of a kernel, cold caches and held streams."""

from __future__ import annotations

import ctypes
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opbench.errors import LaunchError
from opbench.gpu.compile import nvrtc
from opbench.gpu.driver import CudaBackend, device_key, why_missing
from opbench.gpu.driver.clock import CudaClock
from opbench.gpu.driver.memory import GUARD_BYTES
from opbench.gpu.limits.occupancy import occupancy
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensors import DTYPES
from opbench.timing.sampling import TimingOptions, measure
from support.builders.gpu_kernels import KERNELS, NAMES

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> BuildRequest:
    """The kernels above."""
    source = tmp_path_factory.mktemp("kernels") / "device.cu"
    source.write_text(KERNELS)
    return BuildRequest(source, NAMES)


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    """The GPU, opened once."""
    return CudaBackend()


@pytest.fixture(scope="module")
def clock(backend: CudaBackend) -> Iterator[CudaClock]:
    """Its clock."""
    yield backend.clock()


def launch(
    kernel: str, args: tuple[str | int | float, ...], grid: int = 1, block: int = 32, shared: int = 0
) -> KernelLaunch:
    """A one-dimensional launch."""
    return KernelLaunch(kernel, (grid, 1, 1), (block, 1, 1), shared, args)


def test_environment(backend: CudaBackend) -> None:
    found = backend.environment()
    assert found.sm_count > 0 and found.l2_bytes and found.memory_bytes and found.memory_bytes > 1e9
    assert found.uuid.startswith("GPU-") and found.uuid in device_key()
    if found.driver is not None:  # with nvidia-ml-py, the handle found by UUID answers
        assert found.power_limit_w and found.max_sm_clock_hz and found.max_sm_clock_hz > 1e8


def test_round_trip_and_float_argument(backend: CudaBackend, request_: BuildRequest) -> None:
    buffer = backend.allocate("a", (3, 5), "f32")
    assert np.isnan(buffer.read()).all()
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    buffer.write(values)
    backend.load(request_).bind([launch("half_scale", ("a", 15, 0.5))], {"a": buffer})()
    assert backend.synchronize() == []
    assert (buffer.read() == values / 2).all()
    backend.free({"a": buffer})


@pytest.mark.parametrize("offset", [-1, -7, -GUARD_BYTES, 70, 75, 70 + GUARD_BYTES - 1])
def test_guard_bands_see_one_byte(backend: CudaBackend, request_: BuildRequest, offset: int) -> None:
    buffer = backend.allocate("a", (35,), "f16")
    assert buffer.changed_guard_offset() is None
    program = backend.load(request_)
    program.bind([launch("poke", ("a", 0, 1), block=1), launch("poke", ("a", 69, 1), block=1)], {"a": buffer})()
    assert buffer.changed_guard_offset() is None, "writes inside are no damage"
    program.bind([launch("poke", ("a", offset, 1), block=1)], {"a": buffer})()
    assert buffer.changed_guard_offset() == offset
    backend.free({"a": buffer})


@pytest.mark.parametrize(("size", "dtype"), [(1, "f32"), (5, "f16"), (4099, "f16"), (1_000_003, "f32")])
def test_a_fingerprint_stands_for_the_content_alone(
    backend: CudaBackend, request_: BuildRequest, size: int, dtype: str
) -> None:
    values = np.arange(size).astype(DTYPES[dtype])
    one, two = (backend.allocate(name, (size,), dtype) for name in "ab")
    one.write(values)
    two.write(values)
    seen = {one.fingerprint(), two.fingerprint()}
    assert len(seen) == 1
    for offset in {0, values.nbytes // 2, values.nbytes - 1}:
        backend.load(request_).bind([launch("poke", ("a", offset, 0x5A))], {"a": one})()
        assert one.fingerprint() not in seen
        seen.add(one.fingerprint())
    backend.free({"a": one, "b": two})


def test_zero_step(backend: CudaBackend, request_: BuildRequest) -> None:
    buffer = backend.allocate("a", (1001,), "f32")
    zero = KernelLaunch("", (0, 0, 0), (0, 0, 0), 0, (), zero="a")
    backend.load(request_).bind([zero], {"a": buffer})()
    assert not buffer.read().any() and buffer.changed_guard_offset() is None
    backend.free({"a": buffer})


def test_launch_limits(backend: CudaBackend, request_: BuildRequest) -> None:
    buffer = backend.allocate("a", (4096,), "f32")
    program = backend.load(request_)

    def refusal(step: KernelLaunch) -> str:
        with pytest.raises(LaunchError) as caught:
            program.bind([step], {"a": buffer})
        return str(caught.value)

    assert "a block of 2048 threads is too large; use at most 1024 threads" in refusal(
        launch("bounded", ("a",), block=2048)
    )
    assert "this kernel can run with at most 128" in refusal(launch("bounded", ("a",), block=256))
    assert "takes 1 arguments of 8 bytes; the launch passes 2" in refusal(launch("bounded", ("a", 1)))
    assert "shared memory" in refusal(launch("through_shared", ("a", 1), shared=10**6))
    backend.free({"a": buffer})


def test_more_shared_memory_than_48_kib(backend: CudaBackend, request_: BuildRequest) -> None:
    nbytes = backend.limits.shared_per_block
    assert nbytes > 48 * 1024
    buffer = backend.allocate("a", (64,), "f32")
    step = launch("through_shared", ("a", nbytes // 4 - 1), block=64, shared=nbytes)
    backend.load(request_).bind([step], {"a": buffer})()
    assert backend.synchronize() == []
    assert (buffer.read() == np.arange(64) + 1).all()
    backend.free({"a": buffer})


DIES = """
import sys
from pathlib import Path
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.gpu.driver import CudaBackend
from opbench.errors import LaunchError
backend, kernel = CudaBackend(), sys.argv[2]
buffers = {"a": backend.allocate("a", (64,), "f32")}
program = backend.load(BuildRequest(Path(sys.argv[1]), (kernel,)))
program.bind([KernelLaunch(kernel, (1, 1, 1), (1, 1, 1), 0, ("a",))], buffers)()
try:
    backend.synchronize()
except LaunchError as error:
    backend.free(buffers)
    print(error)
"""


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("illegal", "illegal address"),
        ("misaligned", "misaligned address"),
        ("trap", "launch failed|illegal instruction"),
    ],
)
def test_a_kernel_that_dies_says_how(request_: BuildRequest, kernel: str, kind: str) -> None:
    command = [sys.executable, "-c", DIES, str(request_.source), kernel]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert re.search(f"({kind}) in {kernel} ", done.stdout), done.stdout + done.stderr


def test_resources_agree_with_the_compiler(backend: CudaBackend, request_: BuildRequest) -> None:
    program = backend.load(request_)
    arch = nvrtc.architecture(backend._device.capability, request_)
    compiled = nvrtc.compile_cubin(request_, arch).resources
    for kernel in NAMES:
        seen, said = program.resources[kernel], compiled[kernel]
        # The driver counts its reserved kilobyte as static shared memory in some versions, hence no equality.
        assert seen.registers == said.registers and seen.local_bytes == said.local_bytes, kernel
        assert seen.shared_bytes in (said.shared_bytes, said.shared_bytes + 1024), kernel
    assert program.resources["bounded"].max_threads_per_block == 128


@pytest.mark.parametrize("threads", [32, 96, 128, 512, 1024])
@pytest.mark.parametrize("dynamic", [0, 10_000, 40_000])
def test_occupancy_agrees_with_the_driver(
    backend: CudaBackend, request_: BuildRequest, threads: int, dynamic: int
) -> None:
    program = backend.load(request_)
    ask = backend._device.driver.unchecked("cuOccupancyMaxActiveBlocksPerMultiprocessor")
    for kernel in ("copy", "hungry"):
        static, answer = program.resources[kernel], ctypes.c_int()
        function = program._functions[kernel]
        assert ask(ctypes.byref(answer), function, ctypes.c_int(threads), ctypes.c_size_t(dynamic)) == 0
        ours = occupancy(backend.limits, static.registers, static.shared_bytes + dynamic, threads, 1)
        assert ours.blocks_per_sm == answer.value, (kernel, ours)


def test_launch_floor(clock: CudaClock) -> None:
    assert 0.3e-6 < clock.empty_kernel_s() < 20e-6


@pytest.mark.parametrize("length_s", [20e-6, 200e-6])
def test_spans_of_known_length(clock: CudaClock, length_s: float) -> None:
    spans = [clock.sample(clock.spin(length_s)).seconds for _ in range(10)]
    # %globaltimer ticks in steps of up to 1 µs, and the event pair adds the floor.
    assert length_s - 2e-6 <= statistics.median(spans) <= length_s + clock.empty_kernel_s() + 5e-6


def test_a_held_stream_hides_a_slow_host(clock: CudaClock) -> None:
    def slow() -> None:
        clock.launch_empty_kernel()
        time.sleep(0.01)
        clock.launch_empty_kernel()

    held, plain = clock.sample(slow), clock.sample(slow, hold_stream=False)
    assert held.stream_held and held.seconds < 1e-3
    assert not plain.stream_held and plain.seconds > 5e-3


def test_work_on_the_default_stream_is_timed_too(backend: CudaBackend, clock: CudaClock) -> None:
    session = backend._device
    length = ctypes.c_uint64(200_000)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(length))

    def elsewhere() -> None:
        function = session._functions["opbench_spin"]
        session.driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)

    clock.sample(elsewhere, hold_stream=False)
    assert clock.sample(elsewhere).seconds > 150e-6


def test_a_callable_that_waits_breaks_the_hold(backend: CudaBackend) -> None:
    clock = CudaClock(backend._device, backend._nvml, hold_limit_s=0.05)
    began = time.perf_counter()
    assert not clock.sample(backend._device.wait).stream_held
    assert 0.04 < time.perf_counter() - began < 1
    assert clock.sample(clock.launch_empty_kernel).stream_held, "the next sample is held again"
    clock.close()


def _copy(backend: CudaBackend, request_: BuildRequest, nbytes: int) -> tuple[dict[str, Any], Any]:
    n = nbytes // 16
    buffers = {name: backend.allocate(name, (nbytes // 4,), "f32") for name in ("a", "out")}
    buffers["a"].write(np.ones(nbytes // 4, np.float32))
    return buffers, backend.load(request_).bind([launch("copy", ("a", "out", n), -(-n // 256), 256)], buffers)


def test_a_cold_copy_is_bound_by_memory(backend: CudaBackend, clock: CudaClock, request_: BuildRequest) -> None:
    nbytes = 64 << 20
    buffers, enqueue = _copy(backend, request_, nbytes)
    found = measure(clock, {"copy": enqueue})["copy"]
    session = backend._device
    peak = 2 * session.attribute(36) * 1e3 * session.attribute(37) / 8  # memory clock in kHz, bus width in bits
    # What was written may still lie in the L2 when the kernel ends; what was read has come from memory.
    assert nbytes / peak < found.median_s < 3 * 2 * nbytes / peak, found.median_s
    assert found.timer == "events, stream held" and "not_held" not in found.warnings
    backend.free(buffers)


def test_the_flush_makes_the_cache_cold(
    backend: CudaBackend, clock: CudaClock, request_: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers, enqueue = _copy(backend, request_, backend._device.l2_bytes // 8 // 16 * 16)
    for _ in range(3):
        enqueue()
    cold = statistics.median(clock.sample(enqueue).seconds for _ in range(20))
    monkeypatch.setattr(clock, "_flush_l2", lambda: None)
    hot = statistics.median(clock.sample(enqueue).seconds for _ in range(20))
    assert cold > 1.1 * hot, (cold, hot)
    backend.free(buffers)


def test_two_contenders_side_by_side(backend: CudaBackend, clock: CudaClock) -> None:
    launches = {"short": clock.spin(20e-6), "long": clock.spin(40e-6), "waits": backend._device.wait}
    found = measure(clock, launches, TimingOptions(budget_s=0.2), not_holding_stream={"waits"})
    assert found["short"].median_s < found["long"].median_s
    assert found["long"].median_s - found["short"].median_s == pytest.approx(20e-6, rel=0.2)
    assert found["waits"].timer == "events, stream not held"


def test_cupy_arrays_share_memory_and_stream(backend: CudaBackend) -> None:
    cupy = pytest.importorskip("cupy", reason="what is tested is how it meets our buffers")
    buffers = {"a": backend.allocate("a", (4, 6), "f32"), "out": backend.allocate("out", (4, 6), "f32")}
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffers["a"].write(values)
    arrays = backend.arrays(buffers)
    assert cupy.cuda.get_current_stream().ptr == backend._device.stream.value
    with backend.stream:
        cupy.multiply(arrays["a"], 2, out=arrays["out"])
    assert (buffers["out"].read() == 2 * values).all() and buffers["out"].changed_guard_offset() is None
    backend.free(buffers)
