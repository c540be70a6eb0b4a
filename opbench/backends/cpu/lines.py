"""Which line of which file an instruction of a compiled module belongs to."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from opbench.backends.cpu.toolchain import INCLUDE

Place = tuple[str, int]
NOWHERE: Place = ("", 0)
STEPS_BACK = (8, 16, 32, 64, 128)
"""An instruction that stands for several lines has none; the one before it in the code tells as much."""
ADDRESS = re.compile(r"^0x[0-9a-f]+$")
FRAME = re.compile(r"(?:^|.* at )(/.*?):(\d+)(?: |$)")


def source_lines(module: Path, addresses: Iterable[int]) -> dict[int, Place]:
    """For each address the innermost line outside of the shim; ("", 0) where nothing is known."""
    known = _ask(module, set(addresses))
    for back in STEPS_BACK:
        lost = [address for address, place in known.items() if place == NOWHERE]
        if not lost:
            break
        nearby = _ask(module, {address - back for address in lost})
        known |= {address: nearby[address - back] for address in lost}
    return known


def _ask(module: Path, addresses: set[int]) -> dict[int, Place]:
    wanted = sorted(addresses)
    known = dict.fromkeys(wanted, NOWHERE)
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None or not wanted:
        return known
    command = [tool, "-a", "-i", "-e", str(module)]
    asked = "\n".join(map(hex, wanted)) + "\n"
    try:
        answer = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return known
    address = -1
    for text in answer.stdout.splitlines():
        line = text.strip()
        if ADDRESS.match(line):
            address = int(line, 16)
        elif known.get(address) == NOWHERE:
            known[address] = _place(line)
    return known


def _place(frame: str) -> Place:
    match = FRAME.match(frame)
    if match and not match.group(1).startswith(str(INCLUDE)) and int(match.group(2)):
        return match.group(1), int(match.group(2))
    return NOWHERE
