"""Seccomp: limit the system calls of this process with a program for the packet filter of the Linux kernel.

Source: the kernel's Documentation/userspace-api/seccomp_filter.rst. A library would need libseccomp of the system; the
programs here are lists of comparisons.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opbench.cage.system import MACHINE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl, system_call

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The machines for which this module knows the numbers of the system calls, with the kernel's constant for each."""
MACHINE_COLUMN = {"x86_64": 0, "aarch64": 1}
X32 = 0x40000000
"""A number with this bit is a call of the x32 ABI, another way to each system call."""
SYSTEM_CALL = {"x86_64": 317, "aarch64": 277}
"""The number of `seccomp` itself."""
GET_ACTION_AVAILABLE = 2

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
"""The answer to clone3, whose flags a filter cannot read: the C library then calls clone."""

THREAD = 0x10000
"""The flag of clone for a thread of the same process."""
EXECUTABLE = 4
"""PROT_EXEC."""
OPENED_TO_WRITE = 0x1 | 0x2 | 0x40 | 0x200 | 0x400 | 0x400000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND and O_TMPFILE."""

# Names and numbers on x86-64 and aarch64; None where the machine has no such call.
CALL_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202), "accept4": (288, 242), "access": (21, None), "acct": (163, 89), "add_key": (248, 217),
    "adjtimex": (159, 171), "arch_prctl": (158, None), "bind": (49, 200), "bpf": (321, 280), "brk": (12, 214),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_getres": (229, 114), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "close": (3, 57), "connect": (42, 203), "delete_module": (176, 106), "dup": (32, 23), "dup3": (292, 24),
    "execve": (59, 221), "execveat": (322, 281), "exit": (60, 93), "exit_group": (231, 94), "faccessat": (269, 48),
    "faccessat2": (439, 439), "fanotify_init": (300, 262), "fcntl": (72, 25), "finit_module": (313, 273),
    "fork": (57, None), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "fstat": (5, 80), "futex": (202, 98), "get_robust_list": (274, 100), "getcpu": (309, 168), "getcwd": (79, 17),
    "getdents64": (217, 61), "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176), "getpid": (39, 172),
    "getppid": (110, 173), "getrandom": (318, 278), "getrusage": (98, 165), "gettid": (186, 178),
    "gettimeofday": (96, 169), "getuid": (102, 174), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, None),
    "iopl": (172, None), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "kill": (62, 129), "listen": (50, 201), "lseek": (8, 62), "lstat": (6, None),
    "madvise": (28, 233), "membarrier": (324, 283), "memfd_create": (319, 279), "mincore": (27, 232),
    "mknod": (133, None), "mknodat": (259, 33), "mmap": (9, 222), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "mprotect": (10, 226), "mq_open": (240, 180), "mremap": (25, 216), "msgget": (68, 186),
    "munmap": (11, 215), "name_to_handle_at": (303, 264), "nanosleep": (35, 101), "newfstatat": (262, 79),
    "open": (2, None), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "openat": (257, 56),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "poll": (7, None), "ppoll": (271, 73),
    "prctl": (157, 167), "pread64": (17, 67), "prlimit64": (302, 261), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "read": (0, 63),
    "readlink": (89, None), "readlinkat": (267, 78), "readv": (19, 65), "reboot": (169, 142), "recvfrom": (45, 207),
    "recvmsg": (47, 212), "request_key": (249, 218), "restart_syscall": (219, 128), "rseq": (334, 293),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigqueueinfo": (129, 138), "rt_sigreturn": (15, 139),
    "rt_tgsigqueueinfo": (297, 240), "sched_getaffinity": (204, 123), "sched_yield": (24, 124), "semget": (64, 190),
    "sendmsg": (46, 211), "sendto": (44, 206), "set_robust_list": (273, 99), "setdomainname": (171, 162),
    "sethostname": (170, 161), "setitimer": (38, 103), "setns": (308, 268), "settimeofday": (164, 170),
    "shmat": (30, 196), "shmget": (29, 194), "sigaltstack": (131, 132), "socket": (41, 198), "socketpair": (53, 199),
    "stat": (4, None), "statx": (332, 291), "swapoff": (168, 225), "swapon": (167, 224), "sysinfo": (99, 179),
    "syslog": (103, 116), "tgkill": (234, 131), "timer_create": (222, 107), "timer_delete": (226, 111),
    "timer_gettime": (224, 108), "timer_settime": (223, 110), "tkill": (200, 130), "umount2": (166, 39),
    "uname": (63, 160), "unshare": (272, 97), "userfaultfd": (323, 282), "vfork": (58, None), "vhangup": (153, 58),
    "write": (1, 64), "writev": (20, 66),
}  # fmt: skip

CALLS_OUTSIDE_THE_PROCESS = (
    "accept", "accept4", "acct", "add_key", "adjtimex", "bind", "bpf", "chroot", "clock_adjtime", "clock_settime",
    "connect", "delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick",
    "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp",
    "kexec_file_load", "kexec_load", "keyctl", "kill", "listen", "mknod", "mknodat", "mount", "mount_setattr",
    "move_mount", "mq_open", "msgget", "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open",
    "personality", "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "pivot_root", "process_vm_readv",
    "process_vm_writev", "ptrace", "quotactl", "reboot", "request_key", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    "semget", "setdomainname", "sethostname", "setns", "settimeofday", "shmget", "shmat", "socket", "socketpair",
    "swapoff", "swapon", "syslog", "tkill", "umount2", "unshare", "userfaultfd", "vhangup",
)  # fmt: skip
"""System calls that reach other processes, the network or the machine; neither a compiler nor a kernel needs them."""
CALLS_THAT_START_PROGRAMS = ("execve", "execveat", "fork", "vfork", "memfd_create")
"""System calls that a compiler needs and a kernel does not."""
CALLS_OF_A_KERNEL = (
    "access", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "dup", "exit", "exit_group",
    "faccessat", "faccessat2", "fstat", "futex", "get_robust_list", "getcpu", "getcwd", "getdents64", "getegid",
    "geteuid", "getgid", "getpid", "getppid", "getrandom", "getrusage", "gettid", "gettimeofday", "getuid", "lseek",
    "lstat", "madvise", "membarrier", "mincore", "mremap", "munmap", "nanosleep", "newfstatat", "poll", "ppoll",
    "pread64", "read", "readlink", "readlinkat", "readv", "recvfrom", "recvmsg", "restart_syscall", "rseq",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_yield", "sendmsg", "sendto",
    "set_robust_list", "setitimer", "sigaltstack", "stat", "statx", "sysinfo", "timer_create", "timer_delete",
    "timer_gettime", "timer_settime", "uname", "write", "writev",
)  # fmt: skip
"""System calls that the emulator's runtime, Python and the C library make while a kernel runs."""


