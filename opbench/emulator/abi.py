"""Report kinds, structures and constants that Python shares with the C++ runtime.

`runtime/numbers.hpp` exports the same names with the values of the compiled runtime; loading compares both
sides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import NamedTuple

from opbench.backend.counts import KINDS, SAVED_COUNTS, SPACES, CacheTraffic
from opbench.errors import EnvironmentFault
from opbench.kernels import texture

MAX_REPORTS = 256
MAX_SAMPLES = 16
MAX_THREADS = 1024
MAX_COOPERATIVE = 256
"""The largest number of blocks of a cooperative launch."""
MAX_DYNAMIC_BYTES = 232 << 10
"""The bytes of dynamic shared memory that a module reserves for one block."""
CANARY_BYTES = 1 << 10
"""The bytes of known content after the dynamic shared memory; a change shows a write beyond its end."""
GUARD_BYTES = 64 << 10
"""The bytes of known content before and after each buffer; a change shows a write out of bounds."""
COUNT_SLOTS = 1 << 12
BRANCHES = 1 << 10
FIRST_ACCESS_EVENT = 3
BOTH_VOLATILE, BETWEEN_BLOCKS, NARROW_SCOPE, UNACQUIRED = 4, 8, 16, 32
GUARDED, TAKEN_EARLY, NARROW_FENCE = 64, 128, 256
"""Bits of a report's `instructions`."""
LAUNCH_DONE, LAUNCH_ABANDONED, LAUNCH_WITHOUT_THREAD = 0, 1, 2
"""Results of a launch."""
TENSOR_MAP_MAGIC, TEXTURE_MAGIC = 0x70616D54, 0x78657462
TENSOR_TYPES = {"u8": 0, "f16": 3, "bf16": 4, "f32": 5, "tf32": 6, "e4m3": 7, "e5m2": 8, "s8": 9}
"""The number of each element type of a tensor map."""
UInt3 = ctypes.c_uint32 * 3


class ReportKind(IntEnum):
    """The kinds of report, numbered as `REPORT_KINDS` in runtime/worker.hpp (`kReportFault` and so on)."""

    FAULT = 1
    STACK_OVERFLOW = 2
    SHARED_OVERRUN = 3
    DIVERGENT_BARRIER = 4
    WARP_MASK = 5
    DEADLOCK = 6
    TRAP = 7
    ARITHMETIC = 8
    GLOBAL_BOUNDS = 9
    SHARED_BOUNDS = 10
    UNINITIALISED_SHARED = 11
    UNINITIALISED_GLOBAL = 12
    SHARED_RACE = 13
    GLOBAL_RACE = 14
    MISALIGNED = 15
    UNFINISHED_COPY = 16
    STUCK = 17
    UNFINISHED_BULK = 18
    UNFINISHED_PRODUCT = 19
    EARLY_OVERWRITE = 20
    MISSING_FENCE = 21
    MBARRIER = 22
    CLUSTER_EXIT = 23
    ILLEGAL_INSTRUCTION = 24
    BEYOND_SHARED = 25
    DIFFERENT_PRODUCTS = 26
    TOUCHED_SUMS = 27
    MISSING_WAIT = 28
    THREAD_RACE = 29
    OUTSIDE_MASK = 30
    INDEX = 31
    OVERFLOW = 32
    LOCAL = 33
    SAME_VALUE = 34
    PARTIAL_WARP = 35
    CONSTANT_STORE = 36
    PLAIN_READ = 37


