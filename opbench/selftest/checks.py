"""Checks of the clock itself: its time for an empty kernel, whether its caches are cold, and its clock stamps."""

from __future__ import annotations

import time

from opbench import units
from opbench.results.selftest import Part
from opbench.selftest.device import (
    SelftestClock,
    SelftestDevice,
    cycles_per_second,
    l2_bytes,
    size_text,
    untouched,
)  # fmt: skip
from opbench.timing import stats
from opbench.timing.clock import Launch, SecondsClock

FLOOR_DRIFT_S = 0.1e-6
"""Largest allowed drift of the time of an empty kernel: three ticks of an H200's timer."""
LINE_ERROR_S = 0.2e-6
LENGTHS_S = (5e-6, 20e-6, 100e-6)
CHASED, READ = 1 << 20, 16 << 20
"""Bytes, or a quarter of L2 if that is less, so that all of them remain in L2 for the second pass."""
MIN_CHASE_RATIO = 1.5
"""Least ratio of the time of a cold pointer chase to that of a hot one."""
MIN_STREAM_RATIO = 1.1
HOT_ERROR = 0.1
STAMP_ERROR = 1e-3
CLOCK_ERROR = 0.01


def _samples_s(
    clock: SelftestClock,
    launch: Launch,
    min_samples: int,
    deadline_s: float,
    now_s: SecondsClock,
    max_samples: int = 400,
) -> list[float]:
    """Warm up, then take `min_samples` samples, and more until the deadline, at most `max_samples`; return seconds."""
    clock.sample(launch, hold_stream=False)
    clock.sample(launch)
    samples_s: list[float] = []
    while len(samples_s) < min_samples or (len(samples_s) < max_samples and now_s() < deadline_s):
        samples_s.append(clock.sample(launch).seconds)
    return samples_s


def check_floor(device: SelftestDevice, budget_s: float, now_s: SecondsClock = time.perf_counter) -> Part:
    """Check the clock's time for an empty kernel, its stability, and that longer kernels take longer accordingly."""
    part = Part("floor", "Time of an empty kernel")
    clock, start_s = device.clock(), now_s()
    samples_s = _samples_s(clock, clock.launch_empty_kernel, 40, start_s + budget_s / 2, now_s)
    middle_index = len(samples_s) // 2
    first_median_s, second_median_s = stats.median(samples_s[:middle_index]), stats.median(samples_s[middle_index:])
    stream_held = all(clock.sample(clock.launch_empty_kernel).stream_held for _ in range(10))
    interval = stats.median_interval(samples_s)
    part.figures |= {"floor_s": stats.median(samples_s), "offset_s": clock.timing_offset_s(), "samples_s": samples_s}
    part.add_claim("the stream waits for every launch to be queued", "yes" if stream_held else "no", "yes", stream_held)
    part.add_claim(
        "the time of an empty kernel is steady: both halves of the samples have one median",
        f"{units.time(first_median_s)} and {units.time(second_median_s)}",
        f"within {units.time(FLOOR_DRIFT_S)}",
        abs(first_median_s - second_median_s) <= FLOOR_DRIFT_S,
    )
    part.add_claim(
        "an empty kernel takes some time, but less than launching it",
        f"{units.time(stats.median(samples_s) - clock.timing_offset_s())} and {units.time(clock.timing_offset_s())}",
        "between 0 and the offset",
        0 < stats.median(samples_s) - clock.timing_offset_s() < clock.timing_offset_s(),
    )
    rows = [
        ("an empty kernel", str(len(samples_s)), units.time(stats.median(samples_s)),
         f"{units.time(interval.low)} to {units.time(interval.high)}"),
        ("beyond a kernel's own time (the clock's offset)", "", units.time(clock.timing_offset_s()), ""),
    ]  # fmt: skip
    part.add_table("What a launch costs", ("what", "samples", "median", "95 % interval"), rows)
    _check_line(part, clock, start_s + budget_s, now_s)
    return part


def _check_line(part: Part, clock: SelftestClock, deadline_s: float, now_s: SecondsClock) -> None:
    """Check that the times of kernels with known cycles lie on a line; the rest is a kernel's own start and end."""
    rate = cycles_per_second(clock)
    medians_s = {
        s: stats.median(_samples_s(clock, clock.cycles(int(s * rate)), 20, deadline_s, now_s, 60)) for s in LENGTHS_S
    }
    kernel_times_s = {length_s: median_s - clock.timing_offset_s() for length_s, median_s in medians_s.items()}
    excess_s = {length_s: kernel_time_s - length_s for length_s, kernel_time_s in kernel_times_s.items()}
    spread_s = max(excess_s.values()) - min(excess_s.values())
    rows = [(*map(units.time, (s, medians_s[s], kernel_times_s[s])), signed_time(excess_s[s])) for s in LENGTHS_S]
    part.add_table(
        "Kernels of known cycles", ("cycles", "span", "kernel time (span − offset)", "beyond its cycles"), rows
    )
    part.figures |= {"cycles_per_s": rate, "beyond_cycles_s": list(excess_s.values())}
    part.add_claim(
        "kernel times grow as the cycles do",
        f"the time in addition to the cycles differs by {units.time(spread_s)}",
        f"within {units.time(LINE_ERROR_S)}",
        spread_s <= LINE_ERROR_S,
    )


