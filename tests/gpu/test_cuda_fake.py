"""The cuda backend on a driver made of host memory (fakes/driver.py), so that its logic is tested without a GPU.

What only a GPU can show is in test_cuda_device.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.checking import measuring, rotation
from opbench.checking.checking import Session
from opbench.checking.measuring import measure_cases
from opbench.errors import CompileError, EnvironmentFault, LaunchError
from opbench.gpu.driver import CudaBackend
from opbench.gpu.driver.clock import GRAPH_GAP_S
from opbench.gpu.driver.driver import Driver, DriverError
from opbench.gpu.driver.graphs import step_chains
from opbench.gpu.driver.memory import GUARD_BYTES
from opbench.gpu.driver.program import CudaProgram
from opbench.kernels.folders import case_named
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensors import DTYPES, Tensor
from opbench.timing.clock import RenewableLaunch, TimedLaunch
from opbench.timing.sampling import TimingOptions, measure
from support.checks.errors import Refusal, needs_extra, refuses, refuses_name

SOURCE = """
extern "C" __global__ void poke(char* at, int offset, int value, float half) { at[offset] = value; }
extern "C" __global__ void bounded(float* a) {}
extern "C" __global__ void crash(float* a) { *(volatile float*)8 = 1; }
"""


@pytest.fixture
def request_(tmp_path: Path) -> BuildRequest:
    """Three small kernels."""
    source = tmp_path / "three.cu"
    source.write_text(SOURCE)
    return BuildRequest(source, ("poke", "bounded", "crash"))


def launch(kernel: str, args: tuple[str | int | float, ...], **changes: object) -> KernelLaunch:
    """One block of 32 threads, unless said otherwise."""
    plain = {"grid": (1, 1, 1), "block": (32, 1, 1), "shared_bytes": 0, **changes}
    return KernelLaunch(kernel=kernel, args=args, **plain)  # type: ignore[arg-type]


def test_environment_says_what_the_device_is(backend: CudaBackend) -> None:
    found = backend.environment()
    assert (found.gpu, found.compute_capability, found.sm_count) == ("Fake", "9.0", 132)
    assert found.uuid == "GPU-abababab-abab-abab-abab-abababababab"
    assert found.driver_cuda == "13.5" and found.ecc is True and found.l2_bytes == 1000
    assert backend.sm_count == backend.limits.sm_count == 132


def test_round_trip_poison_and_zero(backend: CudaBackend, request_: BuildRequest) -> None:
    values = np.arange(35, dtype=np.float32).reshape(5, 7)
    buffer = backend.allocate("a", (5, 7), "f32")
    assert np.isnan(buffer.read()).all()
    buffer.write(values)
    assert (buffer.read() == values).all()
    zero = KernelLaunch("", (0, 0, 0), (0, 0, 0), 0, (), zero="a")
    backend.load(request_).bind([zero], {"a": buffer})()
    assert not buffer.read().any() and buffer.changed_guard_offset() is None
    with refuses("other-array", "a"):
        buffer.write(values.T)
    backend.free({"a": buffer})
    backend.free({"a": buffer})
    with refuses("buffer-freed"):
        buffer.read()


@pytest.mark.parametrize(("dtype", "size"), [("f32", 5), ("f16", 7), ("f16", 6)])
def test_a_fingerprint_stands_for_the_content_alone(backend: CudaBackend, dtype: str, size: int) -> None:
    values = np.arange(1, size + 1, dtype=DTYPES[dtype])
    one, two = (backend.allocate(name, (size,), dtype) for name in "ab")
    one.write(values)
    two.write(values)
    seen = {one.fingerprint()}
    assert two.fingerprint() in seen, "neither the address nor the guard bands are in it"
    for changed in (values[::-1], values * 2, np.concatenate([values[:-1], values[:1]])):
        two.write(np.ascontiguousarray(changed))
        assert two.fingerprint() not in seen
        seen.add(two.fingerprint())


@pytest.mark.parametrize("offset", [-1, -GUARD_BYTES, 35 * 2, 35 * 2 + GUARD_BYTES - 1])
def test_damage_names_the_nearest_changed_byte(backend: CudaBackend, request_: BuildRequest, offset: int) -> None:
    buffer = backend.allocate("a", (35,), "f16")
    assert buffer.changed_guard_offset() is None
    backend.load(request_).bind([launch("poke", ("a", offset, 7, 0.5))], {"a": buffer})()
    assert backend.synchronize() == []
    assert buffer.changed_guard_offset() == offset


def test_writes_inside_are_no_damage(backend: CudaBackend, request_: BuildRequest) -> None:
    buffer = backend.allocate("a", (35,), "f16")
    steps = [launch("poke", ("a", 0, 0, 0.5)), launch("poke", ("a", 69, 0, 0.5))]
    backend.load(request_).bind(steps, {"a": buffer})()
    assert buffer.changed_guard_offset() is None


def test_a_guard_read_is_nan_and_guards_differ(backend: CudaBackend) -> None:
    one, two = (backend.allocate(name, (3,), "f32") for name in "ab")
    words = []
    for buffer in (one, two):
        guard = (np.ctypeslib.ctypes.c_char * 64).from_address(buffer.pointer - 64)  # the fake's memory is the host's
        for dtype in (np.float64, np.float32, np.float16):
            assert np.isnan(np.frombuffer(guard, dtype)).all()
        words.append(bytes(guard))
    assert words[0] != words[1]


@pytest.mark.parametrize(
    ("step", "refusal"),
    [
        (launch("bounded", ("a",), block=(2048, 1, 1)), Refusal("launch-limit", "block", value=2048, allowed=1024)),
        (launch("bounded", ("a",), block=(1, 1, 65)), Refusal("launch-limit", "block.z", value=65, allowed=64)),
        (launch("bounded", ("a",), block=(512, 1, 1)), Refusal("launch-limit", "block", value=512, allowed=256)),
        (launch("bounded", ("a",), grid=(1, 70000, 1)), Refusal("launch-limit", "grid.y", value=70000, allowed=65535)),
        (launch("bounded", ("a",), grid=(0, 1, 1)), Refusal("launch-limit", "grid.x", value=0)),
        (launch("bounded", ("a",), shared_bytes=232448), Refusal("launch-limit", "shared", value=128 + 232448)),
        (launch("bounded", ("b",)), Refusal("unknown-name", "buffer", value="b")),
        (launch("bounded", ()), Refusal("argument-count", "bounded", value=(), allowed=(8,))),
        (launch("poke", ("a", 1, 2)), Refusal("argument-count", "poke", allowed=(8, 4, 4, 4))),
        (launch("poke", ("a", 2**31, 2, 0.5)), Refusal("argument-type", "poke", value=2**31)),
        (launch("missing", ()), Refusal("unknown-name", "kernel", value="missing")),
    ],
)
def test_launches_that_cannot_be_are_refused_in_words(
    backend: CudaBackend, request_: BuildRequest, step: KernelLaunch, refusal: Refusal
) -> None:
    program = backend.load(request_)
    buffer = backend.allocate("a", (4,), "f32")
    with refuses(refusal, error=LaunchError):
        program.bind([step], {"a": buffer})


def test_large_shared_memory_is_asked_for(backend: CudaBackend, request_: BuildRequest) -> None:
    program = backend.load(request_)
    buffer = backend.allocate("a", (4,), "f32")
    program.bind([launch("bounded", ("a",), shared_bytes=100_000)], {"a": buffer})()


def test_a_kernel_that_dies_is_named(backend: CudaBackend, request_: BuildRequest) -> None:
    buffer = backend.allocate("a", (4,), "f32")
    enqueue = backend.load(request_).bind([launch("crash", ("a",))], {"a": buffer})
    enqueue()
    with refuses("driver", "crash", value=700, error=DriverError):
        backend.synchronize()
    backend.free({"a": buffer})


def test_a_program_bears_the_hash_of_its_machine_code(backend: CudaBackend, request_: BuildRequest) -> None:
    first = backend.load(request_).machine_code_sha256
    assert len(first) == 64
    text = request_.source.read_text()
    request_.source.write_text(f"// a comment\n{text}")
    assert backend.load(request_).machine_code_sha256 == first
    request_.source.write_text(text.replace("= value", "= 2 * value"))
    assert backend.load(request_).machine_code_sha256 != first


def test_memory_shortage_says_how_much(backend: CudaBackend) -> None:
    with refuses("gpu-memory", "buffer 'big'", value=4_000_524_288, error=EnvironmentFault):
        backend.allocate("big", (1_000_000_000,), "f32")


def test_unsupported_capabilities(backend: CudaBackend) -> None:
    def reason(wanted: str) -> str | None:
        return backend.unsupported_reason(BuildRequest(Path("x.cu"), (), (), wanted))

    assert reason("") is reason("8.0") is reason("9.0") is reason("9.0a") is None
    assert "needs compute capability 10.0; this GPU has 9.0" in (reason("10.0") or "")
    assert "only 8.0 has" in (reason("8.0a") or "")


def test_arrays_without_cupy_name_the_remedy(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cupy", None)
    with needs_extra("cuda13"):
        backend.arrays({})


def test_held_samples_see_only_the_launch(backend: CudaBackend, request_: BuildRequest) -> None:
    # The fake's events count launches: one for the event itself, one for each kernel between.
    clock = backend.clock()
    assert clock is backend.clock()
    buffer = backend.allocate("a", (4,), "f32")
    step = launch("poke", ("a", 0, 0, 0.5))
    sample = clock.sample(backend.load(request_).bind([step, step], {"a": buffer}))
    assert sample.stream_held and sample.seconds == pytest.approx(0.003)
    assert clock.empty_kernel_s() == pytest.approx(0.002)
    assert not clock.sample(clock.launch_empty_kernel, hold_stream=False).stream_held


def test_what_a_library_collects_is_done_but_not_timed(backend: CudaBackend, request_: BuildRequest) -> None:
    clock, step = backend.clock(), launch("poke", ("a", 0, 0, 0.5))
    buffer = backend.allocate("a", (4,), "f32")
    poke = backend.load(request_).bind([step], {"a": buffer})
    collected = []

    def collect() -> None:
        collected.append(True)
        poke()

    timed = TimedLaunch(poke, collect)
    renewable = RenewableLaunch(timed, lambda: None)
    assert [clock.sample(one).seconds for one in (poke, timed, renewable)] == pytest.approx([0.002] * 3)
    assert len(collected) == 2
    timed()
    assert len(collected) == 3


def test_a_sample_carries_the_clock_of_the_multiprocessors(backend: CudaBackend) -> None:
    assert backend.clock().sample(backend.clock().launch_empty_kernel).sm_clock_hz == pytest.approx(1.5e9)


def test_the_offset_is_what_a_launch_reads_beyond_its_share_of_a_graph(backend: CudaBackend) -> None:
    clock = backend.clock()
    # Each launch takes a tick of a millisecond, as do two events: 2 ms alone, and one in a graph of many.
    assert clock.calibrate(30_000) == pytest.approx((0.001, 0.001), rel=2e-3)
    assert clock.timing_offset_s() == pytest.approx(0.001 + GRAPH_GAP_S, rel=2e-3)
    graphs = clock._driver._library.fake_graphs
    assert graphs() == 0


def test_a_kernel_of_known_length_says_how_long_it_was(backend: CudaBackend) -> None:
    span, _, cycles = backend.clock().inside(30_000)
    assert (span, cycles) == (pytest.approx(0.002), 30_000)


@pytest.mark.parametrize("mode", ["hot", "graph", "dirty"])
def test_other_modes_have_a_clock_of_their_own(backend: CudaBackend, mode: str) -> None:
    clock = backend.clock(mode)
    assert clock is backend.clock(mode) and clock is not backend.clock()
    assert clock.mode == mode and mode in clock.timer
    sample = clock.sample(clock.launch_empty_kernel)
    assert sample.stream_held and sample.seconds == pytest.approx(0.002)


def test_a_graph_is_captured_once_and_given_back(backend: CudaBackend) -> None:
    clock = backend.clock("graph")
    launch = clock.cycles(7)
    graphs = clock._driver._library.fake_graphs
    before = graphs()
    for _ in range(3):
        clock.sample(launch)
    assert graphs() == before + 1
    clock.forget(launch)
    clock.forget(launch)
    assert graphs() == before


def test_a_straight_run_of_steps_is_captured_at_once(backend: CudaBackend) -> None:
    """Only so may a kernel begin before the one ahead of it has ended."""
    clock = backend.clock()
    library: Any = clock._driver._library
    before = library.fake_graphs()
    assert step_chains([[], [0], [1], [1], [2], [3, 4], [5]]) == [[0, 1], [2, 4], [3], [5, 6]]
    assert step_chains([[], [], [0], [2], [1], [0]]) == [[0], [1, 4], [2, 3], [5]]
    graph = backend.graph([(clock.launch_empty_kernel, [index - 1] if index else []) for index in range(4)])
    assert library.fake_graphs() == before + 1
    assert clock.sample(graph.launch).seconds == pytest.approx(0.005)  # four launches and the second event
    graph.close()
    assert library.fake_graphs() == before


def test_steps_become_one_graph_in_which_each_waits_for_what_it_depends_on(backend: CudaBackend) -> None:
    clock = backend.clock()
    library: Any = clock._driver._library
    before = library.fake_graphs()
    graph = backend.graph(
        [(clock.launch_empty_kernel, []), (clock.launch_empty_kernel, []), (clock.launch_empty_kernel, [0, 1])]
    )
    assert library.fake_waits() == 2 and library.fake_graphs() == before + 1
    assert clock.sample(graph.launch).seconds == pytest.approx(0.004)  # three launches and the second event
    graph.run()
    graph.close()
    graph.close()
    assert library.fake_graphs() == before


def test_launches_in_a_chain_are_timed_one_by_one(backend: CudaBackend) -> None:
    clock = backend.clock()

    def twice() -> None:
        clock.launch_empty_kernel()
        clock.launch_empty_kernel()

    assert clock.chain([clock.launch_empty_kernel, twice, clock.launch_empty_kernel]) == pytest.approx(
        [0.002, 0.003, 0.002]
    )
    assert clock.gap_between_launches_s == pytest.approx(0.001 + GRAPH_GAP_S, rel=2e-3)


def test_tensors_lie_in_an_arena_where_they_are_put(backend: CudaBackend) -> None:
    arena = backend.allocate_arena(4096)
    low, high = (backend.view(arena, Tensor("part", (3, 5)), offset) for offset in (0, 256))
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    low.write(values)
    high.write(values + 1)
    assert high.pointer - low.pointer == 256 and np.array_equal(low.read(), values)
    low.poison()
    assert np.isnan(low.read()).all() and np.array_equal(high.read(), values + 1) and low.changed_guard_offset() is None
    with refuses("other-array", "part"):
        low.write(values.T)
    backend.free({"arena": arena})


def test_a_callable_that_waits_is_noticed(backend: CudaBackend) -> None:
    clock = backend.clock()
    assert not clock.sample(backend.synchronize).stream_held
    assert clock.sample(clock.launch_empty_kernel).stream_held, "the next sample is held again"
    found = measure(clock, {"waits": backend.synchronize}, TimingOptions(warmup_s=0, max_samples=20))["waits"]
    assert "not_held" in found.warnings and found.timer == "events, stream not held"


def test_a_launch_that_raises_lets_the_stream_go(backend: CudaBackend) -> None:
    clock = backend.clock()

    def fails() -> None:
        raise LaunchError("no")

    with pytest.raises(LaunchError):
        clock.sample(fails)
    assert clock.sample(clock.launch_empty_kernel).stream_held


def test_missing_kernel_is_a_compile_error(backend: CudaBackend, request_: BuildRequest) -> None:
    with refuses_name("kernel", "pok", "poke", error=CompileError):
        backend.load(BuildRequest(request_.source, ("pok",)))


def relu_measured(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, n: int) -> tuple[str, list[int]]:
    """The mode of a graph of relu/scalar on n elements, and the addresses of x in the order launched by the clock."""
    monkeypatch.setattr(Driver, "has", lambda self, name: False)  # the fake does not know what this kernel takes
    case, addresses = case_named(f"relu/scalar(n={n})"), list[int]()
    genuine = CudaProgram.bind

    def recorded(self: CudaProgram, launches: Any, buffers: Any) -> Any:
        enqueue = genuine(self, launches, buffers)
        return lambda: (addresses.append(buffers["x"].pointer), enqueue())

    monkeypatch.setattr(CudaProgram, "bind", recorded)
    options = TimingOptions(mode="graph", warmup_s=0, max_samples=10)
    clock = backend.clock("graph")
    monkeypatch.setattr(measuring, "measure", lambda *a, **k: (addresses.clear(), measure(*a, **k))[1])
    found = measure_cases(Session(backend), [case], options, clock, check_again=False)
    assert clock._driver._library.fake_graphs() == 0 and clock._graphs == {}, "given back"
    return found.measurements[case.name].mode, addresses


def test_a_graph_rotates_over_buffers_that_the_l2_cannot_hold(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fake's L2 holds 1000 bytes; x and out take 200 each here.
    mode, addresses = relu_measured(backend, monkeypatch, 50)
    assert mode == "graph, cold (8 buffer sets)" and len(set(addresses)) == 8
    assert all(len(set(addresses[at : at + 8])) == 8 for at in range(0, len(addresses) - 8, 8)), "in turn"
    assert len(addresses) % 8 == 0, "each set as often as another"


@pytest.mark.parametrize(("n", "mode"), [(1, "graph, cold (375 buffer sets)"), (2000, "graph, cold (3 buffer sets)")])
def test_the_mode_says_over_how_many_sets(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, n: int, mode: str
) -> None:
    assert relu_measured(backend, monkeypatch, n)[0] == mode


@pytest.mark.parametrize("limit", ["MAX_BUFFER_SETS", "MAX_ADDED_BYTES"])
def test_a_graph_whose_buffers_would_be_too_many_stays_hot_and_says_so(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(rotation, limit, 7)
    mode, addresses = relu_measured(backend, monkeypatch, 50)
    assert mode == "graph, hot" and len(set(addresses)) == 3, "one for each content of the inputs"


def test_a_graph_stays_hot_where_memory_is_short(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(nbytes: int) -> Any:
        raise EnvironmentFault("no memory")

    monkeypatch.setattr(backend, "allocate_arena", short)
    assert relu_measured(backend, monkeypatch, 50)[0] == "graph, hot"


def test_a_module_variable_is_read_compared_and_given_back(backend: CudaBackend, tmp_path: Path) -> None:
    source = tmp_path / "counts.cu"
    source.write_text('__device__ int calls;\nextern "C" __global__ void counts(float* a) { calls++; }\n')
    program = backend.load(BuildRequest(source, ("counts",)))
    variable = program.variables()["calls"]
    first, kept = variable.fingerprint(), backend.allocate("kept", (4,), "u8")
    kept.copy_from(variable)
    program.bind([launch("counts", ("a",))], {"a": backend.allocate("a", (4,), "f32")})()
    assert variable.read().view(np.int32).tolist() == [1] and variable.fingerprint() != first
    variable.copy_from(kept)
    assert variable.fingerprint() == first and not program.uses_device_heap


@pytest.mark.parametrize("shift", [0, 4, 32])
def test_a_copy_on_the_device_may_be_moved_along(backend: CudaBackend, shift: int) -> None:
    values = np.arange(9, dtype=np.float32)
    one, two = (backend.allocate(name, (9,), "f32") for name in "ab")
    one.write(values)
    two.copy_from(one, shift)
    assert np.array_equal(two.read(), np.roll(values, shift // 4)) and two.changed_guard_offset() is None
    two.poison_part(8, 4)
    assert np.flatnonzero(np.isnan(two.read())).tolist() == [2]