class Report(ctypes.Structure):
    """One event that the runtime reports; the C++ struct `Report` in runtime/worker.hpp."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("other_line", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("program_counter", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("other_program_counter", ctypes.c_uint64),
        ("caller", ctypes.c_uint64),
        ("block", UInt3),
        ("thread", UInt3),
        ("other_block", UInt3),
        ("other_thread", UInt3),
        ("bytes", ctypes.c_uint32),
        ("access", ctypes.c_uint32),
        ("other_access", ctypes.c_uint32),
        ("warp", ctypes.c_uint32),
        ("other_warp", ctypes.c_uint32),
        ("instructions", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("file", ctypes.c_char * 240),
        ("text", ctypes.c_char * 1400),
    )


class LaunchArguments(ctypes.Structure):
    """The arguments of one launch; the C++ struct `Launch` in runtime/worker.hpp."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("touch_shared", ctypes.c_void_p),
        ("dynamic_shared", ctypes.c_void_p),
        ("grid", UInt3),
        ("block", UInt3),
        ("shared_bytes", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("aborted", ctypes.c_uint32),
        ("order_multiplier", ctypes.c_uint64),
        ("order_offset", ctypes.c_uint64),
        ("block_count", ctypes.c_uint64),
        ("next_block", ctypes.c_uint64),
        ("module_base", ctypes.c_uint64),
        ("module_end", ctypes.c_uint64),
        ("cluster", UInt3),
        ("cooperative", ctypes.c_uint32),
        ("partial_barriers", ctypes.c_uint32),
        ("programmatic", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("spins", ctypes.c_uint32),
        ("sample_count", ctypes.c_uint32),
        ("block_milliseconds", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("samples", ctypes.c_uint64 * MAX_SAMPLES),
        ("sample", ctypes.c_uint32),
        ("unfinished", ctypes.c_uint32),
        ("undefined_line", ctypes.c_uint32),
        ("undefined_fill", ctypes.c_uint32),
        ("trace", ctypes.c_void_p),
    )


class NativeBuffer(ctypes.Structure):
    """A buffer in a trace; the C++ struct `TraceBuffer` in runtime/trace.hpp."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("item_bytes", ctypes.c_uint32),
        ("initialised", ctypes.c_uint32),
    )


class NativeArray(ctypes.Structure):
    """A `__shared__` array in a trace; the C++ struct `SharedArray` in runtime/trace.hpp."""

    _fields_ = (("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("constant", ctypes.c_uint64))


class NativeTotals(ctypes.Structure):
    """The totals of a trace; the C++ struct `TraceTotals` in runtime/trace.hpp."""

    _fields_ = (("counted_blocks", ctypes.c_uint64), ("barriers", ctypes.c_uint64), ("accesses", ctypes.c_uint64))


class NativeCaches(ctypes.Structure):
    """The cache traffic of a trace; the C++ struct `CacheTotals` in runtime/cache.hpp."""

    _fields_ = tuple((field.name, ctypes.c_uint64) for field in fields(CacheTraffic))


class NativeCount(ctypes.Structure):
    """The counts of one source position; the C++ struct `Count` in runtime/trace.hpp."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("site", "event", "space", "bytes")),
        *((name, ctypes.c_uint64) for name in ("requests", "lanes", "sectors", "ideal_sectors", "wavefronts")),
        *((name, ctypes.c_uint64) for name in ("ideal_wavefronts", "collisions", "upper_requests")),
        *((name, ctypes.c_uint64) for name in ("upper_sectors", "upper_wavefronts")),
        *((name, ctypes.c_int64) for name in SAVED_COUNTS),
    )


class NativeBranch(ctypes.Structure):
    """The counts of one branch; the C++ struct `Branch` in runtime/trace.hpp."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("site", "next")),
        *((name, ctypes.c_uint64) for name in ("executions", "divergent", "fewest_lanes")),
    )


class NativeMap(ctypes.Structure):
    """A tensor map; the C++ struct `opb_tensor_map` in include/opbench_cpu/abi.hpp."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("im2col", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
        ("bytes", ctypes.c_uint8),
        ("swizzle", ctypes.c_uint8),
        ("address", ctypes.c_uint64),
        ("dims", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint16 * 5),
        ("steps", ctypes.c_uint8 * 5),
        ("type", ctypes.c_uint8),
        ("padding", ctypes.c_uint32),
        ("strides", ctypes.c_uint64 * 4),
        ("lower", ctypes.c_int16 * 3),
        ("upper", ctypes.c_int16 * 3),
        ("channels", ctypes.c_uint16),
        ("pixels", ctypes.c_uint16),
    )


