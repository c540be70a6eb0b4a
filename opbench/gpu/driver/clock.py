"""Time launches by events on a stream that waits until all work is queued: with cold or hot L2, or in a graph."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int, c_uint, c_uint64, c_void_p

from opbench.backend.base import RotatingLaunch
from opbench.gpu.driver.device import Device, MappedWords
from opbench.gpu.driver.driver import CAPTURE_RELAXED
from opbench.gpu.driver.nvml import Nvml
from opbench.timing.clock import DeviceState, RenewableLaunch, Sample, TimedLaunch

HOLD_LIMIT_S = 2.0
"""A blocked stream is released after this time: otherwise a callable that waits for the device would deadlock."""

VECTOR_BYTES = 16
"""Bytes that a thread loads or stores at once when it flushes the L2 cache."""
MIN_GRAPH_S = 500e-6
"""Approximate length of one graph launch, so that the launch's own cost is small compared with it."""
GRAPH_LAUNCHES = 1024
"""The greatest number of launches in a graph."""
CALIBRATION_CYCLES = (2_000, 4_000, 8_000)
"""Lengths of the kernels for the calibration of the offset. They are short, so that a graph of many of them hides the
cost of its launch."""


GRAPH_GAP_S = 0.18e-6
"""The gap between two kernels of a graph: 0.17 to 0.18 µs on an H200, measured with CUPTI."""