@dataclass(frozen=True)
class Condition:
    """A condition on the low 32 bits of one argument of a system call."""

    argument: int
    values: tuple[int, ...] = ()
    """Allowed values of the argument; empty if `forbidden` or `needed` decides."""
    forbidden: int = 0
    """Bits that must not be set."""
    needed: int = 0
    """Bits of which one must be set."""
    is_null: bool = False
    """Whether the argument must be a null pointer; its high 32 bits count, too."""

    def program(self) -> bytes:
        """Return instructions that allow the call if the condition holds and refuse it otherwise."""
        low_offset, high_offset = ARGUMENTS + 8 * self.argument, ARGUMENTS + 8 * self.argument + 4
        if self.is_null:
            null_tests = (
                _instruction(LOAD, low_offset),
                _instruction(EQUAL, 0, 0, 3),
                _instruction(LOAD, high_offset),
                _instruction(EQUAL, 0, 0, 1),
            )
            return b"".join((*null_tests, _instruction(RETURN, ALLOW), _instruction(RETURN, REFUSE)))
        if self.values:
            last_index = len(self.values) - 1
            value_tests = (
                _instruction(EQUAL, value, last_index - value_index, 0 if value_index < last_index else 1)
                for value_index, value in enumerate(self.values)
            )
            return b"".join(
                (
                    _instruction(LOAD, low_offset),
                    *value_tests,
                    _instruction(RETURN, ALLOW),
                    _instruction(RETURN, REFUSE),
                )
            )
        bits, allowed_if_set = (self.needed, True) if self.needed else (self.forbidden, False)
        action_if_set, action_if_clear = (ALLOW, REFUSE) if allowed_if_set else (REFUSE, ALLOW)
        return b"".join(
            (
                _instruction(LOAD, low_offset),
                _instruction(ANY_BIT, bits, 0, 1),
                _instruction(RETURN, action_if_set),
                _instruction(RETURN, action_if_clear),
            )
        )


