"""The self-test on simulated GPUs: it passes on a good one and names the fault of a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opbench import selftest
from opbench.cli.report import report_command
from opbench.errors import EnvironmentFault, LaunchError
from opbench.paths import shipped_folder
from opbench.records import stored_file, unpacked
from opbench.report.selftest import (
    FILE,
    check_rows,
    next_steps,
    part_bars,
    part_lines,
    read_selftest,
    write_selftest,
    write_selftest_results,
)
from opbench.results.result import Result
from opbench.selftest import Cell, Part, ReferenceTimer, Selftest, children, pairs
from opbench.selftest.cheats import expectation
from opbench.timing import stats
from opbench.timing.measurement import Measurement
from support.checks.errors import refuses, refuses_name, refuses_version
from support.common import CATALOG, CHEATS, Cli
from support.fakes.simulated_gpu import SimulatedDevice, drifting, heavy_tails, quiet, steady, stepping, two_modes

TIME_CHEATS = sorted((CHEATS / "time").glob("*.py"))


NOISES = (steady, drifting, stepping, two_modes, heavy_tails)


def failing(part: Part) -> list[str]:
    """Sentences that do not hold."""
    return [claim.sentence for claim in part.claims if claim.holds is False]


def outcome() -> Selftest:
    """One without parts."""
    return Selftest(SimulatedDevice().environment(), 10.0, "0", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.__name__)
def test_interleaved_pairs_alike_are_not_called_different(noise: Callable[..., float]) -> None:
    device = SimulatedDevice(noise=noise)
    part = selftest.measure_identical_pairs(device, 0.0, device.world.now)
    together = part.figures["interleaved, as opbench compare"]["all"]
    assert together["pairs"] >= pairs.MIN_PAIRS and failing(part) == []


def test_a_drift_shows_in_pairs_measured_one_after_the_other() -> None:
    device = SimulatedDevice(noise=stepping)
    part = selftest.measure_identical_pairs(device, 0.0, device.world.now)
    apart, together = (part.figures[f"{how}, interval alone"]["all"] for how in ("one after the other", "interleaved"))
    assert apart["faster"] + apart["slower"] > together["faster"] + together["slower"]


def test_a_harness_that_prefers_one_side_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = pairs.measure

    def biased(*arguments: Any, **words: Any) -> dict[str, Measurement]:
        found = genuine(*arguments, **words)
        if "new" in found:
            slower = tuple(1.03 * seconds for seconds in found["new"].samples_s)
            found["new"] = replace(found["new"], samples_s=slower)
        return found

    monkeypatch.setattr(pairs, "measure", biased)
    device = SimulatedDevice()
    assert len(failing(selftest.measure_identical_pairs(device, 0.0, device.world.now))) == 1


@pytest.mark.parametrize("noise", [quiet, steady], ids=lambda noise: noise.__name__)
def test_slow_downs_are_detected_with_their_sample_budgets(noise: Callable[..., float]) -> None:
    device = SimulatedDevice(noise=noise)
    part = selftest.measure_slow_downs(device, 0.0, device.world.now)
    found = part.figures
    assert len(found) == len(pairs.SLOW_DOWNS) * (1 + len(pairs.SAMPLE_BUDGETS))
    assert found["0.05, default samples"]["usual"]["slower"] == pairs.MIN_PAIRS
    assert found["0.01, default samples"]["usual"]["slower"] < 4, "1 % is below the threshold of opbench compare"
    assert found["0.01, 80 samples"]["sharp"]["slower"] > found["0.01, 80 samples"]["usual"]["slower"]
    if noise is quiet:
        assert failing(part) == [] and found["0.02, 80 samples"]["usual"]["slower"] == pairs.MIN_PAIRS


def test_a_slow_down_that_drowns_in_noise_fails() -> None:
    device = SimulatedDevice(noise=lambda now_s, chance: max(0.2, chance.gauss(1, 0.2)))
    assert failing(selftest.measure_slow_downs(device, 0.0, device.world.now)) == [
        "a slow-down of 2.0 % of a kernel of 100 µs is seen"
    ]


def test_more_budget_means_more_pairs_and_never_fewer_than_the_least() -> None:
    counts = []
    for budget in (0.0, 120.0):
        device = SimulatedDevice(overhead_s=2e-2)
        part = selftest.measure_identical_pairs(device, budget, device.world.now)
        counts.append(part.figures["interleaved, interval alone"]["all"]["pairs"])
    assert pairs.MIN_PAIRS <= counts[0] < counts[1] <= pairs.MAX_PAIRS + 2


CHECKS = {"floor": selftest.check_floor, "flush": selftest.check_flush, "stamps": selftest.check_stamps}


@pytest.mark.parametrize("check", CHECKS)
def test_a_good_device_passes(check: str) -> None:
    device = SimulatedDevice(noise=lambda now_s, chance: chance.gauss(1, 2e-4), overhead_s=2e-4)
    part = CHECKS[check](device, 1.0, device.world.now)
    assert part.claims and failing(part) == [] and part.tables and all(c.holds is not None for c in part.claims)


@pytest.mark.parametrize(
    ("check", "fault", "sentence"),
    [
        ("floor", {"believed_offset_s": 3e-6}, "an empty kernel takes some time, but less than launching it"),
        ("floor", {"bend_s": 1e-6}, "kernel times grow as the cycles do"),
        ("flush", {"flushes": False}, "the pointer chase through 1 MiB is cold"),
        ("stamps", {"device_clock_error": 0.004}, "the GPU's %globaltimer runs as events"),
    ],
)
def test_a_fault_is_named(check: str, fault: dict[str, Any], sentence: str) -> None:
    device = SimulatedDevice(noise=lambda now_s, chance: chance.gauss(1, 2e-4), overhead_s=2e-4, **fault)
    assert sentence in failing(CHECKS[check](device, 1.0, device.world.now))


def test_samples_without_a_clock_are_not_checked() -> None:
    device = SimulatedDevice(stamps=False, noise=lambda now_s, chance: 1.0, overhead_s=2e-4)
    part = selftest.check_stamps(device, 1.0, device.world.now)
    assert [c.holds for c in part.claims if c.sentence.startswith("the clock that samples carry")] == [None]


# Other clocks -----------------------------------------------------------------------------------------------------


def timer(name: str, margin_s: float | None, off: float, what: str = "kernel") -> ReferenceTimer:
    """A clock that is off by so many seconds at every cell."""

    def times(cells: Sequence[Cell]) -> dict[str, float]:
        length = {c.name: c.amount / 1.98e9 if c.kind == "cycles" else 1e-6 + c.amount / 2e12 for c in cells}
        return {cell: seconds + off + (2.4e-6 if what == "span" else 0) for cell, seconds in length.items()}

    return ReferenceTimer(name, what, margin_s, times)


def test_other_clocks_agree_disagree_or_are_missing() -> None:
    def absent(cells: Sequence[Cell]) -> dict[str, float]:
        raise EnvironmentFault("cupti-python is not installed; pip install cupti-python")

    device = SimulatedDevice(noise=lambda now_s, chance: 1.0)
    others = [
        timer("near", 0.25e-6, 0.1e-6, "span"),
        timer("far", 0.3e-6, 1e-6),
        timer("told only", None, 1e-6),
        ReferenceTimer("absent", "kernel", 0.3e-6, absent),
    ]
    part = selftest.clocks(device, 1.0, others, device.world.now)
    assert {c.sentence: c.holds for c in part.claims} == {
        "spans agree with near": True,
        "kernel times agree with far": False,
        "kernel times agree with absent": None,
    }
    assert any("cupti-python is not installed" in note for note in part.notes)
    head = part.tables[0].head
    assert "graph (kernel)" in head and "told only (kernel)" in head and "absent (kernel)" not in head
    assert len(part.tables[0].rows) == 11


def test_a_clock_that_times_nothing_is_an_error_in_words() -> None:
    device = SimulatedDevice(noise=lambda now_s, chance: 0.0)
    with refuses("clock-times-nothing", error=LaunchError):
        selftest.clocks(device, 1.0, (), device.world.now)


def test_a_child_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from opbench.gpu.driver import why_missing

    if why_missing() is None:
        pytest.skip("there is a GPU; what is tested is what is said without one")
    monkeypatch.setattr(children.importlib.metadata, "version", lambda name: "1")
    with refuses("program-failed", "cupti-python", value=3, error=EnvironmentFault):
        children.times_in_child("cupti", [Cell("cycles", 1, "a")])


def test_ncu_is_asked_through_opbench_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def profiled(target: Any, folder: Path, options: Any, writer: None, say: Any) -> dict[str, Any]:
        assert target.case == children.RANGE and target.argv[-1] == "cycles:1:a"
        return {"kernels": [{"kernel": "opbench_cycles", "time_s": seconds} for seconds in (3e-6, 1e-6, 2e-6)]}

    monkeypatch.setattr(children, "profile_case", profiled)
    assert children.times_by_ncu([Cell("cycles", 1, "a")]) == {"a": 2e-6}


def test_a_cell_survives_the_command_line() -> None:
    cell = Cell("read", 65536, "reads 64 KiB")
    assert Cell.from_text(cell.to_text()) == cell
    argv = (*children.opbench("selftest-target"), "ncu", *children.cell_arguments([cell]))
    assert argv[-2:] == ("--cell", "read:65536:reads 64 KiB") and "selftest-target" in argv


def test_missing_packages_are_said_with_the_remedy() -> None:
    for name, package in (("cupti", "cupti-python"), ("bench", "cuda-bench")):
        with refuses("missing-package", package, error=EnvironmentFault):
            children.times_in_child(name, [])


def test_durations_of_ncu_are_read_in_order() -> None:
    cells = [Cell("cycles", 1, "a"), Cell("cycles", 2, "b")]
    assert children.durations(cells, [1.0, 2.0, 3.0, 5.0, None, 7.0]) == {"a": 2.0, "b": 6.0}
    with refuses("lost-kernels", "ncu", value=5, allowed=6, error=EnvironmentFault):
        children.durations(cells, [1.0] * 5)


# Cheats -----------------------------------------------------------------------------------------------------------


def result(status: str, reason: str = "") -> Result:
    """One of a cheat."""
    return Result("c", "matmul", "v", {}, "(m=1)", {}, "f32", "cuda", status, reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("results", "holds"),
    [
        ([result("wrong", "wrong at out[0] after timing")], True),
        ([result("right")], False),
        ([result("right"), result("wrong", "…")], False),
        ([result("failed", "the kernel died")], False),
        ([], False),
        ([result("unsupported", "needs the Python module cupy")], None),
    ],
)
def test_a_cheat_is_caught_only_by_what_it_expects(tmp_path: Path, results: list[Result], holds: bool | None) -> None:
    path = tmp_path / "a_cheat.py"
    path.write_text('"""x"""\n# expect: wrong|invalid\n')
    part = selftest.cheats([path], lambda file, problems: results)
    assert [(c.sentence, c.holds) for c in part.claims] == [("a cheat", holds)]


@pytest.mark.parametrize("path", TIME_CHEATS, ids=lambda p: p.stem)
def test_a_time_cheat_says_what_is_expected_and_is_a_variant(path: Path) -> None:
    from opbench.running.targets import own_variants

    assert set(expectation(path).texts) <= {"wrong", "invalid"}
    assert own_variants(path, CATALOG)[0].is_library


# All together -----------------------------------------------------------------------------------------------------


def test_parts_are_kept_as_they_come_and_one_that_dies_costs_itself(tmp_path: Path) -> None:
    def dies(seconds: float) -> Part:
        raise LaunchError("illegal address in opbench_chase")

    def fine(seconds: float) -> Part:
        part = Part("floor", "The launch floor")
        part.add_claim("a claim", "1", "1", True)
        return part

    kept: list[dict[str, Any]] = []

    def keep(found: Selftest, part: Part) -> None:
        write_selftest_results(found, tmp_path)
        kept.append(json.loads((tmp_path / FILE).read_text()))

    found = outcome()
    selftest.run_parts({"floor": fine, "flush": dies, "aa": fine}, ["floor", "flush", "aa"], found, keep)
    assert [len(k["parts"]) for k in kept] == [1, 2, 3]
    assert [p.error for p in found.parts] == ["", "illegal address in opbench_chase", ""]
    assert found.exit_code == 1 and found.summary() == "2 of 2 checks pass; ended early: flush"
    assert any("illegal address" in line for line in part_lines(found.parts[1]))


def test_the_parts_chosen_share_the_whole_budget() -> None:
    given: dict[str, float] = {}

    def part_named(name: str) -> Callable[[float], Part]:
        return lambda seconds: (given.setdefault(name, seconds) and Part(name, name)) or Part(name, name)

    names = selftest.chosen_parts("slowdown, aa")
    selftest.run_parts({n: part_named(n) for n in names}, names, outcome(), lambda found, part: None)
    assert names == ["aa", "slowdown"] and sum(given.values()) == pytest.approx(10.0)
    assert selftest.chosen_parts("") == list(selftest.PARTS)
    with refuses_name("part", "slowdwn", "slowdown"):
        selftest.chosen_parts("slowdwn")


def test_the_page_is_self_contained_and_names_every_claim(tmp_path: Path) -> None:
    device, found = SimulatedDevice(), outcome()
    runs = {
        "floor": lambda s: selftest.check_floor(device, s, device.world.now),
        "aa": lambda s: selftest.measure_identical_pairs(device, s, device.world.now),
        "slowdown": lambda s: selftest.measure_slow_downs(device, s, device.world.now),
    }
    found.budget_s = 0.0
    selftest.run_parts(runs, list(runs), found, lambda outcome, part: None)
    files = write_selftest(found, tmp_path)
    assert [f.name for f in files] == ["selftest.html", "selftest.png", FILE]
    page = files[0].read_text()
    assert files[1].read_bytes().startswith(b"\x89PNG") and "<svg" in page and "src=" not in page
    for row in (row for part in found.parts for row in check_rows(part)):
        assert row.name.replace("'", "&#39;") in page and row.word in page
    assert json.loads(files[2].read_text())["exit_code"] == found.exit_code
    assert '<figure class="small">' in page, "the chart shrinks with the screen"
    bad = '<p class="summary bad">' if found.exit_code else '<p class="summary">'
    assert f"{bad}{found.summary()}" in page and page.index(found.summary()) < page.index("<table")


def test_a_page_is_written_again_from_its_record(tmp_path: Path) -> None:
    committed = shipped_folder("reports") / "h100" / "selftest-clock"
    (tmp_path / FILE).write_bytes(unpacked(stored_file(committed / FILE)))
    before = (tmp_path / FILE).read_text()
    done = CliRunner().invoke(report_command, [str(tmp_path)])
    assert done.exit_code == 0 and done.stdout.endswith("15 of 16 checks pass\n")
    written = {**json.loads((tmp_path / FILE).read_text()), "summary": json.loads(before)["summary"]}
    assert written == json.loads(before), "nothing is lost on the way"
    page = (tmp_path / "selftest.html").read_text()
    assert "15 of 16 checks pass. Failing: spans agree with cuda.bench." in page and "--only clocks" in page
    assert page.count('<span class="status right">passes</span>') == 15
    assert "1 % in 0 of 370 pairs, 2 % in 369 of 370 pairs" in page, "the page states what is not detected"
    document = json.loads(CliRunner().invoke(report_command, [str(tmp_path), "--json"]).stdout)
    assert document["summary"] == "15 of 16 checks pass"


def test_the_page_of_cheats_says_which_were_rejected() -> None:
    (part,) = read_selftest(shipped_folder("reports") / "h100" / "selftest").parts
    rows = {row.name: row for row in check_rows(part)}
    assert (rows["honest kernel `relu`"].required, rows["honest kernel `relu`"].measured) == ("accepted", "accepted")
    assert rows["cheat `counts in the guard`"].measured == "rejected: wrong"
    trick = rows["cheat `keeps inputs in l2`"]
    assert (trick.holds, trick.required, trick.measured) == (
        True,
        "no shorter time than the honest kernel",
        "timed without a gain",
    )
    found = outcome()
    found.parts = [part]
    bars = part_bars(found)
    assert sum(int(bar.value) for bar in bars) == len(part.claims) and max(bar.length for bar in bars) == 1.0
    failed = replace(part.claims[0], holds=False)
    assert check_rows(replace(part, claims=[failed]))[0].measured.endswith(f"({failed.seen})")
    assert next_steps(replace(found, parts=[replace(part, claims=[failed])]))[0].count("--only cheats") == 1


def test_what_is_no_self_test_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"format": 99}')
    with refuses_version("format", 99):
        read_selftest(tmp_path)
    (tmp_path / FILE).write_text("[]")
    with refuses_version("format", "list"):
        read_selftest(tmp_path)


def test_without_shares_there_is_no_chart(tmp_path: Path) -> None:
    assert [f.name for f in write_selftest(outcome(), tmp_path)] == ["selftest.html", FILE]


def test_shares_have_exact_intervals() -> None:
    low, high = stats.share_interval(0, 40)
    assert low == 0 and high == pytest.approx(1 - 0.025 ** (1 / 40))
    low, high = stats.share_interval(40, 40)
    assert high == 1 and low == pytest.approx(0.025 ** (1 / 40))
    # R: binom.test(3, 50)
    assert stats.share_interval(3, 50) == pytest.approx((0.01254859, 0.16548195), abs=1e-7)
    with pytest.raises(ValueError, match="5 of 4"):
        stats.share_interval(5, 4)


def test_without_a_gpu_it_says_so(cli: Cli) -> None:
    from opbench.gpu.driver import why_missing

    if why_missing() is None:
        pytest.skip("there is a GPU; what is tested is what is said without one")
    done = cli("selftest")
    assert done.returncode == 3 and "no CUDA device" in done.stderr and done.stdout == ""
    assert cli("selftest", "--only", "flsh").returncode == 2


@pytest.mark.parametrize(("flushes", "code"), [(True, 0), (False, 1)])
def test_the_command_prints_as_it_goes_and_leaves_with_its_code(
    flushes: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from opbench.cli import cli as commands
    from opbench.gpu import driver as cuda

    device = SimulatedDevice(noise=quiet, overhead_s=2e-4, flushes=flushes)
    monkeypatch.setattr(cuda, "why_missing", lambda: None)
    monkeypatch.setattr(cuda, "CudaBackend", lambda: device)
    monkeypatch.setattr(selftest, "check_flush", lambda d, seconds: FLUSH(d, seconds, device.world.now))
    words = ["selftest", "--only", "flush", "--budget", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == code, done.output
    assert "flush: Cold caches" in done.stdout and ("FAILS" in done.stdout) == bool(code)
    assert "checks pass" in done.stdout and (tmp_path / "selftest.html").exists()
    done = CliRunner().invoke(commands, [*words, "--json"])
    found = json.loads(done.stdout)
    assert found["exit_code"] == code == done.exit_code and found["parts"][0]["name"] == "flush"
    assert "flush: Cold caches" in done.stderr


FLUSH = selftest.check_flush


def test_the_clock_of_a_gpu_has_what_the_self_test_asks_for() -> None:
    """Names and parameters; what they do is seen on a device."""
    import inspect

    from opbench.gpu.driver import CudaBackend
    from opbench.gpu.driver.clock import CudaClock

    for protocol, real in ((selftest.SelftestClock, CudaClock), (selftest.SelftestDevice, CudaBackend)):
        methods = [name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"]
        assert methods
        for name in methods:
            wanted = list(inspect.signature(getattr(protocol, name)).parameters)
            there = list(inspect.signature(getattr(real, name)).parameters)
            assert there[: len(wanted)] == wanted, name
