"""Shipped sources built by g++ and run on the cpu backend, which stands in for CUDA's runtime."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from opbench.emulator import CpuBackend
from opbench.gpu.compile.nvrtc import include_options
from opbench.kernels.launch import BuildRequest
from support.common import ROOT

RUNTIME = ROOT / "opbench" / "emulator"
STRUCTS = {
    "include/opbench_cpu/abi.hpp": ("struct opb_tensor_map ", "constexpr unsigned opb_tensor_map_magic"),
    "runtime/worker.hpp": ("constexpr uint32_t kMaxSamples", "struct Report ", "struct Trace;", "struct Launch "),
}
"""What the stand-in shares with the runtime, by how it begins; taken from there, so that the two cannot part."""
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
    (made / "of_the_runtime.hpp").write_text("\n".join(shared_structs()))
    cubin = next(folder.glob("*.cubin"))
    program = made / "program"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *include_options(), f"-I{folder}", f"-I{made}"]
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


def shared_structs() -> Iterator[str]:
    """Their text."""
    for file, starts in STRUCTS.items():
        text = (RUNTIME / file).read_text()
        for start in starts:
            end = "\n};" if start.endswith(" ") else ";"
            begin = text.index(start)
            yield text[begin : text.index(end, begin) + len(end)]


def cases_of(folder: Path) -> list[str]:
    """The cases that a folder says it holds."""
    return list(json.loads((folder / "ship.json").read_text())["cases"])
