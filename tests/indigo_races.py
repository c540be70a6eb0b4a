"""Check the race kernels of the public suite Indigo on the CPU and write a table of found races and accused kernels.

    python tests/indigo_races.py FOLDER FILE [GRAPH…]

FOLDER is the suite's: `indigo_sources/*/*.cu`, whose names say their bugs, and graphs `input/*.egr`. This repository
holds nothing of the suite. Each kernel runs with the suite's own launch (1024 blocks of 256 threads) and contents on
each graph. Kernels with "boundsBug" are left out. FILE gets the table, FILE.jsonl a line per kernel and graph.

A kernel whose only bug is "guardBug" reads a maximum plainly to spare atomic operations: each value that the read may
return gives the right result, so opbench does not call the kernel wrong. The table counts these kernels separately.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opbench.backend.base import TraceOptions
from opbench.emulator.backend import CpuBackend
from opbench.kernels.launch import BuildRequest, KernelLaunch

BLOCKS, THREADS = 1024, 256
HEAD = """\
# python tests/indigo_races.py FOLDER FILE: kernels of the suite Indigo on the CPU, reported of all.
# races found: kernels that have a race on some input; as labels: the bugs in the names of these kernels.
# guards noted: kernels whose only bug is guardBug and that get a note, which is no fault.
# right accused: kernels without a bug. Where no thread of a small graph takes a branch, nothing can race.
"""
MOST_KERNELS = 32
"""Kernels in a module: one compilation for many."""


def modules(sources: Path, folder: Path) -> Iterator[BuildRequest]:
    """Write the suite's kernels under their files' names into modules of up to `MOST_KERNELS`."""
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted(sources.glob("*/*.cu")):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), count=1, flags=re.DOTALL)
        device = text[: text.index("void serial_code")].replace('#include "indigo_cuda.h"', "")
        start = device.index("__global__")
        if "boundsBug" not in path.stem:
            groups[device[:start]].append((path.stem, device[start:].replace("test_kernel", path.stem)))
    for number, (head, kernels) in enumerate(groups.items()):
        for first in range(0, len(kernels), MOST_KERNELS):
            part = kernels[first : first + MOST_KERNELS]
            source = folder / f"indigo_{number}_{first}.cu"
            source.write_text(head + "".join(f'extern "C" {text}' for _, text in part), encoding="utf-8")
            yield BuildRequest(source=source, kernels=tuple(name for name, _ in part))


def contents(graph: Path) -> tuple[dict[str, np.ndarray], int]:
    """Return the buffers as the suite fills them, with the random numbers of the C library, and the number of nodes."""
    stored = np.fromfile(graph, np.int32)
    nodes, edges = int(stored[0]), int(stored[1])
    library, longest = ctypes.CDLL(None), max(nodes, edges, 1)
    library.srand(1)
    values = [
        np.array([0, *(library.rand() % bound for _ in range(longest - 1))], np.int32) for bound in (nodes, edges)
    ]
    first = 3 + nodes
    return {
        "nindex": stored[2:first].copy(),
        "nlist": stored[first : first + edges].copy(),
        "data1": values[0],
        "data2": values[1],
    }, nodes


def checked(backend: CpuBackend, request: BuildRequest, kernel: str, graph: Path) -> dict[str, Any]:
    """Run a kernel in as many orders of threads as a check, until one has a race; return its line."""
    arrays, nodes = contents(graph)
    launch = KernelLaunch(kernel, (BLOCKS, 1, 1), (THREADS, 1, 1), 0, (*arrays, nodes))
    line: dict[str, Any] = {"kernel": kernel, "graph": graph.stem, "races": [], "notes": []}
    for _ in range(backend.order_count(request)):
        buffers = {name: backend.allocate(name, array.shape, "i32") for name, array in arrays.items()}
        for name, array in arrays.items():
            buffers[name].write(array)
        trace = backend.trace(request, [launch], buffers, TraceOptions(count=False))
        backend.free(buffers)
        line["races"] = sorted({finding.kind for finding in trace.findings if "race" in finding.kind})
        line["notes"] = sorted({*line["notes"], *(finding.kind for finding in trace.notes)})
        if line["races"]:
            break
    return line


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Return a row per graph: racy kernels and their bug labels, kernels with a guard alone, and right kernels."""
    rows: dict[str, dict[str, list[int]]] = defaultdict(
        lambda: {key: [0, 0] for key in ("racy", "labels", "guard", "right")}
    )
    for line in lines:
        labels = re.findall(r"[a-z]+Bug", line["kernel"])
        key = "right" if not labels else "guard" if labels == ["guardBug"] else "racy"
        counts, reported = rows[line["graph"]], bool(line["races"])
        counts[key][0] += reported or (key == "guard" and "unordered_read" in line["notes"])
        counts[key][1] += 1
        if key == "racy":
            counts["labels"][0] += len(labels) * reported
            counts["labels"][1] += len(labels)
    text = f"{'graph':22} {'races found':>12} {'as labels':>10} {'guards noted':>13} {'right accused':>14}\n"
    for graph, counts in sorted(rows.items()):
        cells = {key: f"{seen}/{total}" for key, (seen, total) in counts.items()}
        text += f"{graph:22} {cells['racy']:>12} {cells['labels']:>10} {cells['guard']:>13} {cells['right']:>14}\n"
    return text


def main(arguments: Sequence[str]) -> int:
    """Check all kernels on the graphs and write the table; exit code 1: a right kernel was accused."""
    suite, out, names = Path(arguments[0]), Path(arguments[1]), arguments[2:]
    graphs = [path for path in sorted(suite.glob("input/*.egr")) if not names or path.stem in names]
    lines, backend = [], CpuBackend()
    with tempfile.TemporaryDirectory() as folder:
        for request in modules(suite / "indigo_sources", Path(folder)):
            lines += [checked(backend, request, kernel, graph) for kernel in request.kernels for graph in graphs]
    out.write_text(HEAD + table(lines), encoding="utf-8")
    Path(f"{out}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(out.read_text(encoding="utf-8"), end="")
    return int(any(line["races"] and "Bug" not in line["kernel"] for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
