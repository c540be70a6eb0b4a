"""Launches that prepare: what they write depends on inputs that need not change, so once may do for many runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.kernels.launch import KernelLaunch


@dataclass(frozen=True)
class Preparation:
    """What a case's launches with `once = true` read and fill, together."""

    inputs: tuple[str, ...] = ()
    """While none of them changes, what is filled stays as it is."""
    workspaces: tuple[str, ...] = ()
    """No other launch writes them: a header says so by `once`, and a check looks whether it is so."""
    kept: tuple[str, ...] = ()
    """Those of them that other launches read; the rest is of no use behind the last launch that prepares."""
    launches: int = 0

    def serves(self, constant: Collection[str]) -> bool:
        """Whether there is something to prepare, from nothing but these inputs."""
        return bool(self.launches) and set(self.inputs) <= set(constant)


def preparation(launches: Sequence[KernelLaunch], inputs: Collection[str], outputs: Collection[str]) -> Preparation:
    """What the launches of a case prepare; raises UsageError for `once` where that cannot be."""
    read: dict[str, None] = {}
    filled: dict[str, None] = {}
    others: set[str] = set()
    for launch in launches:
        if not launch.once:
            others |= launch.buffers()
            continue
        where = f"once = true of {launch.kernel}"
        if any(step.constant for step in launches):
            raise UsageError(f"{where} is not allowed beside constants, which are written at every run")
        for name in sorted(launch.buffers()):
            if name in outputs:
                raise UsageError(f"{where}: it names the output {name}; what runs once fills workspaces only")
            if name not in inputs and name in others:
                raise UsageError(f"{where}: a launch ahead of it that runs every time names {name}, too")
            (read if name in inputs else filled)[name] = None
        if not launch.buffers() - set(inputs):
            raise UsageError(f"{where}: it names no workspace that it could fill")
    kept = tuple(name for name in filled if name in others)
    return Preparation(tuple(read), tuple(filled), kept, sum(launch.once for launch in launches))
