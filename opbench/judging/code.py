"""Compile submitted kernels for a GPU and search their code for signs of cheating, in a confined process."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opbench import paths
from opbench.child_process import child_environment, python
from opbench.errors import EnvironmentFault
from opbench.judging.signs import DetectedSign
from opbench.kernels.case import Case
from opbench.records import from_json, to_json
from opbench.running.protocol import PackedCase, pack
from opbench.running.server import representative_modules

TIME_LIMIT_S = 240.0
"""Time limit of the process that compiles and reads code, in seconds."""
MAX_ANSWER_BYTES = 64 << 20
"""The greatest number of bytes that are read of the process's answer."""


@dataclass(frozen=True)
class CompileFault:
    """A module that the GPU's compiler rejects."""

    case: str
    message: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class CompiledCode:
    """The signs and compile errors in the GPU code of the submitted modules."""

    arch: str = ""
    """The architecture that was compiled for; empty if nothing was compiled."""
    missing: str = ""
    """The reason why some code was not read; empty if all code was read."""
    signs: tuple[DetectedSign, ...] = ()
    faults: tuple[CompileFault, ...] = ()


@dataclass(frozen=True)
class CodeRequest:
    """The request to the process that compiles kernels and searches their code for signs of cheating."""

    cases: tuple[PackedCase, ...]
    gpu: str
    roots: tuple[str, ...]
    """Extra folders of variants."""
    confined: bool
    """Whether the process must confine itself before it reads anything."""
    readable_paths: tuple[str, ...] = ()
    """Files and folders that a confined process may read, in addition to Python's and the system's."""
    scratch: str = ""
    """The only folder that a confined process may write."""


@contextmanager
def start_reading_code(cases: Sequence[Case], gpu: str, roots: Sequence[Path], confined: bool) -> Iterator[CodeReader]:
    """Start a process that compiles a few modules of each variant and reads their code.

    `result` waits for the process; leaving the `with` block ends it.
    """
    chosen_cases = list(representative_modules(dict(enumerate(cases))).values())
    readable_files = {str(path) for case in chosen_cases for path in _own_files(case)}
    with tempfile.TemporaryDirectory(prefix="opbench-code-") as scratch:
        request = CodeRequest(
            tuple(map(pack, chosen_cases)),
            gpu,
            tuple(map(str, roots)),
            confined,
            (*sorted(readable_files), *map(str, roots), str(paths.shipped_folder("variants"))),
            scratch,
        )
        # If a kernel's text takes over the compiler, it must not change the cache of other commands.
        cache_variables = {"OPBENCH_CACHE": scratch} if confined else {}
        command = python("-m", "opbench.judging.code_process")
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment({**cache_variables, "TMPDIR": scratch, "OPENBLAS_NUM_THREADS": "1"}),
        ) as process:
            try:
                yield CodeReader(process, json.dumps(to_json(request)).encode())
            finally:
                process.kill()


def _own_files(case: Case) -> list[Path]:
    """Return a kernel's file, and its headers in the kernel's folder or in a folder of headers."""
    variant = case.variant
    folders = [variant.path.parent.resolve(), *(folder.resolve() for folder in variant.include)]
    source_paths = (source.path.resolve() for source in variant.sources)
    return [path for path in source_paths if any(path.is_relative_to(folder) for folder in folders)]


class CodeReader:
    """A running process that compiles kernels and reads their code."""

    def __init__(self, process: subprocess.Popen[bytes], request: bytes) -> None:
        self._process = process
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.close()
        process.stdin = None

    def result(self) -> CompiledCode:
        """Wait for the process and return its result; the result is empty if the process dies or takes too long."""
        try:
            output, _ = self._process.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            return CompiledCode(missing=f"the compiler for the GPU did not end within {TIME_LIMIT_S:.0f} s")
        try:
            return from_json(CompiledCode, json.loads(output[:MAX_ANSWER_BYTES]))
        except ValueError:
            return CompiledCode(missing=f"the compiler for the GPU died with exit code {self._process.returncode}")


def require_cage() -> None:
    """Raise EnvironmentFault if this system cannot run untrusted kernels in the cage (a sandbox)."""
    from opbench.cage.facts import available

    if missing_feature := available().missing_feature:
        raise EnvironmentFault(
            f"an untrusted kernel cannot be confined here: {missing_feature}; judge the kernel on another machine, "
            "or add --no-cage if you trust the kernel; see what is missing with: opbench doctor",
            kind="cage-impossible",
            value=missing_feature,
        )