def compiler_filter() -> bytes:
    """Return the filter of the compiler: it refuses system calls that reach other processes or the network."""
    return _program([(name, _instruction(RETURN, REFUSE)) for name in CALLS_OUTSIDE_THE_PROCESS], ALLOW)


def loading_filter() -> bytes:
    """Return the filter of a process that is about to load a kernel: no other program, no other process, no network."""
    rules = [(name, _instruction(RETURN, KILL)) for name in (*CALLS_OUTSIDE_THE_PROCESS, *CALLS_THAT_START_PROGRAMS)]
    return _program([*rules, *_conditional("clone"), ("clone3", _instruction(RETURN, UNKNOWN))], ALLOW)


def kernel_filter() -> bytes:
    """Return the filter of a process that runs a kernel: only calls that compute, and no new executable memory."""
    rules = [(name, _instruction(RETURN, ALLOW)) for name in CALLS_OF_A_KERNEL]
    rules += [(name, _instruction(RETURN, KILL)) for name in (*CALLS_OUTSIDE_THE_PROCESS, *CALLS_THAT_START_PROGRAMS)]
    rules += [("clone3", _instruction(RETURN, UNKNOWN))]
    rules += _conditional("clone", "mmap", "mprotect", "open", "openat", "tgkill", "fcntl", "ioctl", "prctl")
    return _program([*rules, *_conditional("prlimit64")], REFUSE)


def install(program: bytes) -> None:
    """Add a filter to this thread and all its children, until they end. Needs no_new_privs. Raises OSError."""
    memory = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(memory)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(head))


def is_available() -> bool:
    """Return whether the system can kill a process for a forbidden call, on a machine with known call numbers."""
    if MACHINE not in ARCHITECTURES:
        return False
    try:
        action = ctypes.byref(ctypes.c_uint32(KILL))
        return system_call(SYSTEM_CALL[MACHINE], ctypes.c_uint(GET_ACTION_AVAILABLE), ctypes.c_uint(0), action) == 0
    except OSError:
        return False


def _conditional(*names: str) -> list[tuple[str, bytes]]:
    """Return the conditions under which a kernel may make each of these system calls, as filter instructions."""
    conditions = {
        "clone": Condition(0, needed=THREAD),
        "mmap": Condition(2, forbidden=EXECUTABLE),
        "mprotect": Condition(2, forbidden=EXECUTABLE),
        "open": Condition(1, forbidden=OPENED_TO_WRITE),
        "openat": Condition(2, forbidden=OPENED_TO_WRITE),
        # Signals may go only to threads of this process: abort() and the timer of the runtime need them.
        "tgkill": Condition(0, values=(os.getpid(),)),
        # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC; another command can send signals to a process.
        "fcntl": Condition(1, values=(0, 1, 2, 3, 1030)),
        # TCGETS and FIOCLEX.
        "ioctl": Condition(1, values=(0x5401, 0x5451)),
        # PR_SET_NAME and PR_SET_VMA, with which the C library names threads and memory.
        "prctl": Condition(0, values=(15, 0x53564D41)),
        # A resource limit may be read but not set.
        "prlimit64": Condition(2, is_null=True),
    }
    return [(name, conditions[name].program()) for name in names]


def _program(rules: Iterable[tuple[str, bytes]], default_action: int) -> bytes:
    """Return a filter program: each named call runs its rule's instructions, all others get `default_action`."""
    instructions = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(EQUAL, ARCHITECTURES[MACHINE], 1, 0),
        _instruction(RETURN, KILL),
    ]
    instructions += [_instruction(LOAD, NUMBER), _instruction(AT_LEAST, X32, 0, 1), _instruction(RETURN, KILL)]
    return b"".join([*instructions, *_call_tests(list(rules)), _instruction(RETURN, default_action)])


def _call_tests(rules: Sequence[tuple[str, bytes]]) -> Iterable[bytes]:
    """Yield, for each rule, a test of the call's number and the rule's instructions."""
    for name, instructions in rules:
        number = CALL_NUMBERS[name][MACHINE_COLUMN[MACHINE]]
        if number is not None:
            yield _instruction(EQUAL, number, 0, len(instructions) // 8)
            yield instructions


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction of the kernel's packet filter; `if_true` and `if_false` are relative jumps."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
