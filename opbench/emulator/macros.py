"""Hide the host's macros from a kernel's own text, so that it compiles the branches that a GPU's compiler takes.

The wrapper of a module hides them between the shim and the kernel's file. Headers of the system and of the shim need
them: each has a stand-in that shows the macros, includes the header and hides them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from opbench.emulator.toolchain import INCLUDE
from opbench.source.standard_names import STANDARD_NAMES

OF_NVRTC = re.compile(r"__STDC\w*|__cplusplus|__cpp_\w+|__LP64__|__EXCEPTIONS")
"""Predefined macros that NVRTC 13.5 defines, too."""
OF_LIBCPP = re.compile(r"_LIBCPP_\w+")
"""How zig configures its C++ library, which reads these at its first header alone."""
OF_LIMITS = re.compile(
    r"__\w*(?:MAX|MIN|WIDTH|EPSILON|DIG|EXP|DENORM|NORM_MAX|INFINITY|QUIET_NAN|RADIX|CHAR_BIT|TYPE|EVAL_METHOD\w*)__|__U?INT\w+_C"
)
"""Expansions of FLT_MAX, INT_MAX, INT64_C and similar macros of standard headers."""
OF_LIBRARIES = ["__GLIBC__", "__GLIBC_MINOR__", "__GNU_LIBRARY__", "__GLIBCXX__", "_GLIBCXX_RELEASE"]
SHOWN = "OPB_MACROS_SHOWN"
"""Defined by the shim, and while the host's macros are visible."""
PREDEFINED = re.compile(r"^#define (\w+)", re.MULTILINE)
OF_SHIM = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(OPB_\w+)", re.MULTILINE)
INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([\w./+-]+)[>\"]", re.MULTILINE)
SWITCH = re.compile(r'^#pragma (?:push|pop)_macro\("[^"]*"\)$', re.MULTILINE)
SYSTEM = Path("/usr/include")
OF_C = [
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
OF_CPP = [
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
STANDARD = frozenset({*STANDARD_NAMES, *OF_C, *OF_CPP})


def hidden_names(predefined: str) -> list[str]:
    """The macros that a kernel must not see, of a compiler that prints its predefined ones as `predefined`."""
    shim = {
        name
        for path in INCLUDE.rglob("*")
        if path.is_file()
        for name in OF_SHIM.findall(path.read_text(encoding="utf-8"))
    }
    kept = (OF_NVRTC, OF_LIBCPP, OF_LIMITS)
    host = {n for n in PREDEFINED.findall(predefined) if not any(pattern.fullmatch(n) for pattern in kept)}
    return sorted({*host, *shim, *OF_LIBRARIES} - {SHOWN})


def write_switches(folder: Path, names: Iterable[str]) -> None:
    """Write `hide.hpp` and `show.hpp`, which hide the macros of these names and show them again."""
    hide = [f'#pragma push_macro("{name}")\n#undef {name}' for name in names]
    show = [f'#pragma pop_macro("{name}")' for name in names]
    (folder / "hide.hpp").write_text("\n".join([*hide, f"#undef {SHOWN}"]) + "\n")
    (folder / "show.hpp").write_text("\n".join([*show, f"#define {SHOWN} 1"]) + "\n")


def write_stand_ins(folder: Path, files: Sequence[Path]) -> None:
    """Write a stand-in of each header of the system or of the shim that one of the files includes."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    for name in sorted({name for text in texts for name in INCLUDED.findall(text)}):
        inside = ".." not in Path(name).parts and not Path(name).is_absolute()
        if not inside or not (name in STANDARD or (INCLUDE / name).is_file() or (SYSTEM / name).is_file()):
            continue
        place = folder / "headers" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"#ifdef {SHOWN}",
            f"#include_next <{name}>",
            "#else",
            f'#include "{folder}/show.hpp"',
            f"#include_next <{name}>",
            f'#include "{folder}/hide.hpp"',
            "#endif",
        ]
        place.write_text("\n".join(lines) + "\n")


def without_switches(text: str, folder: Path) -> str:
    """Preprocessed text without what the switches left in it; its lines stay."""
    return SWITCH.sub("", text).replace(str(folder), "")
