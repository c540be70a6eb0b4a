"""Nsight Compute's rules on the lower variants of the ladder steps: the peer of the advice that advice_score.py scores.

python tests/nsight_rules.py cases > cases.txt             # the lower variants of all steps, one case a line
ncu --nvtx --nvtx-include "regex:opbench@.*/" --set full --cache-control all --clock-control none -f -o peer \
    python tests/nsight_rules.py launch cases.txt          # on a GPU: launch each case once within its range
ncu --import peer.ncu-rep --page details --csv --print-nvtx-rename kernel > peer.csv
python tests/nsight_rules.py read peer.csv                 # add what the rules say to reports/h100/nsight-rules
python tests/nsight_rules.py steps RUNS                    # write the steps of runs on the same model of card there

The rules saw the kernels on an H100, so they are compared with steps of an H100. The runs of its suites are no longer
in reports/; steps.json.gz keeps the gains of their steps and the facts that the advice reads.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opbench.nvtx import case_range, safe_name
from opbench.records import read_json, to_json, unpacked

if TYPE_CHECKING:
    from advice_score import Step

FILE = Path(__file__).parent.parent / "reports/h100/nsight-rules/rules.json.gz"
STEPS = FILE.with_name("steps.json.gz")
IGNORED = "MemoryL2Compression"
"""A rule that fires at every kernel that writes: it is about memory that a program did not mark as compressible."""
SUGGESTION = "OPT"
"""The type of a rule that suggests a change; others inform or warn."""
STALLS = {
    "L1TEX": "long_scoreboard",
    "fixed latency": "wait",
    "CTA barrier": "barrier",
    "micro scheduler to select": "not_selected",
    "MIO": "mio",
    "branch": "branch_resolving",
    "math": "math_pipe",
    "memory input/output": "mio",
    "LG": "lg_throttle",
    "sleep": "sleeping",
    "instruction cache": "no_instruction",
    "warp-level": "membar",
}
"""A word of the rule's sentence on the main stall reason, and the reason; Nsight Compute prints only the sentence."""
MEMORY = frozenset(
    {
        "coalesced",
        "coalesced_stores",
        "shared_memory_transpose",
        "shared_memory_tile",
        "vectorised_access",
        "few_channels",
    }
)
IN_FLIGHT = frozenset({"unrolled", "register_tile", "double_buffer", "async_copy", "tma", "warp_specialised"})
BALANCE = frozenset({"split_k", "sliced_k", "cluster", "persistent", "grid_stride", "flat_index", "uniform_warps"})
INTEGERS = frozenset({"no_division", "compile_time_sizes", "fewer_operations"})
CURES: Mapping[str, frozenset[str]] = {
    "UncoalescedGlobalAccess": MEMORY,
    "MemoryCacheAccessPattern": MEMORY,
    "UncoalescedSharedAccess": frozenset({"bank_conflict_free"}),
    "SharedMemoryConflicts": frozenset({"bank_conflict_free"}),
    "LaunchConfiguration": BALANCE,
    "WorkloadImbalance": BALANCE,
    "AchievedOccupancy": BALANCE,
    "TheoreticalOccupancy": BALANCE,
    "ThreadDivergence": frozenset({"uniform_warps", "flat_index"}),
    "FPInstructions": frozenset({"fewer_operations", "tensor_core"}),
    "IssueSlotUtilization": IN_FLIGHT,
    "HighPipeUtilization": frozenset({"tensor_core", *INTEGERS}),
    "CPIStall long_scoreboard": MEMORY | IN_FLIGHT,
    "CPIStall lg_throttle": MEMORY,
    "CPIStall wait": frozenset({"unrolled"}) | INTEGERS,
    "CPIStall barrier": frozenset({"fewer_barriers", "warp_shuffle", "warp_specialised", "block_reduction"}),
    "CPIStall mio": frozenset({"bank_conflict_free", "warp_shuffle", "register_tile"}),
    "CPIStall math_pipe": frozenset({"tensor_core", *INTEGERS}),
    "CPIStall branch_resolving": frozenset({"uniform_warps", *INTEGERS}),
}
"""The mechanisms that cure what a rule names, read generously: each that its text or its documentation suggests."""


@dataclass(frozen=True)
class Suggestion:
    """A rule that suggests a change to a case."""

    rule: str
    saved: float
    """The share of the case's time that Nsight Compute estimates to save."""

    @property
    def mechanisms(self) -> frozenset[str]:
        """Return the mechanisms that would cure it."""
        return CURES.get(self.rule, frozenset())

    @property
    def gain(self) -> float:
        """Return the time before, divided by the estimated time after."""
        return 1 / max(1 - self.saved, 0.01)


