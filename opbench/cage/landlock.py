"""Landlock: restrict this process to some files, without privileges (Linux 5.13 and newer).

Source: the kernel's Documentation/userspace-api/landlock.rst. The system calls have the same numbers on all machines.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from opbench.cage.system import system_call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION = 1
BENEATH_PATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL = 1 << 13, 1 << 14, 1 << 15
FIRST_RIGHTS = (1 << 13) - 1
"""The rights of the first version: everything from EXECUTE to MAKE_SYM (bit 12)."""
READ = READ_FILE | READ_FOLDER
WRITE = (FIRST_RIGHTS & ~EXECUTE & ~(1 << 6) & ~(1 << 9) & ~(1 << 10) & ~(1 << 11)) | TRUNCATE | REFER
"""Every right except to execute a file and to create a device, a socket or a named pipe."""
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
"""The rights that a rule for a single file may grant."""
NETWORK_TCP = 0b11
"""Bind and connect, from version 4 on."""
SCOPES = 0b11
"""Abstract UNIX sockets and signals to processes outside, from version 6 on."""


def version() -> int:
    """Return the version of Landlock that the running system offers; 0 if it offers none."""
    try:
        return system_call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION))
    except OSError:
        return 0


def restrict(read: Iterable[Path], write: Iterable[Path] = (), execute: Iterable[Path] = ()) -> None:
    """Allow this process and its children only to read, write and execute files below these paths, until they end.

    `write` includes reading, `execute` too. A path that does not exist is skipped. Needs no_new_privs. Raises OSError.
    """
    landlock_version = version()
    handled = FIRST_RIGHTS | (REFER if landlock_version >= 2 else 0) | (TRUNCATE if landlock_version >= 3 else 0)
    handled |= IOCTL if landlock_version >= 5 else 0
    network = NETWORK_TCP if landlock_version >= 4 else 0
    scopes = SCOPES if landlock_version >= 6 else 0
    size = 24 if landlock_version >= 6 else 16 if landlock_version >= 4 else 8
    attributes = struct.pack("<QQQ", handled, network, scopes)[:size]
    ruleset = system_call(CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for paths, rights in ((read, READ), (write, WRITE | READ), (execute, READ | EXECUTE)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        system_call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Add a rule to a ruleset that grants rights on a path and all below it; skip a path that does not exist."""
    try:
        path_file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = struct.pack("<Qi", rights if path.is_dir() else rights & OF_FILES, path_file)
        system_call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(BENEATH_PATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(path_file)
