"""System calls that Python does not offer, made through the C library."""

from __future__ import annotations

import ctypes
import os
import platform

MACHINE = platform.machine()
PR_SET_DEATH_SIGNAL = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVILEGES = 38
SECCOMP_MODE_FILTER = 2
NEW_USER, NEW_NETWORK, NEW_IPC, NEW_UTS = 0x10000000, 0x40000000, 0x08000000, 0x04000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def system_call(number: int, *arguments: object) -> int:
    """Make a system call and return its result; raise OSError."""
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _error()
    return result


def prctl(option: int, *arguments: int) -> int:
    """Call prctl with integers and return its result; raise OSError."""
    integers = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    result = int(_libc.prctl(ctypes.c_int(option), *integers))
    if result < 0:
        raise _error()
    return result


def unshare(flags: int) -> None:
    """Move this process into new namespaces; raise OSError."""
    if _libc.unshare(ctypes.c_int(flags)) < 0:
        raise _error()


def die_with_parent(parent: int) -> None:
    """Make Linux kill this process as soon as its parent process ends; `parent` is the parent's process ID."""
    prctl(PR_SET_DEATH_SIGNAL, 9)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def forbid_new_privileges() -> None:
    """Let no program that this process executes gain privileges, such as those of a setuid file."""
    prctl(PR_SET_NO_NEW_PRIVILEGES, 1)


def _error() -> OSError:
    """Return the OSError for the C library's current error number."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
