"""Reduce compiler output to messages about the user's file."""

from __future__ import annotations

import re
from pathlib import Path

from opbench.emulator.device_source import missing_kernel_error
from opbench.emulator.toolchain import INCLUDE
from opbench.errors import CompileError, Location
from opbench.kernels.launch import BuildRequest
from opbench.source.names import plain_kernel

MAX_MESSAGE_LINES = 40
DIAGNOSTIC = re.compile(r"^(\S[^:]*):\d+(?::\d+)?: (?:fatal )?(error|warning|note)?")
PREAMBLE_LINE = re.compile(
    r"^(In file included from |\s+from |compilation terminated|\d+ errors? generated|cc1plus: note: disable pass)"
)
AMBIGUOUS_NAME = re.compile(r"wrapper\.cpp:.*error: no matches converting function ['‘](\w+)['’]")
CANDIDATE = re.compile(r"^(/[^:\n]+):(\d+):\d+: note: (?:candidates? (?:is|are):)?\s+['‘]", re.MULTILINE)
REMOVED_FUNCTION = re.compile(r"['‘](__shfl(?:_up|_down|_xor)?|__any|__all|__ballot)['’]? was not declared")


def diagnosis(stderr: str, request: BuildRequest) -> CompileError:
    """Return the compiler's errors in the user's file, without notes about opbench's own files."""
    missing = [kernel for kernel in request.kernels if _is_missing(kernel, stderr)]
    if missing:
        return missing_kernel_error(request, missing[0])
    if name_error := _unclear_name(request, stderr):
        return name_error
    match = REMOVED_FUNCTION.search(stderr)
    explanations = f"; CUDA has no {match[1]} any more: write {match[1]}_sync(0xffffffff, ...)" if match else ""
    for macro, value in request.macros:
        if re.search(rf"error: expected .* before (?:numeric|string) constant\n.*[\s*&]{macro}\b", stderr):
            explanations += (
                f"; the header's define or tune defines the macro {macro} = {value}, and the file also declares {macro}"
                "; rename one of the two"
            )
    message = f"{request.source} does not compile{explanations}\n{shortened(stderr)}"
    return CompileError(message, _first_error(request.source, stderr))


def _first_error(source: Path, stderr: str) -> Location | None:
    """Return the line of the first error in the user's file, None if all errors are in other files."""
    match = re.search(rf"^{re.escape(str(source))}:(\d+):(?:\d+:)? (?:fatal )?error:", stderr, re.MULTILINE)
    return Location(source, int(match[1])) if match else None


def _unclear_name(request: BuildRequest, stderr: str) -> CompileError | None:
    """Return an error if a kernel's name is ambiguous or its template arguments do not fit, else None."""
    match = AMBIGUOUS_NAME.search(stderr)
    if match is None:
        return None
    kernel = next((kernel for kernel in request.kernels if plain_kernel(kernel) == match[1]), match[1])
    candidate_lines = sorted({(file, int(line)) for file, line in CANDIDATE.findall(stderr)})
    if len(candidate_lines) > 1:
        *other_lines, (file, line) = candidate_lines
        return CompileError(
            f"kernel '{kernel}' is the name of {len(candidate_lines)} functions; rename the kernel that the header "
            f"names (other functions of this name: {', '.join(f'{other}:{number}' for other, number in other_lines)})",
            Location(Path(file), line),
            kind="ambiguous-kernel",
            subject=kernel,
        )
    message = f"kernel '{kernel}' does not fit the template's arguments; write the arguments that the template declares"
    if not candidate_lines:
        return CompileError(f"{request.source}: {message}")
    (file, line), *_ = candidate_lines
    return CompileError(message, Location(Path(file), line))


def _is_missing(kernel: str, stderr: str) -> bool:
    """Return whether the compiler reports that a kernel's name is not declared."""
    name = re.escape(re.split(r"[<\s]", kernel)[0].split("::")[-1])
    pattern = rf"wrapper\.cpp:\d+:\d+: error: .*['‘]{name}['’]? (was not declared|has not been declared)"
    return bool(re.search(pattern, stderr) or re.search(rf"wrapper\.cpp:.*undeclared identifier '{name}'", stderr))


def shortened(stderr: str) -> str:
    """Return the first 40 lines of the errors, without warnings and notes about opbench's own files."""
    shown_lines: list[str] = []
    is_hidden = False
    for line in stderr.splitlines():
        diagnostic = DIAGNOSTIC.match(line)
        if diagnostic is not None:
            is_emulator_header = diagnostic.group(1).startswith(str(INCLUDE))
            is_hidden = (is_emulator_header and diagnostic.group(2) == "note") or diagnostic.group(2) == "warning"
        elif PREAMBLE_LINE.match(line):
            continue
        if not is_hidden:
            shown_lines.append(line.replace(f"{INCLUDE}/", "cpu backend's "))
    hidden_count = len(shown_lines) - MAX_MESSAGE_LINES
    return "\n".join(shown_lines[:MAX_MESSAGE_LINES] + ([f"… {hidden_count} lines more"] if hidden_count > 0 else []))