class NativeTexture(ctypes.Structure):
    """A texture; the C++ struct `opb_texture` in include/opbench_cpu/abi.hpp."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        *(
            (name, ctypes.c_uint8)
            for name in ("surface", "dimensions", "type", "channels", "filter", "address", "read", "memory")
        ),
        ("normalized", ctypes.c_uint32),
        ("start", ctypes.c_uint64),
        ("width", ctypes.c_uint32),
        ("height", ctypes.c_uint32),
    )


STRUCTURES: Mapping[str, type[ctypes.Structure]] = {
    "Report": Report,
    "Launch": LaunchArguments,
    "TraceBuffer": NativeBuffer,
    "SharedArray": NativeArray,
    "TraceTotals": NativeTotals,
    "CacheTotals": NativeCaches,
    "Count": NativeCount,
    "Branch": NativeBranch,
    "opb_tensor_map": NativeMap,
    "opb_texture": NativeTexture,
}
"""The structures by their C++ names. No structure has padding: a field that only one side has changes the size."""
CONSTANTS: Mapping[str, int] = {
    "kMaxReports": MAX_REPORTS,
    "kMaxSamples": MAX_SAMPLES,
    "kMaxThreads": MAX_THREADS,
    "kMaxTeam": MAX_COOPERATIVE,
    "kDynamicSharedBytes": MAX_DYNAMIC_BYTES,
    "kSharedCanaryBytes": CANARY_BYTES,
    "kGuardBytes": GUARD_BYTES,
    "kCountSlots": COUNT_SLOTS,
    "kBranches": BRANCHES,
    "kBothVolatile": BOTH_VOLATILE,
    "kBetweenBlocks": BETWEEN_BLOCKS,
    "kNarrowScope": NARROW_SCOPE,
    "kUnacquired": UNACQUIRED,
    "kGuarded": GUARDED,
    "kTakenEarly": TAKEN_EARLY,
    "kNarrowFence": NARROW_FENCE,
    "kLaunchDone": LAUNCH_DONE,
    "kLaunchAbandoned": LAUNCH_ABANDONED,
    "kLaunchWithoutThread": LAUNCH_WITHOUT_THREAD,
    "opb_tensor_map_magic": TENSOR_MAP_MAGIC,
    "opb_texture_magic": TEXTURE_MAGIC,
    **{f"OPB_{name.upper()}": number for name, number in TENSOR_TYPES.items()},
    **{f"OPB_TEXEL_{name.upper()}": number for number, name in enumerate(texture.TEXEL_TYPE_BYTES)},
    **{f"OPB_ADDRESS_{name.upper()}": number for number, name in enumerate(texture.ALLOWED_MODES["address"])},
    **{f"OPB_ACCESS_{name.upper()}": number for number, name in enumerate(KINDS)},
    **{f"kEvent{name.title()}": number for number, name in enumerate(KINDS, FIRST_ACCESS_EVENT)},
    **{f"k{name.title()}": number for number, name in enumerate(SPACES)},
    **{f"kReport{kind.name.title().replace('_', '')}": kind.value for kind in ReportKind},
}
"""The constants by their C++ names."""


class Number(NamedTuple):
    """The value of a constant, the size of a structure, or the offset and size of a structure's field."""

    value: int
    """The constant, or the field's offset."""
    bytes: int = 0
    """The size of the structure or field."""


class NativeNumber(ctypes.Structure):
    """A number that both sides share; the C++ struct `SharedNumber` in runtime/numbers.hpp."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


def numbers_of_python() -> Iterator[tuple[str, Number]]:
    """Yield the C++ name and the number of each shared constant, structure and field (named as `Report.line`)."""
    for name, value in CONSTANTS.items():
        yield name, Number(value)
    for name, structure in STRUCTURES.items():
        yield name, Number(0, ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            descriptor = getattr(structure, field)
            yield f"{name}.{field}", Number(descriptor.offset, descriptor.size)


def numbers_of_runtime(library: ctypes.CDLL) -> dict[str, Number]:
    """Return, by C++ name, the numbers that a runtime library was compiled with."""
    count = ctypes.c_uint32()
    library.opb_shared_numbers.restype = ctypes.POINTER(NativeNumber)
    native = library.opb_shared_numbers(ctypes.byref(count))
    return {value.name.decode(): Number(value.value, value.bytes) for value in native[: count.value]}


def require_same_numbers(library: ctypes.CDLL) -> None:
    """Raise EnvironmentFault if a runtime library was compiled with other numbers than this module defines."""
    compiled, expected = numbers_of_runtime(library), dict(numbers_of_python())
    if compiled == expected:
        return
    differing = [name for name in {**expected, **compiled} if compiled.get(name) != expected.get(name)]
    raise EnvironmentFault(
        "the cpu backend's runtime and its Python part disagree: "
        + "; ".join(f"{name} is {compiled.get(name)} in C++, {expected.get(name)} in Python" for name in differing[:5])
        + f" ({len(differing)} differences in all); install opbench again, or, after a change of one, "
        + "make opbench/emulator/abi.py and runtime/*.hpp agree",
        kind="runtime-differs",
        value=tuple(differing),
    )