class CudaClock:
    """Take one sample at a time: the time between two events, which includes a constant cost of the launch.

    `mode` selects what is timed:
    "cold"   one launch after the L2 was flushed and left full of clean lines;
    "dirty"  the same with dirty lines, which must be written back before they are replaced, as after the flush of other
             tools (a memset: NVIDIA/nvbench);
    "hot"    one launch right after the same launch; outputs and workspaces are renewed in between, inputs stay in the
             L2;
    "graph"  the mean of many launches in a CUDA graph; each launch finds the caches as the launch before left them,
             so they are cold only if launches rotate over enough buffers (checking.rotation; see a result's mode).
    """

    def __init__(self, device: Device, nvml: Nvml, mode: str = "cold", hold_limit_s: float = HOLD_LIMIT_S) -> None:
        self._device, self._nvml, self.mode = device, nvml, mode
        self._hold_limit_ns = int(hold_limit_s * 1e9)
        self._driver = device.driver
        self._half_bytes = -(-2 * device.l2_bytes // VECTOR_BYTES) * VECTOR_BYTES
        self._flush_buffer = device.reserve(2 * self._half_bytes, "flushing the L2 cache")
        self._driver.call("cuMemsetD8Async", self._flush_buffer, 0, 2 * self._half_bytes, device.stream)
        self._flags = MappedWords(device, c_int, 2)
        self._clock_records = MappedWords(device, c_uint64, 6)
        """Nanoseconds and cycles before a sample and after it, then the length that the kernel of `cycles` measured."""
        self._graphs: dict[Callable[[], None], tuple[c_void_p, int]] = {}
        self._chain_events: list[c_void_p] = []
        self._ticket = 0
        self._start, self._stop = (c_void_p(self._driver.get("cuEventCreate", c_void_p, 0)) for _ in range(2))
        # Run every kernel once before the stream is ever blocked: loading one later would deadlock.
        for hold_stream in (False, True):
            self._unblock_stream(self._ticket + 1)
            for launch in (self.launch_empty_kernel, self.cycles(1), self.chase(VECTOR_BYTES, steps=1)):
                self._timed_launch(launch, hold_stream)

    @property
    def timer(self) -> str:
        """Return the name of the timing method."""
        suffixes = {"dirty": ", L2 dirty", "hot": ", caches hot", "graph": " around a graph"}
        return f"events{suffixes.get(self.mode, '')}"

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        """Time one launch in the clock's mode; `hold_stream` blocks the stream until all work is queued."""
        if self.mode != "graph":
            return self._timed_launch(launch, hold_stream)
        if launch not in self._graphs:
            self._graphs[launch] = self._capture(launch)
        return self._replay(self._graphs[launch], hold_stream)

    def _replay(self, graph: tuple[c_void_p, int], hold_stream: bool) -> Sample:
        """Return the mean time of a launch in a graph, in seconds."""
        executable, count = graph
        sample = self._timed_launch(
            lambda: self._driver.call("cuGraphLaunch", executable, self._device.stream), hold_stream
        )
        return Sample(sample.seconds / count, sample.stream_held, sample.sm_clock_hz)

    def _timed_launch(self, launch: Callable[[], None], hold_stream: bool) -> Sample:
        """Prepare the caches, block the stream, queue the launch between two events, unblock, and read the time."""
        driver_call, stream = self._driver.call, self._device.stream
        timed_launch = launch if isinstance(launch, TimedLaunch) else TimedLaunch(launch)
        if self.mode in ("cold", "dirty"):
            self._flush_l2()
        self._record_clock(0)
        try:
            if hold_stream:
                self._block_stream()
            if self.mode == "hot":
                launch()
                if isinstance(launch, RenewableLaunch):
                    launch.renew()
            driver_call("cuEventRecord", self._start, stream)
            timed_launch.run()
            driver_call("cuEventRecord", self._stop, stream)
            self._record_clock(1)
            timed_launch.collect()
        finally:
            self._unblock_stream(self._ticket)
        self._device.wait()
        # Events have a resolution of some nanoseconds; more digits than 0.1 ns would only enlarge the results.
        span_s = round(float(self._driver.get("cuEventElapsedTime", c_float, self._start, self._stop)) / 1e3, 10)
        released_early = self._flags.values[1] == self._ticket
        return Sample(span_s, stream_held=hold_stream and not released_early, sm_clock_hz=self._sm_clock_hz())

    def _capture(self, launch: Callable[[], None], count: int = 0) -> tuple[c_void_p, int]:
        """Capture a graph of enough launches for `MIN_GRAPH_S`; a launch before it loads the code.

        Launches that rotate over several sets of buffers use each set equally often.
        """
        driver, stream = self._driver, self._device.stream
        buffer_sets = len(launch.launches) if isinstance(launch, RotatingLaunch) else 1
        single_s = min(self._timed_launch(launch, hold_stream=False).seconds for _ in range(max(2, buffer_sets)))
        count = count or max(1, min(GRAPH_LAUNCHES, math.ceil(MIN_GRAPH_S / max(single_s, 1e-9))))
        count = -(-count // buffer_sets) * buffer_sets
        driver.call("cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED)
        graph = c_void_p()
        try:
            for _ in range(count):
                launch()
        finally:
            driver.call("cuStreamEndCapture", stream, byref(graph), where="capturing a graph")
        executable = c_void_p(driver.get("cuGraphInstantiateWithFlags", c_void_p, graph, 0))
        driver.call("cuGraphDestroy", graph)
        return executable, count

    def device_state(self) -> DeviceState:
        """Return the current clocks and temperature, from NVML."""
        return self._nvml.state()

    def empty_kernel_s(self) -> float:
        """Return the median time of an empty kernel, launched alone, in seconds."""
        return self._empty_kernel_s

    @functools.cached_property
    def _empty_kernel_s(self) -> float:
        """The median time of an empty kernel in seconds, measured at first use."""
        return self._median_s(self.launch_empty_kernel)

    def timing_offset_s(self) -> float:
        """Return the seconds by which a sample exceeds the kernel's own time.

        The offset is the time of a single launch minus its time as one of many in a graph. On an H200 it is 2.4
        µs; samples exceed CUPTI's kernel times by 2.3 to 2.6 µs.
        """
        return self._timing_offset_s

    @functools.cached_property
    def _timing_offset_s(self) -> float:
        """The timing offset in seconds, measured at first use."""
        return statistics.median(self.calibrate(count)[0] for count in CALIBRATION_CYCLES) + GRAPH_GAP_S

    def calibrate(self, cycles: int) -> tuple[float, float]:
        """Return the timing offset for a kernel of `cycles` cycles, and the kernel's time in a graph, in seconds."""
        launch = self.cycles(cycles)
        single_s = self._median_s(launch)
        graph = self._capture(launch, GRAPH_LAUNCHES)
        in_graph_s = statistics.median(self._replay(graph, hold_stream=True).seconds for _ in range(10))
        self._driver.unchecked("cuGraphExecDestroy")(graph[0])
        return single_s - in_graph_s, in_graph_s

    def inside(self, cycles: int) -> tuple[float, float, int]:
        """Time a kernel that runs for a known number of cycles.

        Return the sample's time in seconds, the kernel's own measured time in seconds, and its measured cycles.
        """
        span_s = self._timed_launch(self.cycles(cycles, on_host=True), hold_stream=True).seconds
        return span_s, self._clock_records.values[4] / 1e9, int(self._clock_records.values[5])

    def _median_s(self, launch: Callable[[], None]) -> float:
        """Return the median time of a launch in seconds, with the stream blocked."""
        return statistics.median(self._timed_launch(launch, hold_stream=True).seconds for _ in range(25))

    def chain(self, launches: Sequence[Callable[[], None]]) -> list[float]:
        """Run launches one after the other, once; return the time between two events around each, in seconds.

        Each time includes the cost of an event: see `gap_between_launches_s`.
        """
        while len(self._chain_events) <= len(launches):
            self._chain_events.append(c_void_p(self._driver.get("cuEventCreate", c_void_p, 0)))
        call, stream = self._driver.call, self._device.stream
        self._flush_l2()
        try:
            self._block_stream()
            call("cuEventRecord", self._chain_events[0], stream)
            for launch, event in zip(launches, self._chain_events[1:], strict=False):
                launch()
                call("cuEventRecord", event, stream)
        finally:
            self._unblock_stream(self._ticket)
        self._device.wait()
        event_pairs = itertools.pairwise(self._chain_events[: len(launches) + 1])
        return [float(self._driver.get("cuEventElapsedTime", c_float, a, b)) / 1e3 for a, b in event_pairs]

    @functools.cached_property
    def gap_between_launches_s(self) -> float:
        """Return the seconds that `chain` adds to a kernel's own time, measured with kernels of known length."""
        cycles = CALIBRATION_CYCLES[-1]
        launch = self.cycles(cycles)
        spans = [statistics.median(self.chain([launch] * 12)[1:-1]) for _ in range(15)]
        return max(0.0, statistics.median(spans) - self.calibrate(cycles)[1] + GRAPH_GAP_S)

    # Launches of known length ---------------------------------------------------------------------------------------

    def launch_empty_kernel(self) -> None:
        """Launch an empty kernel."""
        self._device.launch("opbench_nothing", grid=1, block=32)

    def spin(self, seconds: float) -> Callable[[], None]:
        """Return a launch that keeps the device busy for `seconds`; tests of this clock use it."""
        length_ns = c_uint64(int(seconds * 1e9))
        return lambda: self._device.launch("opbench_spin", grid=1, block=1, args=(length_ns,))

    def cycles(self, count: int, on_host: bool = False) -> Callable[[], None]:
        """Return a launch of one thread that runs for a known number of cycles.

        With `on_host`, the kernel writes its own time to host memory, which takes longer.
        """
        arguments = (
            c_uint64(count),
            c_uint64(self._clock_records.device_pointer + 32 if on_host else self._device.scratch + 32),
        )
        return lambda: self._device.launch("opbench_cycles", grid=1, block=1, args=arguments)

    def chase(self, nbytes: int, steps: int = 1000, stride_bytes: int = 4224) -> Callable[[], None]:
        """Return a launch of `steps` dependent loads through `nbytes` of memory.

        Its time shows which cache level has the data.
        """
        elements = min(nbytes, self._half_bytes) // 4
        kernel_sizes = (c_uint(elements), c_uint(stride_bytes // 4 % elements), c_uint(steps))
        arguments = (
            c_uint64(self._flush_buffer + self._half_bytes),
            *kernel_sizes,
            c_uint64(self._device.scratch + 16),
        )
        return lambda: self._device.launch("opbench_chase", grid=1, block=1, args=arguments)

    def read(self, nbytes: int) -> Callable[[], None]:
        """Return a launch in which the whole device reads `nbytes` of memory once."""
        count = min(nbytes, self._half_bytes) // VECTOR_BYTES
        clean_half = c_uint64(self._flush_buffer + self._half_bytes)
        arguments = (clean_half, c_uint64(count), c_uint64(self._device.scratch + 16))
        return lambda: self._device.launch("opbench_drain", 8 * self._device.sm_count, 256, arguments)

    # Preparation of a sample ----------------------------------------------------------------------------------------

    def _flush_l2(self) -> None:
        """Replace the content of the L2 cache: by dirty lines in mode "dirty", else by clean lines (see kernels.cu)."""
        device, count = self._device, c_uint64(self._half_bytes // VECTOR_BYTES)
        self._driver.unchecked("cuCtxResetPersistingL2Cache")()  # Not every GPU supports it, so errors do not count.
        grid = 8 * device.sm_count
        device.launch("opbench_fill", grid, 256, (c_uint64(self._flush_buffer), count, c_uint(0)))
        if self.mode == "dirty":
            return
        clean_half = c_uint64(self._flush_buffer + self._half_bytes)
        device.launch("opbench_drain", grid, 256, (clean_half, count, c_uint64(device.scratch + 16)))

    def _record_clock(self, index: int) -> None:
        """Record the clock counter and the time, before and after a sample, to compute the clock frequency."""
        record_address = c_uint64(self._clock_records.device_pointer + 16 * index)
        self._device.launch("opbench_stamp", 2 * self._device.sm_count, 32, (record_address,))

    def _sm_clock_hz(self) -> float | None:
        """Return the clock frequency between the two records, rounded to 1 kHz; None if they are not usable."""
        first_ns, first_cycles, last_ns, last_cycles = self._clock_records.values[:4]
        return (
            round((last_cycles - first_cycles) / (last_ns - first_ns) * 1e9, -3)
            if last_ns > first_ns and last_cycles > first_cycles
            else None
        )

    def _block_stream(self) -> None:
        """Block the stream until the host releases it.

        Each block has a ticket of its own, so that the release of an earlier block does not end it.
        """
        self._ticket += 1
        flag_address, expired_address = self._flags.device_pointer, self._flags.device_pointer + 4
        arguments = (
            c_uint64(flag_address),
            c_uint64(expired_address),
            c_int(self._ticket),
            c_uint64(self._hold_limit_ns),
        )
        self._device.launch("opbench_hold", 1, 1, arguments)

    def _unblock_stream(self, ticket: int) -> None:
        """Release the block of the stream that has this ticket."""
        self._flags.values[0] = ticket

    def forget(self, launch: Callable[[], None]) -> None:
        """Free the CUDA graph of a launch; call it before the launch's buffers are freed."""
        graph, _ = self._graphs.pop(launch, (None, 0))
        if graph is not None:
            self._driver.unchecked("cuGraphExecDestroy")(graph)

    def close(self) -> None:
        """Free memory, graphs and events; this is safe after the context was lost."""
        for launch in list(self._graphs):
            self.forget(launch)
        self._driver.unchecked("cuMemFree_v2")(self._flush_buffer)
        for event in (self._start, self._stop, *self._chain_events):
            self._driver.unchecked("cuEventDestroy_v2")(event)
