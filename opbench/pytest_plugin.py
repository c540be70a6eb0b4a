"""A pytest plugin: the fixture `opbench_benchmark` checks a case and adds its GPU time to pytest-benchmark's table.

pytest loads the plugin wherever opbench is installed, so modules that take long to import are imported by the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from opbench.checking.checking import CheckResult, Session
    from opbench.kernels.case import Case
    from opbench.results.result import Verdict
    from opbench.timing.measurement import Measurement
    from opbench.timing.sampling import TimingOptions


class SampleTimer:
    """A timer for pytest-benchmark that advances only by the GPU time of each sample.

    pytest-benchmark reads it twice per round; the difference is the time between the CUDA events.
    """

    __name__ = "opbench_gpu_clock"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="session")
def opbench_session() -> Iterator[Session]:
    """Open the GPU once for all tests; skip them with the reason if there is no GPU."""
    from opbench.checking.backends import open_backend
    from opbench.checking.checking import Session
    from opbench.errors import EnvironmentFault

    try:
        backend = open_backend("cuda")
    except EnvironmentFault as error:
        pytest.skip(f"opbench: {error}")
    session = Session(backend)
    yield session
    session.release()


@pytest.fixture
def opbench_timer(request: pytest.FixtureRequest) -> SampleTimer:
    """Return the timer of this test's benchmark; it must be chosen before the fixture `benchmark` is created."""
    timer = SampleTimer()
    marker = request.node.get_closest_marker("benchmark")
    options = {**(marker.kwargs if marker else {}), "timer": timer}
    request.node.add_marker(pytest.mark.benchmark(**options), append=False)
    return timer


@pytest.fixture
def opbench_benchmark(
    opbench_session: Session, opbench_timer: SampleTimer, benchmark: Any
) -> Callable[..., Measurement | None]:
    """Check a case by name, then measure it on the GPU into pytest-benchmark's table.

    A wrong kernel fails the test with opbench's message and gets no time; with --benchmark-disable it is only checked.
    """

    def measure(
        case: str, *, variants: Sequence[str | Path] = (), timing: TimingOptions | None = None
    ) -> Measurement | None:
        selected, check_result = _right_case(opbench_session, case, variants, benchmark)
        if not benchmark.enabled:
            return benchmark.pedantic(lambda: None)  # type: ignore[no-any-return]
        measurement = _measure(opbench_session, selected, timing)
        _pass_samples(benchmark, opbench_timer, selected, measurement, check_result.machine_code_sha256)
        return measurement

    return measure


def _right_case(
    session: Session, name: str, variants: Sequence[str | Path], benchmark: Any
) -> tuple[Case, CheckResult]:
    """Return the case and its check if it is correct; otherwise end the test with opbench's message."""
    from opbench.errors import OpbenchError
    from opbench.kernels.folders import case_named

    reason = ""
    try:
        case = case_named(name, variants)
        unsupported = session.unsupported_reason(case)
        if not unsupported:
            check_result = session.check(case)
            reason = "" if check_result.verdict.right else _failure_text(case.name, check_result.verdict)
    except OpbenchError as error:
        reason = f"{name}: {error}"
    if reason:
        # Inside the benchmark, because pytest-benchmark warns of one that was never used.
        benchmark.has_error = True
        benchmark.pedantic(pytest.fail, args=(reason,), kwargs={"pytrace": False})
    if unsupported:
        pytest.skip(f"{case.name}: unsupported: {unsupported}")
    return case, check_result


def _failure_text(case: str, verdict: Verdict) -> str:
    """Return the first finding of a wrong case, as `opbench check` prints it."""
    from opbench.report.findings import finding_lines

    if not verdict.findings:
        return f"{case}: wrong: {verdict.reason}"
    return "\n".join(finding_lines(verdict.findings[0], (f"wrong: {case}",)))


def _measure(session: Session, case: Case, timing: TimingOptions | None) -> Measurement:
    """Measure a right case; fail the test if the case proves wrong while it is timed."""
    from opbench.backend.base import TimedBackend
    from opbench.checking.measuring import measure_cases
    from opbench.timing.sampling import TimingOptions

    options = timing or TimingOptions()
    assert isinstance(session.backend, TimedBackend), "the fixture opens cuda"
    measure_result = measure_cases(session, [case], options, session.backend.clock(options.mode))
    if measure_result.wrong_cases:
        pytest.fail(f"{case.name}: wrong: {measure_result.wrong_cases[case.name]}", pytrace=False)
    if measure_result.invalid_cases:
        pytest.fail(f"{case.name}: invalid: {measure_result.invalid_cases[case.name]}", pytrace=False)
    return measure_result.measurements[case.name]


def _pass_samples(
    benchmark: Any, timer: SampleTimer, case: Case, measurement: Measurement, machine_code_sha256: str
) -> None:
    """Pass the samples to pytest-benchmark, one per round, through its own interface."""
    from opbench.export.pytest_benchmark import extra_info

    samples = iter(measurement.samples_s)

    def reset() -> None:
        timer.now_s = 0.0

    def next_sample() -> None:
        timer.now_s = next(samples)

    benchmark.extra_info |= extra_info(case.name, measurement, machine_code_sha256)
    benchmark.pedantic(next_sample, setup=reset, rounds=len(measurement.samples_s), iterations=1)
