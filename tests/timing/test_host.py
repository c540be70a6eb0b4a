"""Calls from Python on the host's clock: interleaved, each from an idle device, with an interval."""

from __future__ import annotations

import pytest

from opbench.timing.host import HostOptions, host_times


class Machine:
    """A host whose clock only moves when something is called."""

    def __init__(self) -> None:
        self.now_s, self.log = 0.0, list[str]()

    def call(self, name: str, seconds: float) -> None:
        self.log.append(name)
        self.now_s += seconds

    def wait(self) -> None:
        self.call("wait", 1e-6)


def test_a_sample_is_the_call_and_the_wait_after_it() -> None:
    machine = Machine()
    calls = {"a": lambda: machine.call("a", 10e-6), "b": lambda: machine.call("b", 30e-6)}
    options = HostOptions(warmup_calls=2, samples=20)
    found = host_times(calls, machine.wait, options, lambda: machine.now_s)
    assert found["a"].median_s == pytest.approx(11e-6) and found["b"].median_s == pytest.approx(31e-6)
    assert len(found["a"].samples_s) == len(found["b"].samples_s) == 20
    assert found["a"].low_s <= found["a"].median_s <= found["a"].high_s and found["a"].coverage >= 0.95
    timed = machine.log[6:]  # after the warm-up: two calls and a wait of each
    pairs = list(zip(timed[::2], timed[1::2], strict=True))
    assert all(wait == "wait" for _, wait in pairs), "each sample begins on an idle device"
    rounds = [{name for name, _ in pairs[i : i + 2]} for i in range(0, len(pairs), 2)]
    assert rounds == [{"a", "b"}] * 20, "candidates take turns"
    assert {pairs[i][0] for i in range(0, len(pairs), 2)} == {"a", "b"}, "in random order"


def test_slow_calls_end_with_their_budget_and_fast_ones_go_on() -> None:
    machine = Machine()
    calls = {"slow": lambda: machine.call("slow", 0.3), "fast": lambda: machine.call("fast", 1e-5)}
    found = host_times(calls, machine.wait, HostOptions(samples=50, budget_s=0.5), lambda: machine.now_s)
    assert (len(found["slow"].samples_s), len(found["fast"].samples_s)) == (5, 50)
