"""Find which features of this system can confine untrusted code."""

from __future__ import annotations

import functools
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from opbench.cage import landlock, seccomp
from opbench.cage.system import MACHINE
from opbench.errors import EnvironmentFault

FIRST_LANDLOCK = "Linux 5.13"
USER_NAMESPACE_LIMITS = {
    "user/max_user_namespaces": "0",
    "kernel/unprivileged_userns_clone": "0",
    "kernel/apparmor_restrict_unprivileged_userns": "1",
}
"""Files below /proc/sys, with the content that forbids user namespaces to users."""


@dataclass(frozen=True)
class CageFacts:
    """The features of this system that can confine a process; they vary even between machines of one release."""

    system: str
    """The kernel and its release, such as "Linux 6.8.0"."""
    machine: str
    """The processor's architecture, such as "x86_64"."""
    landlock_version: int
    """The version of Landlock, which restricts files; 0 if the system offers none."""
    seccomp: bool
    """Whether system calls can be filtered, with filters for this machine."""
    user_namespaces: bool
    """Whether a user may create namespaces; they add a second barrier to the network and are not required."""

    @property
    def missing_feature(self) -> str:
        """Return why untrusted code cannot be confined on this system; "" if it can."""
        if self.system.split()[0] != "Linux":
            return f"the system is {self.system}; the cage needs Linux"
        if not self.seccomp:
            architectures = ", ".join(seccomp.ARCHITECTURES)
            return f"{self.system} on {self.machine} offers no seccomp filter; the cage has filters for {architectures}"
        if not self.landlock_version:
            return (
                f"{self.system} offers no Landlock; it is part of {FIRST_LANDLOCK} and newer, and must be in the list "
                "/sys/kernel/security/lsm"
            )
        return ""


@functools.cache
def available() -> CageFacts:
    """Probe the system once, without a change to this process."""
    if sys.platform != "linux":
        return CageFacts(f"{platform.system()} {platform.release()}", MACHINE, 0, False, False)
    return CageFacts(
        f"Linux {platform.release()}", MACHINE, landlock.version(), seccomp.is_available(), _user_namespaces()
    )


def require() -> CageFacts:
    """Return the features of this system; raises EnvironmentFault if they cannot confine untrusted code."""
    facts = available()
    if facts.missing_feature:
        raise EnvironmentFault(
            f"--untrusted is not possible here: {facts.missing_feature}; run the command on another machine, or "
            "remove --untrusted if you trust the kernel; see what is missing with: opbench doctor",
            kind="cage-impossible",
            subject="--untrusted",
            value=facts.missing_feature,
        )
    return facts


def _user_namespaces() -> bool:
    """Return whether a user without privileges may create namespaces."""
    if not Path("/proc/self/ns/user").exists():
        return False
    for setting, forbidding_content in USER_NAMESPACE_LIMITS.items():
        try:
            if Path("/proc/sys", setting).read_text().strip() == forbidding_content:
                return False
        except OSError:
            continue
    return True
