"""Shipped sources built by g++ and run on the cpu backend, which stands in for CUDA's runtime."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from common import ROOT

from opbench.backends.cpu import CpuBackend
from opbench.backends.nvrtc.nvrtc import include_options
from opbench.catalog.launch import BuildRequest

STAND_IN = ROOT / "tests" / "shipping" / "cudart_on_cpu.cpp"
HANDLE = re.compile(r'^(KERNEL|CONSTANT)\(\w+, "(\w+)", (.+)\)$', re.MULTILINE)


def built(folder: Path, source: str, *programs: str) -> tuple[Path, dict[str, str]]:
    """The program of a shipped folder, and the environment in which it runs without a GPU."""
    made = folder.parent / f"{folder.name}-built"
    made.mkdir()
    text = (folder / source).read_text()
    found = HANDLE.findall(text)
    kernels, constants = ({what: name for kind, name, what in found if kind == one} for one in ("KERNEL", "CONSTANT"))
    device = made / "kernels.cu"
    device.write_text(text.partition("#ifdef __CUDACC__")[2].partition("\n")[2].partition("#endif  // kernels")[0])
    backend = CpuBackend()
    module = backend.compile(BuildRequest(device, tuple(kernels), (), "9.0a", (folder,), tuple(constants)))
    (made / "names").write_text("\n".join([*kernels.values(), "", *constants.values()]))
    cubin = next(folder.glob("*.cubin"))
    program = made / "program"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *include_options(), f"-I{folder}"]
    sources = [str(folder / name) for name in (source, *programs)]
    command = [
        "g++",
        *flags,
        f'-DOPBENCH_CUBIN="{cubin}"',
        "-x",
        "c++",
        *sources,
        str(STAND_IN),
        "-ldl",
        "-o",
        str(program),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-4000:]
    runtime = backend._builder.runtime()
    environment = {"SHIP_RUNTIME": str(runtime), "SHIP_MODULE": str(module), "SHIP_NAMES": str(made / "names")}
    return program, {**os.environ, **environment}


def cases_of(folder: Path) -> list[str]:
    """The cases that a folder says it holds."""
    return list(json.loads((folder / "ship.json").read_text())["cases"])
