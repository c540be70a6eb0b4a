"""Compare the cpu backend with NVIDIA's compute-sanitizer: the CPU must report each fault that its tools report.

What they cannot see is not here: a global access that leaves its tensor but not the allocation (opbench's guard bands
lie there), an access past one `__shared__` array that lands in the next, reads of poison, races between blocks, wrong
shuffle masks. Threads that wait at a barrier in a branch hang under them as they do without.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from opbench.gpu.compile.installed import compute_sanitizer
from opbench.gpu.driver import why_missing
from support.common import CHEATS, ROOT, said

TOOL = compute_sanitizer()
pytestmark = [
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
    pytest.mark.skipif(TOOL is None, reason="no compute-sanitizer; opbench[sanitizer] installs it"),
]

RACE, MEMORY, BARRIER = ("racecheck", "Race reported"), ("memcheck", "Invalid __"), ("synccheck", "Barrier error")
SEEN = {
    "adds_to_shared_without_atomics": RACE,
    "folds_an_odd_count_onto_itself": RACE,
    "forgets_syncwarp": RACE,
    "forgets_the_barrier_between_steps": RACE,
    "forgets_the_barrier_of_a_tile": RACE,
    "forgets_the_second_barrier": RACE,
    "overwrites_the_filter_while_it_is_used": RACE,
    "reads_sums_of_warps_at_once": RACE,
    "waits_only_for_its_warp": RACE,
    "asks_for_too_little_dynamic_shared": MEMORY,
    "counts_bytes_where_elements_are_meant": MEMORY,
    "divides_by_an_overflowing_product": MEMORY,
    "reads_float2_from_odd_rows": MEMORY,
    "reads_float4_from_odd_rows": MEMORY,
    "reads_sums_of_warps_that_are_not_there": MEMORY,
    "writes_below_its_tile": MEMORY,
    "writes_far_away": MEMORY,
    "writes_right_of_its_tile": MEMORY,
    "barrier_in_a_divergent_branch": BARRIER,
}
KINDS = {
    "racecheck": "shared-race",
    "memcheck": "out-of-bounds|misaligned|illegal",
    "synccheck": "divergent-barrier",
}
"""What the cpu backend says of the same mistake."""


def sanitized(tool: str, *arguments: str) -> str:
    """What a tool prints beside `opbench check` on the GPU."""
    command = [
        str(TOOL),
        "--tool",
        tool,
        "--target-processes",
        "all",
        "--report-api-errors",
        "no",
        "--print-limit",
        "5",
    ]
    check = [sys.executable, "-m", "opbench", "check", *arguments, "--backend", "cuda"]
    done = subprocess.run([*command, *check], capture_output=True, text=True, timeout=200, check=False, cwd=ROOT)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", SEEN)
def test_what_the_sanitizer_sees_the_cpu_backend_says(name: str) -> None:
    tool, words = SEEN[name]
    path = CHEATS / f"{name}.cu"
    assert words in sanitized(tool, str(path))
    assert re.search(KINDS[tool], said(path, "expect"))


def test_every_cheat_with_a_shared_race_is_one_that_racecheck_sees() -> None:
    races = {path.stem for path in CHEATS.glob("*.cu") if "shared-race" in said(path, "expect")}
    assert races == {name for name, tool in SEEN.items() if tool is RACE}


@pytest.mark.parametrize("variant", ["matmul/shared_tile", "transpose/padded", "sum/sequential", "conv2d/input_tile"])
@pytest.mark.parametrize("tool", ["racecheck", "synccheck"])
def test_right_variants_are_right_for_the_sanitizer_too(variant: str, tool: str) -> None:
    said_by_tool = sanitized(tool, variant)
    assert re.search(r"SUMMARY: 0 (hazards|errors)", said_by_tool) and "Race reported" not in said_by_tool
