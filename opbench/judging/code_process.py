"""The process that compiles submitted kernels for a GPU; `opbench.judging.code` sends its request on stdin."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opbench.judging.code import CompiledCode

READABLE_FOLDERS = (
    "/usr",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/opt",
    "/etc/ld.so.cache",
    "/proc/cpuinfo",
)
"""Files and folders that a confined process may read and execute."""
READABLE_FILES = ("/proc/meminfo", "/dev/urandom", "/proc/self/maps", "/sys/devices/system/cpu")
"""Files and folders that a confined process may only read."""
CPU_LIMIT_S, MEMORY_BYTES, FILE_BYTES, OPEN_FILES = 200, 6 << 30, 256 << 20, 512
"""Limits of a confined process: CPU time, memory, size of one file, and number of open files."""


def main() -> None:
    """Read the request, confine this process if required, and print the answer as JSON."""
    request: dict[str, Any] = json.load(sys.stdin)
    answer_descriptor = os.dup(1)
    os.dup2(2, 1)  # Text that a library prints must not be part of the answer.
    if request["confined"]:
        _confine(request)
    code = read_code(request)
    from opbench.records import to_json

    with os.fdopen(answer_descriptor, "w", encoding="utf-8") as out:
        json.dump(to_json(code), out)


def _confine(request: dict[str, Any]) -> None:
    """Confine this process; no library may have started a thread before."""
    from opbench.cage import seccomp
    from opbench.cage.confine import Confinement, Limits, enter

    python_folders = [Path(path) for path in {*sys.path, sys.prefix, sys.base_prefix} if path]
    readable = (*map(Path, READABLE_FILES), *python_folders, *map(Path, request["readable_paths"]))
    limits = Limits(CPU_LIMIT_S, MEMORY_BYTES, FILE_BYTES, OPEN_FILES)
    # nvdisasm is among Python's packages or in a toolkit.
    executable = (*map(Path, READABLE_FOLDERS), *python_folders)
    enter(
        Confinement(readable, (Path(request["scratch"]), Path("/dev/null")), executable, limits),
        seccomp.compiler_filter(),
    )


def read_code(request: dict[str, Any]) -> CompiledCode:
    """Compile the module of every case and return the signs of cheating in its PTX and machine code."""
    from opbench.errors import EnvironmentFault, OpbenchError
    from opbench.gpu.compile import nvrtc, sass
    from opbench.gpu.compile.ptx import parse_ptx
    from opbench.gpu.compile.resources import resources_of
    from opbench.gpu.limits.products import product
    from opbench.judging.code import CodeRequest, CompiledCode, CompileFault
    from opbench.judging.signs import DetectedSign, signs_of
    from opbench.kernels.folders import Catalog
    from opbench.records import from_json
    from opbench.running.protocol import unpack

    code_request = from_json(CodeRequest, request)
    gpu_product = product(code_request.gpu)
    catalog = Catalog(code_request.roots)
    signs: dict[tuple[str, str, int], DetectedSign] = {}
    faults, arch, missing_reason = list[CompileFault](), "", ""
    cases = []
    for packed in code_request.cases:
        try:
            cases.append(unpack(catalog, packed))
        except (OSError, OpbenchError) as error:  # A confined process may not read every header.
            missing_reason = str(error)
    for index, compiled in resources_of(cases, code_request.gpu):
        case = cases[index]
        if compiled.compile_error:
            location = compiled.compile_error.location
            file, line = (str(location.file), location.line) if location else ("", 0)
            faults.append(CompileFault(case.name, compiled.compile_error.message, file, line))
        if compiled.missing or gpu_product is None:
            missing_reason = compiled.missing
            continue
        try:
            build_request = case.request()
            arch = nvrtc.architecture(gpu_product.capability, build_request)
            module = nvrtc.compile_cubin(build_request, arch)
            ptx = parse_ptx(module.ptx.read_text(encoding="utf-8"))
            try:
                kernels = sass.disassemble(module.cubin.read_bytes(), (source.path for source in case.variant.sources))
            except EnvironmentFault as error:
                kernels, missing_reason = {}, str(error)
        except OpbenchError as error:
            missing_reason = str(error)
            continue
        for sign in signs_of(case, ptx, kernels):
            signs.setdefault((sign.rule.name, sign.file, sign.line), sign)
    return CompiledCode(arch, missing_reason, tuple(signs.values()), tuple(faults))


if __name__ == "__main__":
    main()
