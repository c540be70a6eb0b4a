"""Confine this process: files, system calls, network, time, memory, output."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from opbench.cage import landlock, seccomp
from opbench.cage.system import NEW_IPC, NEW_NETWORK, NEW_USER, NEW_UTS, forbid_new_privileges, unshare


@dataclass(frozen=True)
class Limits:
    """The limits of one process; 0 means no limit."""

    cpu_s: int = 0
    memory_bytes: int = 0
    """Private memory; address space that is only reserved does not count."""
    file_bytes: int = 0
    """The largest size of a file that the process writes, its log included."""
    open_files: int = 0


@dataclass(frozen=True)
class Confinement:
    """The paths that a process may read, write and execute, and its limits; paths that do not exist are skipped."""

    read: tuple[Path, ...]
    write: tuple[Path, ...] = ()
    execute: tuple[Path, ...] = ()
    limits: Limits = Limits()


def enter(confinement: Confinement, filter_program: bytes) -> None:
    """Confine this process and everything that it starts, until they end; raises OSError if the system refuses a part.

    Call it before a second thread starts. Namespaces are used if the system allows them.
    """
    _set_resource_limits(confinement.limits)
    forbid_new_privileges()
    with contextlib.suppress(OSError):
        unshare(NEW_USER | NEW_NETWORK | NEW_IPC | NEW_UTS)
    landlock.restrict(confinement.read, confinement.write, confinement.execute)
    seccomp.install(filter_program)


def _set_resource_limits(limits: Limits) -> None:
    """Set the process's resource limits, disable core dumps, and make new files private to the user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    amounts = {
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
    }
    for limit_kind, amount in amounts.items():
        if amount:
            hard_limit = resource.getrlimit(limit_kind)[1]
            allowed = amount if hard_limit == resource.RLIM_INFINITY else min(amount, hard_limit)
            resource.setrlimit(limit_kind, (allowed, allowed))
    os.umask(0o077)
