"""What the terminal's table must not leave out: how sure a time is, what exceeds the peak, how many are wrong."""

from __future__ import annotations

import re

from opbench import units
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.gpu.limits.lower_bound import AbovePeak
from opbench.results.rows import rows
from support.builders.runs import CEILINGS, cpu_run, relu_run, result, run
from support.checks.pages import printed


def line_style(text: str, name: str) -> list[str]:
    """The words of a variant's line."""
    return next(line.split() for line in text.splitlines() if f" {name} " in line)


def test_each_timed_row_says_its_interval_and_its_samples() -> None:
    found = run([result("steady", 1e-3, half_width=0.0002), result("noisy", 2e-3, half_width=0.03)])
    text = printed(found)
    assert " ".join(line_style(text, "variant")) == "variant GPU time ± 95 % n rate of peak vs prev"
    assert line_style(text, "steady")[4:7] == ["0.02", "%", "40"] and line_style(text, "noisy")[4:7] == [
        "3.0",
        "%",
        "40",
    ]


def test_a_narrow_terminal_goes_without_the_rate_before_the_interval() -> None:
    long = run([result("v" * 32, 3e-3, builds_on="w"), result("w", 2e-3), result("torch", 1e-3, library=True)])
    text = printed(long, 80, terminal=True)
    assert "± 95 %" in text and " n " in text and "vs lib" in text and " rate" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_is_wrong_stands_above_what_is_right_and_unsupported_takes_one_line() -> None:
    found = relu_run()
    reason = "needs compute capability 9.0a"
    found.results += [result(f"wgmma_{i}", status="unsupported", reason=reason, verdict=None) for i in range(9)]
    text = printed(found)
    assert text.index("wrong  racy") < text.index("variant") < text.index("unsupported  wgmma")
    assert sum(line.startswith("  unsupported") for line in text.splitlines()) == 1
    assert "unsupported  wgmma, wgmma_0, wgmma_1, wgmma_2 and 6 more: needs compute capability 9.0a" in text


def test_small_problems_are_told_apart_by_what_the_roofs_allow() -> None:
    text = printed(cpu_run())
    launch = units.time(committed_ceilings("h200").launch_floor_s)
    assert re.search(r"lower bound on an H200: 29\.\d µs \(memory\)", text)
    assert re.search(rf"lower bound on an H200: {launch} \(launch\); memory alone 11\.\d ns", text)


# Above the peak ---------------------------------------------------------------------------------------------------

ONE_WAY = CEILINGS | {"dram_read_bytes_per_s": 4.2e12, "dram_write_bytes_per_s": 4.4e12}


def why(share: float, ceilings: dict = ONE_WAY, **work: object) -> str | None:
    """The reason of a case at a share of its peak."""
    values: dict = {"nbytes": 8_000_000_000, "flops": 0} | work
    least = max(values["nbytes"] / 4e12, values["flops"] / 50e12)
    (row,) = rows(run([result("fast", least / share, **values)], ceilings=ceilings))
    assert row.peak_share and abs(row.peak_share / share - 1) < 1e-9
    return row.above_peak


def test_a_share_above_the_roof_says_why() -> None:
    assert why(1.0) is None and why(1.004) is None
    assert why(1.08) == AbovePeak.ONE_WAY, "writes alone reach 110 % of a copy"
    assert why(1.08, written_bytes=7_500_000_000) == AbovePeak.ONE_WAY
    assert why(1.08, written_bytes=4_000_000_000) == AbovePeak.MIX, "it reads and writes as a copy does"
    assert why(1.04, CEILINGS) == AbovePeak.SCATTER and why(1.08, CEILINGS) == AbovePeak.MIX
    assert why(1.12) == why(1.12, CEILINGS) == AbovePeak.IMPOSSIBLE
    assert why(1.4, nbytes=50_000_000) == AbovePeak.IMPOSSIBLE, "nothing of it is in the L2 cache after a flush"
    other = CEILINGS | {"gpu": "NVIDIA GeForce RTX 4090"}
    assert why(1.4, other, nbytes=50_000_000, written_bytes=25_000_000) == AbovePeak.IN_L2, "what is written may stay"
    assert why(1.4, other, nbytes=50_000_000, written_bytes=1_000_000) == AbovePeak.IMPOSSIBLE
    compute = {"flops": 10**14, "nbytes": 10**6}
    assert why(2.24, flops_are_a_floor=False, **compute) == AbovePeak.FEWER_FLOPS
    assert why(1.03, **compute) == AbovePeak.SCATTER and why(2.24, **compute) == AbovePeak.IMPOSSIBLE


def test_the_table_marks_what_is_above_the_roof_and_says_why() -> None:
    work = {"flops": 10**11, "nbytes": 10**6, "flops_are_a_floor": False}
    text = printed(run([result("fft", 1e-3, **work), result("naive", 9e-3, **work)]))
    assert "200 % ^" in text and "fft: 200 % of peak (FLOPs counted by the textbook algorithm" in text