def suggestions_of(rows: Iterable[Mapping[str, str]]) -> dict[str, list[Suggestion]]:
    """Return each range's suggestions, those that save most first; kernels count by their share of the time.

    `rows` are those of Nsight Compute's page of details, with ranges before the names of kernels.
    """
    times: dict[str, dict[str, float]] = defaultdict(dict)
    saved: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    for row in rows:
        name, _, _ = row["Kernel Name"].rpartition("/")
        kernel = row["Kernel Name"] + row["ID"]
        if row["Metric Name"] == "Duration":
            times[name][kernel] = float(row["Metric Value"].replace(",", "")) * units[row["Metric Unit"]]
        if row["Rule Type"] == SUGGESTION and row["Estimated Speedup"] and row["Estimated Speedup Type"] == "global":
            rule = row["Rule Name"]
            if rule == IGNORED:
                continue
            if rule == "CPIStall":
                reasons = [reason for word, reason in STALLS.items() if word in row["Rule Description"]]
                rule += f" {reasons[0]}" if reasons else ""
            share = min(float(re.sub(r"[^0-9.]", "", row["Estimated Speedup"])) / 100, 1.0)
            others = saved[name][rule]
            others[kernel] = max(share, others.get(kernel, 0.0))
    found = {}
    for name, of_kernels in times.items():
        total = sum(of_kernels.values())
        made = [
            Suggestion(rule, round(sum(of_kernels[kernel] * share for kernel, share in shares.items()) / total, 4))
            for rule, shares in saved[name].items()
        ]
        found[name] = sorted(made, key=lambda one: -one.saved)
    return found


def read(cases: Sequence[str]) -> dict[str, list[Suggestion]]:
    """Return the committed suggestions of those cases that Nsight Compute has measured."""
    stored = read_json(FILE, "")
    return {case: [Suggestion(**one) for one in stored[safe_name(case)]] for case in cases if safe_name(case) in stored}


def add(paths: Sequence[Path]) -> None:
    """Add the suggestions of Nsight Compute's pages of details to the committed file."""
    stored = read_json(FILE, "") if FILE.exists() else {}
    for path in paths:
        lines = unpacked(path).decode().splitlines(keepends=True)
        rows = csv.DictReader(line for line in lines if line.startswith('"'))
        stored |= {name: [asdict(one) for one in several] for name, several in suggestions_of(rows).items()}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_bytes(_packed(stored))


def write_steps(steps: Sequence[Step]) -> None:
    """Write those steps whose lower variants Nsight Compute has measured."""
    known = read([step.case for step in steps])
    recorded = [
        {
            "operator": step.operator,
            "lower": step.lower,
            "upper": step.upper,
            "case": step.case,
            "problem": step.problem,
            "gain": step.gain,
            "facts": to_json(step.facts, omit_defaults=True),
        }
        for step in steps
        if step.case in known
    ]
    STEPS.write_bytes(_packed(recorded))


def _packed(value: object) -> bytes:
    return gzip.compress(json.dumps(value, indent=0, sort_keys=True).encode(), mtime=0)


def launch(cases: Sequence[str]) -> None:
    """Launch each case once within its range, after once without; a case that fails is named."""
    from opbench.checking.backends import open_backend
    from opbench.checking.checking import Session
    from opbench.errors import OpbenchError
    from opbench.kernels.folders import Catalog

    catalog, backend = Catalog(), open_backend("cuda")
    session = Session(backend)
    for name in sorted(cases, key=lambda name: name.partition("(")[2]):  # a problem's inputs are drawn once
        try:
            case = catalog.case(name)
            kernels = session.launch(case)
            kernels()
            backend.synchronize()
            with case_range(case.name, case.variant.operator):
                kernels()
                backend.synchronize()
        except OpbenchError as error:
            print(f"{name}: {error}", file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    """Print the cases, launch them, read what Nsight Compute says, or write the steps."""
    import advice_score

    def steps(*runs: Path) -> list[Step]:
        return advice_score.cures(advice_score.steps(advice_score.measured_steps(*runs)))

    match arguments:
        case ["cases"]:
            print("\n".join(sorted({step.case for step in steps()})))
        case ["launch", path]:
            launch(Path(path).read_text().splitlines())
        case ["read", *paths]:
            add([Path(path) for path in paths])
        case ["steps", runs]:
            write_steps(steps(Path(runs)))
        case _:
            print(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
