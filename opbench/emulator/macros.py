"""Hide the host compiler's macros from kernel code, so that its `#if` lines select the same code as with nvcc.

The wrapper of a module hides the macros after the shim and before the kernel's file. Headers of the system and the
shim need the macros: each gets a stand-in that shows the macros, includes the header and hides the macros again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from opbench.emulator.toolchain import INCLUDE
from opbench.source.standard_names import STANDARD_NAMES

NVRTC_MACROS = re.compile(r"__STDC\w*|__cplusplus|__cpp_\w+|__LP64__|__EXCEPTIONS")
"""Predefined macros of the host compiler that NVRTC 13.5 defines, too; they stay visible."""
LIBCPP_MACROS = re.compile(r"_LIBCPP_\w+")
"""Macros that configure zig's C++ library; they stay visible, as only its first header reads them."""
LIMIT_MACROS = re.compile(
    r"__\w*(?:MAX|MIN|WIDTH|EPSILON|DIG|EXP|DENORM|NORM_MAX|INFINITY|QUIET_NAN|RADIX|CHAR_BIT|TYPE|EVAL_METHOD\w*)__|__U?INT\w+_C"
)
"""Macros to which FLT_MAX, INT_MAX, INT64_C and similar macros of standard headers expand; they stay visible."""
LIBRARY_MACROS = ["__GLIBC__", "__GLIBC_MINOR__", "__GNU_LIBRARY__", "__GLIBCXX__", "_GLIBCXX_RELEASE"]
SHOWN_MACRO = "OPB_MACROS_SHOWN"
"""A macro that is defined while the host's macros are visible."""
PREDEFINED = re.compile(r"^#define (\w+)", re.MULTILINE)
SHIM_MACROS = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(OPB_\w+)", re.MULTILINE)
INCLUDED_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([\w./+-]+)[>\"]", re.MULTILINE)
SWITCH_PRAGMA = re.compile(r'^#pragma (?:push|pop)_macro\("[^"]*"\)$', re.MULTILINE)
SYSTEM_FOLDER = Path("/usr/include")
C_HEADERS = [
    "assert.h",
    "ctype.h",
    "errno.h",
    "fenv.h",
    "float.h",
    "inttypes.h",
    "iso646.h",
    "limits.h",
    "locale.h",
    "math.h",
    "setjmp.h",
    "signal.h",
    "stdalign.h",
    "stdarg.h",
    "stdbool.h",
    "stddef.h",
    "stdint.h",
    "stdio.h",
    "stdlib.h",
    "string.h",
    "time.h",
    "uchar.h",
    "wchar.h",
    "wctype.h",
]
CPP_HEADERS = [
    "atomic",
    "cassert",
    "ccomplex",
    "cctype",
    "cerrno",
    "cfenv",
    "cfloat",
    "charconv",
    "chrono",
    "cinttypes",
    "climits",
    "clocale",
    "cmath",
    "codecvt",
    "condition_variable",
    "csetjmp",
    "csignal",
    "cstdalign",
    "cstdarg",
    "cstdbool",
    "cstddef",
    "cstdint",
    "cstdio",
    "cstdlib",
    "cstring",
    "ctgmath",
    "ctime",
    "cuchar",
    "cwchar",
    "cwctype",
    "deque",
    "exception",
    "execution",
    "filesystem",
    "forward_list",
    "fstream",
    "future",
    "iomanip",
    "ios",
    "iosfwd",
    "iostream",
    "istream",
    "list",
    "locale",
    "map",
    "memory",
    "memory_resource",
    "mutex",
    "new",
    "ostream",
    "queue",
    "random",
    "regex",
    "scoped_allocator",
    "set",
    "shared_mutex",
    "sstream",
    "stack",
    "stdexcept",
    "streambuf",
    "string",
    "string_view",
    "strstream",
    "system_error",
    "thread",
    "typeindex",
    "typeinfo",
    "unordered_map",
    "unordered_set",
    "valarray",
    "variant",
    "vector",
]
STANDARD_HEADERS = frozenset({*STANDARD_NAMES, *C_HEADERS, *CPP_HEADERS})


def hidden_names(predefined: str) -> list[str]:
    """Return the sorted names of the macros to hide; `predefined` is the compiler's output of `-dM -E`."""
    emulator_macros = {
        name
        for path in INCLUDE.rglob("*")
        if path.is_file()
        for name in SHIM_MACROS.findall(path.read_text(encoding="utf-8"))
    }
    visible_patterns = (NVRTC_MACROS, LIBCPP_MACROS, LIMIT_MACROS)
    host_macros = {
        n for n in PREDEFINED.findall(predefined) if not any(pattern.fullmatch(n) for pattern in visible_patterns)
    }
    return sorted({*host_macros, *emulator_macros, *LIBRARY_MACROS} - {SHOWN_MACRO})


def write_switches(folder: Path, names: Iterable[str]) -> None:
    """Write `hide.hpp`, which undefines the named macros, and `show.hpp`, which restores them."""
    hide = [f'#pragma push_macro("{name}")\n#undef {name}' for name in names]
    show = [f'#pragma pop_macro("{name}")' for name in names]
    (folder / "hide.hpp").write_text("\n".join([*hide, f"#undef {SHOWN_MACRO}"]) + "\n")
    (folder / "show.hpp").write_text("\n".join([*show, f"#define {SHOWN_MACRO} 1"]) + "\n")


def write_stand_ins(folder: Path, files: Sequence[Path]) -> None:
    """Write a stand-in for each system or shim header that one of the files includes."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    for name in sorted({name for text in texts for name in INCLUDED_HEADER.findall(text)}):
        is_relative = ".." not in Path(name).parts and not Path(name).is_absolute()
        if not is_relative or not (
            name in STANDARD_HEADERS or (INCLUDE / name).is_file() or (SYSTEM_FOLDER / name).is_file()
        ):
            continue
        stand_in = folder / "headers" / name
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"#ifdef {SHOWN_MACRO}",
            f"#include_next <{name}>",
            "#else",
            f'#include "{folder}/show.hpp"',
            f"#include_next <{name}>",
            f'#include "{folder}/hide.hpp"',
            "#endif",
        ]
        stand_in.write_text("\n".join(lines) + "\n")


def without_switches(text: str, folder: Path) -> str:
    """Return preprocessed text without the pragmas of `hide.hpp` and `show.hpp`; line numbers do not change."""
    return SWITCH_PRAGMA.sub("", text).replace(str(folder), "")