def check_flush(device: SelftestDevice, budget_s: float, now_s: SecondsClock = time.perf_counter) -> Part:
    """Check that a cold sample finds no data of the previous sample in L2: compare one pass with two passes in one
    sample.

    The second pass finds in L2 what the first one left, so two passes minus one are the time of a hot pass. Each cold
    sample follows a sample that left the same lines.
    """
    part = Part("flush", "Cold caches")
    cold, hot, memory = device.clock("cold"), device.clock("hot"), untouched(device)
    chased_bytes, read_bytes = (min(size, l2_bytes(device) // 4) for size in (CHASED, READ))
    rows = []

    def median_s(clock: SelftestClock, launch: Launch, deadline_s: float) -> float:
        samples_s = _samples_s(clock, launch, 10, deadline_s, now_s, 100)
        return stats.median(samples_s) - clock.timing_offset_s()

    for name, one_pass, min_ratio in (
        (f"pointer chase through {size_text(chased_bytes)}", memory.chase(chased_bytes), MIN_CHASE_RATIO),
        (f"read of {size_text(read_bytes)}", memory.read(read_bytes), MIN_STREAM_RATIO),
    ):
        start_s = now_s()

        def two_passes(launch: Launch = one_pass) -> None:
            launch()
            launch()

        single_s = median_s(cold, one_pass, start_s + budget_s / 6)
        two_passes_s = median_s(cold, two_passes, start_s + budget_s / 3)
        hot_s = median_s(hot, one_pass, start_s + budget_s / 2)
        second_pass_s = max(two_passes_s - single_s, 1e-9)
        rows.append(
            (
                name,
                units.time(single_s),
                units.time(second_pass_s),
                units.time(hot_s),
                units.ratio(single_s / second_pass_s),
            )
        )
        part.figures[name] = {"cold_s": single_s, "second_pass_s": second_pass_s, "hot_s": hot_s}
        part.add_claim(
            f"the {name} is cold",
            f"{units.ratio(single_s / second_pass_s)} a second pass",
            f"at least {units.ratio(min_ratio)}",
            single_s / second_pass_s >= min_ratio,
        )
        if min_ratio == MIN_CHASE_RATIO:
            part.add_claim(
                f"the hot clock's {name} is a second pass",
                f"{units.time(hot_s)} against {units.time(second_pass_s)}",
                f"within {units.percent(HOT_ERROR)}",
                abs(hot_s / second_pass_s - 1) <= HOT_ERROR,
            )
    headings = ("kernel", "cold", "second pass in one span", "hot clock", "cold / second pass")
    part.add_table("Kernel times of a pass after the flush, and of a second one", headings, rows)
    return part


def check_stamps(device: SelftestDevice, budget_s: float, now_s: SecondsClock = time.perf_counter) -> Part:
    """Compare the GPU's nanosecond timer with the host's clock, and the samples' clock rate with known cycles."""
    part = Part("stamps", "Clock stamps")
    clock, deadline = device.clock(), now_s() + budget_s
    known_hz = cycles_per_second(clock)
    short_s = min(0.1, max(0.02, budget_s / 20))
    host: list[float] = []
    event_ratios: list[float] = []
    rates: list[float] = []
    while len(host) < 3 or (len(host) < 9 and now_s() < deadline):
        host_s = [_host_seconds(clock, clock.spin(length), now_s) for length in (short_s, 3 * short_s)]
        host.append(2 * short_s / (host_s[1] - host_s[0]))
        span, device_s, cycles = clock.inside(int(short_s * known_hz))
        event_ratios.append(device_s / (span - clock.timing_offset_s()))
        rates.append(cycles / device_s)
    rate = stats.median(rates)
    part.figures |= {"globaltimer_over_host": host, "globaltimer_over_events": event_ratios, "sm_clock_hz": rates}
    for name, ratios in (("the host's clock", host), ("events", event_ratios)):
        error = stats.median(ratios) - 1
        part.add_claim(
            f"the GPU's %globaltimer runs as {name}",
            f"{100 * error:+.3f} %",
            f"within {100 * STAMP_ERROR:g} %",
            abs(error) <= STAMP_ERROR,
        )
    launch = clock.cycles(int(100e-6 * known_hz))
    clock.sample(launch, hold_stream=False)
    stamped_hz = [s.sm_clock_hz for s in (clock.sample(launch) for _ in range(20)) if s.sm_clock_hz]
    nvml_hz = clock.device_state().sm_clock_hz
    rows = [("cycles over %globaltimer of one spin", units.si(rate, "Hz", 4), "")]
    for name, measured_hz, reason in (
        ("the clock that samples carry", stats.median(stamped_hz) if stamped_hz else None, "samples carry none"),
        ("known cycles over time of two lengths", known_hz, ""),
        ("NVML's reading", nvml_hz, "NVML does not report it"),
    ):
        relative_error = measured_hz / rate - 1 if measured_hz else None
        rows.append(
            (
                name,
                units.si(measured_hz, "Hz", 4),
                f"{100 * relative_error:+.2f} %" if relative_error is not None else reason,
            )
        )
        part.figures[name] = measured_hz
        if name != "NVML's reading":
            part.add_claim(
                f"{name} is the multiprocessors'",
                f"{100 * relative_error:+.2f} %" if relative_error is not None else reason,
                f"within {100 * CLOCK_ERROR:g} %",
                abs(relative_error) <= CLOCK_ERROR if relative_error is not None else None,
            )
    part.add_table("The multiprocessors' clock, from four sides", ("from", "clock", "off by"), rows)
    return part


def _host_seconds(clock: SelftestClock, launch: Launch, now_s: SecondsClock) -> float:
    """Return the time of one sample on the host's clock, including its flush and launches."""
    start_s = now_s()
    clock.sample(launch)
    return now_s() - start_s


def signed_time(seconds: float) -> str:
    """Format a difference of times, such as "+0.12 µs"."""
    return f"{1e6 * seconds:+.2f} µs".replace("-", "−")
