"""Time launches with events on a stream that is held until everything is queued, with a cold L2."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from ctypes import c_float, c_int, c_uint, c_uint64, c_void_p

from opbench.backends.cuda.memory import reserve
from opbench.backends.cuda.nvml import Nvml
from opbench.backends.cuda.session import MappedInts, Session
from opbench.timing import DeviceState, Sample

HOLD_LIMIT_S = 2.0
"""After this long a held stream is let go by itself: the callable waits for the device, which waits for the host."""

VECTOR = 16


class CudaClock:
    """One cold sample at a time; the time is the span that two events see, which a launch adds a constant to."""

    timer = "events"

    def __init__(self, session: Session, nvml: Nvml, hold_limit_s: float = HOLD_LIMIT_S) -> None:
        self._session, self._nvml = session, nvml
        self._hold_limit_ns = int(hold_limit_s * 1e9)
        self._driver = session.driver
        self._half = -(-2 * session.l2_bytes // VECTOR) * VECTOR
        self._flush_buffer = reserve(session, 2 * self._half, "flushing the L2 cache")
        self._driver.call("cuMemsetD8Async", self._flush_buffer, 0, 2 * self._half, session.stream)
        self._flags = MappedInts(session, 2)
        self._ticket = 0
        self._start, self._stop = (c_void_p(self._driver.get("cuEventCreate", c_void_p, 0)) for _ in range(2))
        # Every kernel has to run once before the stream is ever held: loading it later would deadlock.
        for hold in (False, True):
            self._release(self._ticket + 1)
            self.sample(self.nothing, hold)

    def sample(self, launch: Callable[[], None], hold: bool = True) -> Sample:
        """Flush the L2, hold the stream, queue the launch between two events, let go, read the span."""
        call, stream = self._driver.call, self._session.stream
        self._flush()
        try:
            if hold:
                self._hold()
            call("cuEventRecord", self._start, stream)
            launch()
            call("cuEventRecord", self._stop, stream)
        finally:
            self._release(self._ticket)
        self._session.wait()
        span_ms = float(self._driver.get("cuEventElapsedTime", c_float, self._start, self._stop))
        expired = self._flags.values[1] == self._ticket
        return Sample(span_ms / 1e3, held=hold and not expired)

    def device_state(self) -> DeviceState:
        """Clocks and heat now, from NVML."""
        return self._nvml.state()

    def launch_floor(self) -> float:
        """Median span of an empty kernel."""
        return self._floor

    def offset(self) -> float | None:
        """Not calibrated."""
        return None

    @functools.cached_property
    def _floor(self) -> float:
        spans = [self.sample(self.nothing).seconds for _ in range(30)]
        return statistics.median(spans[5:])

    def nothing(self) -> None:
        """Launch an empty kernel."""
        self._session.launch("opbench_nothing", grid=1, block=32)

    def spin(self, seconds: float) -> Callable[[], None]:
        """A launch that keeps the device busy for a known time, to check this clock with."""
        length = c_uint64(int(seconds * 1e9))
        return lambda: self._session.launch("opbench_spin", grid=1, block=1, args=(length,))

    def _flush(self) -> None:
        """Leave the L2 full of clean lines of our own; see kernels.cu."""
        session, count = self._session, c_uint64(self._half // VECTOR)
        self._driver.raw("cuCtxResetPersistingL2Cache")()  # not every GPU has such lines: the result does not matter
        grid = 8 * session.sm_count
        session.launch("opbench_fill", grid, 256, (c_uint64(self._flush_buffer), count, c_uint(0)))
        drained = c_uint64(self._flush_buffer + self._half)
        session.launch("opbench_drain", grid, 256, (drained, count, c_uint64(session.scratch + 16)))

    def _hold(self) -> None:
        """Make the stream wait for the host; a new ticket each time, so that no reset can race with a late reader."""
        self._ticket += 1
        flag, expired = self._flags.device_pointer, self._flags.device_pointer + 4
        arguments = (c_uint64(flag), c_uint64(expired), c_int(self._ticket), c_uint64(self._hold_limit_ns))
        self._session.launch("opbench_hold", 1, 1, arguments)

    def _release(self, ticket: int) -> None:
        self._flags.values[0] = ticket

    def close(self) -> None:
        """Give the memory back; harmless after the context was lost."""
        self._driver.raw("cuMemFree_v2")(self._flush_buffer)
        for event in (self._start, self._stop):
            self._driver.raw("cuEventDestroy_v2")(event)
