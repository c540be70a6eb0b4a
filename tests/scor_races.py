"""Check the microbenchmarks of the public suite ScoR on the CPU and write a table of found races and accused kernels.

    python tests/scor_races.py FOLDER FILE

FOLDER is the suite's: `microbenchmarks/src/*.cu`, whose names begin with "race" or "norace". This repository holds
nothing of the suite. Each kernel runs with the suite's own launch, as written and without `volatile`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opbench.backend.base import TraceOptions
from opbench.emulator.backend import CpuBackend
from opbench.kernels.launch import BuildRequest, KernelLaunch

HEAD = """\
# python tests/scor_races.py FOLDER FILE: microbenchmarks of the suite ScoR on the CPU, and what opbench reports.
# Names that begin with "race" have a race by the suite's memory model, names that begin with "norace" have none.
# By PTX two volatile or atomic accesses never race, as their scopes hold all blocks. Of volatile ones, opbench reports
# two stores without an order, a store that overwrites an atomic operation, and reads after a flag that only a fence of
# block scope precedes. It does not report two races of the suite: volatile reads that meet the store of one writer,
# which may be a flag. Without volatile it reports all.
# Four kernels without a race read a flag without an acquire fence: without volatile that is a race by PTX.
"""


def checked(backend: CpuBackend, path: Path, folder: Path, volatile: bool) -> str:
    """Run a microbenchmark; return the kinds of its races, "-" for none."""
    text = path.read_text(encoding="utf-8")
    blocks, threads = (int(re.findall(rf"#define {name}\s+(\d+)", text)[0]) for name in ("NBLOCKS", "TPERBLK"))
    device = text[text.index("__device__") : text.index("int main")]
    source = folder / f"{re.sub(r'[^a-z]', '_', path.stem)}_{volatile:d}.cu"
    source.write_text(f'extern "C" {{\n{device if volatile else device.replace("volatile ", "")}}}\n', encoding="utf-8")
    request = BuildRequest(source=source, kernels=("kmain",))
    launch = KernelLaunch("kmain", (blocks, 1, 1), (threads, 1, 1), 0, ("data",))
    data = backend.allocate("data", (1,), "u32")
    data.write(np.zeros(1, np.uint32))
    trace = backend.trace(request, [launch], {"data": data}, TraceOptions(count=False))
    backend.free({"data": data})
    return " ".join(sorted({one.kind.replace("_", "-") for one in trace.findings if "race" in one.kind})) or "-"


def main(arguments: Sequence[str]) -> int:
    """Check all microbenchmarks and write the table; exit code 1: a kernel without a race was accused."""
    suite, out = Path(arguments[0]), Path(arguments[1])
    paths, backend = sorted(suite.glob("microbenchmarks/src/*.cu")), CpuBackend()
    with tempfile.TemporaryDirectory() as folder:
        rows = [(path.stem, *(checked(backend, path, Path(folder), v) for v in (True, False))) for path in paths]
    text = f"{'kernel':48} {'as written':12} {'without volatile':12}\n"
    text += "".join(f"{name:48} {written:12} {plain}\n" for name, written, plain in rows)
    for label in ("race", "norace"):
        marked = [row for row in rows if row[0].startswith(f"{label}_")]
        counts = [f"{sum(row[column] != '-' for row in marked)}/{len(marked)}" for column in (1, 2)]
        text += f"{f'reported of {label}':48} {counts[0]:12} {counts[1]}\n"
    out.write_text(HEAD + text, encoding="utf-8")
    print(out.read_text(encoding="utf-8"), end="")
    return int(any(name.startswith("norace") and written != "-" for name, written, _ in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
