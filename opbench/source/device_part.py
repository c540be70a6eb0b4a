"""Extract the device code of a file: the requested kernels and everything that they need, without host code.

Text that is not needed is blanked for the compilers, so that line numbers do not change. Dependencies are names
as `opbench.source.scan` finds them: a declaration is kept if a kept declaration names it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.errors import CompileError, Location
from opbench.paths import cache_folder, from_here, write_atomically
from opbench.source.project import INCLUDE_FOLDERS, is_compiler_header
from opbench.source.scan import Declaration, declarations
from opbench.source.sources import CACHED_TEXTS, Source, includes
from opbench.source.standard_names import implied_headers
from opbench.source.tokens import included, words

HOST_ONLY_HEADERS = words(
    """
    fstream iostream ostream istream iomanip sstream string string_view vector map unordered_map set
    unordered_set list deque queue stack chrono thread mutex shared_mutex condition_variable future random
    memory stdexcept exception ctime time.h filesystem locale regex system_error iosfwd
    typeinfo omp.h unistd.h getopt.h mpi.h fcntl.h dirent.h pthread.h windows.h cuda_profiler_api.h nvToolsExt.h
    curand.h cublas.h cublas_v2.h cublasLt.h cudnn.h cufft.h cusolverDn.h cusparse.h nvml.h nvrtc.h
    """
)
"""Host headers, which kernels do not need or whose device functions they have anyway."""
HOST_FOLDERS = ("sys/", "bits/", "boost/", "opencv2/", "torch/", "ATen/", "c10/", "gtest/", "benchmark/", "nvtx3/")
STANDARD_HEADERS = words(
    """
    assert.h float.h inttypes.h limits.h math.h math_constants.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h
    mma.h sm_60_atomic_functions.h
    """
)
"""Headers of C and CUDA that some files include with quotation marks."""
TOOLKIT_FOLDERS = ("cub/", "thrust/", "cuda/", "nv/", "opbench/", "cooperative_groups")
"""Prefixes of headers that exist or must be installed: they are never replaced by an empty file."""
KNOWN_NAMESPACES = frozenset(
    ("std", "nvcuda", "wmma", "cooperative_groups", "cuda", "cub", "literals", "chrono_literals")
)
"""Namespaces that `using namespace` may name although no file of the kernel opens them."""
DEVICE_QUALIFIERS = frozenset(("__device__", "__constant__", "__managed__"))
CONDITIONAL_DIRECTIVES = frozenset(("if", "ifdef", "ifndef", "elif", "else", "endif", "define", "undef"))


@dataclass(frozen=True)
class DevicePart:
    """The texts of a kernel's files after host code was removed."""

    texts: Mapping[Path, str]
    """The text of each file, with everything that is not needed blanked."""
    set_aside: tuple[Declaration, ...]
    """The blanked declarations of the first file."""
    empty: tuple[str, ...]
    """Names of headers in no folder of the user; those that no compiler has either are replaced by empty files."""
    implied: tuple[str, ...] = ()
    """Standard headers whose names the device part uses, and which only removed headers included."""


def has_host_part(sources: Sequence[Source]) -> bool:
    """Return whether a file contains host code: `main`, a launch, or the header of a host library."""
    return any(_has_host_part(source.text) for source in sources)


@functools.lru_cache(CACHED_TEXTS)
def _has_host_part(text: str) -> bool:
    if not re.search(r"<<<|\bmain\s*\(|#\s*include|\bcuda[A-Z]", text):
        return False
    for declaration in declarations(text):
        if declaration.kind == "directive":
            name = included(declaration.tokens[0])
            if name and is_host_header(name[1:-1]):
                return True
        elif not declaration.is_device and any(_is_host_word(token.text) for token in declaration.tokens):
            return True
    return False


def _is_host_word(word: str) -> bool:
    return word in ("<<<", "main") or bool(re.fullmatch(r"cuda[A-Z]\w*", word))


def _is_host_function(declaration: Declaration) -> bool:
    """Return whether a function is host code because it launches kernels or calls the CUDA runtime."""
    return (
        declaration.kind == "function"
        and not declaration.is_device
        and any(_is_host_word(token.text) for token in declaration.tokens)
    )


def is_host_header(name: str) -> bool:
    """Return whether a header contains only host code."""
    return name in HOST_ONLY_HEADERS or name.startswith(HOST_FOLDERS)


def kernels_of(text: str) -> list[Declaration]:
    """Return the names of the kernels that a text defines, in order."""
    return [declaration for declaration in declarations(text) if declaration.is_kernel]


def device_part(sources: Sequence[Source], wanted: Sequence[str]) -> DevicePart:
    """Return the device code that the wanted kernels, variables and name expressions need."""
    declared = {source.path: declarations(source.text) for source in sources}
    everything = [declaration for in_file in declared.values() for declaration in in_file]
    needed = _needed(everything, {word for name in wanted for word in re.findall(r"[A-Za-z_]\w*", name)})
    spaces = KNOWN_NAMESPACES | {part for declaration in everything for part in declaration.scope.split("::")}
    own = {source.path.name for source in sources}
    of_thrust = any("thrust" in declaration.uses for declaration in everything if id(declaration) in needed)
    texts: dict[Path, str] = {}
    aside: list[Declaration] = []
    empty: list[str] = []
    for source in sources:
        kept: list[tuple[int, int, str]] = []
        for declaration in declared[source.path]:
            name = included(declaration.tokens[0]) if declaration.kind == "directive" else ""
            if name:
                plain = name[1:-1]
                if (is_host_header(plain) and not substitute_header(plain)) or (
                    plain.startswith("thrust/") and not of_thrust
                ):
                    kept.append((declaration.start, declaration.end, ""))
                elif Path(plain).name not in own and not plain.startswith(TOOLKIT_FOLDERS):
                    empty.append(plain)
                    if is_by_path(plain):
                        kept.append((declaration.start, declaration.end, ""))
            elif declaration.kind == "using":
                named = {token.text for token in declaration.tokens[2:] if token.kind == "name"}
                first = next((token.text for token in declaration.tokens[2:] if token.kind == "name"), "")
                kept.append(
                    (
                        declaration.start,
                        declaration.end,
                        _open_namespace(first, source.text, declaration) if named <= spaces else "",
                    )
                )
            elif declaration.kind != "directive" and id(declaration) not in needed:
                kept.append((declaration.start, declaration.end, _branches(declaration, source.text)))
                if source is sources[0]:
                    aside.append(declaration)
        texts[source.path] = _replaced(source.text, kept)
    return DevicePart(texts, tuple(aside), tuple(dict.fromkeys(empty)), implied_headers(texts.values()))


def _open_namespace(space: str, text: str, declaration: Declaration) -> str:
    """Return a `using namespace`, after an empty definition, because no header may have opened the namespace."""
    return f"namespace {space} {{}} {text[declaration.start : declaration.end]}"


def _replaced(text: str, pieces: Iterable[tuple[int, int, str]]) -> str:
    """Replace pieces of a text; each replacement has as many line ends as the piece."""
    lines: list[str] = []
    position = 0
    for start, end, other in pieces:
        lacking = text.count("\n", start, end) - other.count("\n")
        lines += [text[position:start], other, "\n" * lacking]
        position = end
    return "".join(lines) + text[position:]


def _branches(declaration: Declaration, text: str) -> str:
    """Return the preprocessor conditions within a removed declaration, each on its line: they may end after it."""
    lines, goes_on = [], False
    for line in text[declaration.start : declaration.end].split("\n"):
        match = re.match(r"\s*#\s*(\w+)", line)
        goes_on = goes_on or bool(match and match[1] in CONDITIONAL_DIRECTIVES)
        lines.append(line if goes_on else "")
        goes_on = goes_on and line.rstrip("\r").endswith("\\")
    return "\n".join(lines) if any(lines) else ""


def _needed(everything: Sequence[Declaration], wanted: set[str]) -> set[int]:
    """Return the ids of the declarations that the wanted names need, directly or indirectly."""
    by_name = _by_name(everything)
    kept: set[int] = set()
    uses, calls, waiting = set(wanted), set[str](), set(wanted)

    def keep(declaration: Declaration) -> None:
        kept.add(id(declaration))
        waiting.update(declaration.uses - uses, declaration.calls - calls)
        uses.update(declaration.uses)
        calls.update(declaration.calls)

    for one in everything:
        if "operator" in one.names and one.is_device:
            keep(one)
    while waiting:
        name = waiting.pop()
        for one in by_name.get(name, ()):
            host = one.kind in ("function", "prototype") and not one.is_device and "constexpr" not in one.marks
            if id(one) not in kept and (name in calls or (name in uses and not host)):
                keep(one)
    for one in everything:
        named = [by_name[name] for name in one.uses & by_name.keys()]
        known = all(any(id(other) in kept or other.kind == "directive" for other in found) for found in named)
        if one.tokens[0].text == "static_assert" and known:
            kept.add(id(one))
    return kept


def host_function(sources: Sequence[Source], wanted: Sequence[str]) -> tuple[Source, Declaration] | None:
    """Return a host-only function that the wanted kernels call, which nvcc would reject; None without one."""
    declared = {source.path: declarations(source.text) for source in sources}
    everything = [declaration for in_file in declared.values() for declaration in in_file]
    needed = _needed(everything, {word for name in wanted for word in re.findall(r"[A-Za-z_]\w*", name)})
    marked = {
        name
        for declaration in everything
        if declaration.kind != "directive" and declaration.is_device
        for name in declaration.names
    }
    for source in sources:
        for declaration in declared[source.path]:
            plain = (
                declaration.kind == "function" and not declaration.is_device and "constexpr" not in declaration.marks
            )
            head = {token.text for token in declaration.tokens[: declaration.body]} - {declaration.name}
            # A macro before its name, or a region of a pragma, may mark the function for the device.
            is_plain = not any((word.isupper() and len(word) > 1) or word.startswith("__") for word in head)
            macro = any(other.kind == "directive" and other.names & head for other in everything)
            if (
                plain
                and id(declaration) in needed
                and is_plain
                and not macro
                and declaration.name not in marked
                and declaration.name not in wanted
            ):
                return source, declaration
    return None


def undefined_variable(sources: Sequence[Source], wanted: Sequence[str]) -> tuple[Source, Declaration] | None:
    """Return a device variable that the wanted kernels need and that is declared `extern` but never defined.

    Returns None without one.
    """
    declared = {source.path: declarations(source.text) for source in sources}
    everything = [declaration for in_file in declared.values() for declaration in in_file]
    needed = _needed(everything, {word for name in wanted for word in re.findall(r"[A-Za-z_]\w*", name)})

    def only_declared(declaration: Declaration) -> bool:
        token_texts = {token.text for token in declaration.tokens}
        return (
            declaration.kind == "other"
            and "extern" in token_texts
            and "=" not in token_texts
            and bool(declaration.marks & DEVICE_QUALIFIERS)
        )

    defined = {
        name
        for declaration in everything
        if not only_declared(declaration) and declaration.kind == "other"
        for name in declaration.names
    }
    for source in sources:
        for one in declared[source.path]:
            if id(one) in needed and only_declared(one) and one.names and not one.names & defined:
                return source, one
    return None


def _by_name(everything: Sequence[Declaration]) -> dict[str, list[Declaration]]:
    """Return the declarations by the names that they declare; a use of a macro may declare names.

    A macro's use that passes on a host function, such as in a registry of launches, declares nothing for
    kernels.
    """
    result: dict[str, list[Declaration]] = {}
    for declaration in everything:
        for name in declaration.names:
            result.setdefault(name, []).append(declaration)
    macros = {
        name: declaration for declaration in everything if declaration.kind == "directive" for name in declaration.names
    }
    for declaration in everything:
        first = declaration.tokens[0].text
        if (
            declaration.kind == "other"
            and first in macros
            and "=" not in {token.text for token in declaration.tokens[:3]}
        ):
            if any(_is_host_function(other) for name in declaration.uses for other in result.get(name, ())):
                continue
            for name in (macros[first].uses | declaration.uses) - result.keys():
                result.setdefault(name, []).append(declaration)
    return result


def write_texts(part: DevicePart, sources: Sequence[Source], folder: Path) -> dict[Path, Path]:
    """Write the device code to files in a folder and return their paths.

    Includes are adjusted, because an unchanged file may include a changed one.
    """
    changed = {source.path: folder / f"{number}-{source.path.name}" for number, source in enumerate(sources)}
    for path, target in changed.items():
        text = led_to(part.texts[path], path, changed)
        target.write_text(f'#line 1 "{path.absolute()}"\n{text}')
    return changed


def led_to(text: str, path: Path, changed: Mapping[Path, Path]) -> str:
    """Return the text with absolute paths in its includes; changed files have their new paths."""
    by_name = {old.name: new for old, new in changed.items()}

    def rewrite_include(match: re.Match[str]) -> str:
        name = match[2][1:-1]
        if Path(name).name in by_name:
            return f'{match[1]}"{by_name[Path(name).name]}"'
        near = path.parent / name
        return f'{match[1]}"{near.absolute()}"' if match[2][0] == '"' and near.is_file() else match[0]

    return re.sub(r'^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]+>|"[^"\n]+")', rewrite_include, text, flags=re.MULTILINE)


class HeaderNotFound(CompileError):
    """A compile error in a file that includes a missing header."""


def missing_header_error(error: CompileError, names: Sequence[str], sources: Sequence[Source]) -> CompileError:
    """Return the compile error with a message that names the missing headers."""
    if isinstance(error, HeaderNotFound):
        return error
    listed = ", ".join(f"<{name}>" for name in names)
    location = next((place for name in names for place in _includes(name, sources)), None)
    if any("curand" in name for name in names):
        text = (
            f"{listed}: cuRAND's device functions are not known here: give the kernel its random numbers, or "
            "their seeds, as an input"
        )
    elif any(name.startswith(TOOLKIT_FOLDERS) for name in names):
        text = (
            f"{listed} is CUDA's own and was not found: install the wheel nvidia-cuda-cccl (of CUDA 12 "
            "nvidia-cuda-cccl-cu12), or a CUDA toolkit"
        )
    else:
        text = missing_header_message(names[0], sources)
    return HeaderNotFound(f"{text}\n{error}", location)


def is_by_path(name: str) -> bool:
    """Return whether an include gives a path, such as "../common.h", that no include folder can contain."""
    return ".." in Path(name).parts or Path(name).is_absolute()


def missing_header_message(name: str, sources: Sequence[Source]) -> str:
    """Return the message for a missing header: where it was searched, and where to put it."""
    includer = next((source.path for source in sources if _lines(name, source)), Path())
    target = (includer.absolute().parent / name).resolve()
    looked = (
        "" if is_by_path(name) else f", in {', '.join(filter(None, INCLUDE_FOLDERS))} there and in the folders above"
    )
    return (
        f"header '{name}' was not found; put it at {from_here(str(target))}\n"
        f"Looked for there{looked}. It is taken as empty, which serves only kernels that use nothing of it. Headers of "
        "many kernels can lie in DIR/include with --variants DIR."
    )


def missing_headers(sources: Sequence[Source], folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the headers in quotation marks that no folder contains, each with file:line of its include."""
    for source in sources:
        for line, written in includes(source.text):
            name = written[1:-1]
            own = written[0] == '"' and not (
                is_host_header(name) or name in STANDARD_HEADERS or is_compiler_header(name)
            )
            if own and not any((folder / name).is_file() for folder in (source.path.parent, *folders)):
                yield f"{from_here(str(source.path))}:{line}", name


def _includes(name: str, sources: Sequence[Source]) -> Iterable[Location]:
    """Return the lines that include a header."""
    return (Location(Path(from_here(str(source.path))), line) for source in sources for line in _lines(name, source))


def _lines(name: str, source: Source) -> list[int]:
    """Return the lines of a file that include a header."""
    return [line for line, written in includes(source.text) if written[1:-1] == name]


def substitute_header(name: str) -> str:
    """Return the text of a substitute for a missing header: empty, or includes that kernels usually need."""
    if name.startswith(("cublas", "cudnn", "cusparse")):
        return "#pragma once\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
    return ""


def substitute_headers(names: Sequence[str]) -> Path:
    """Return a folder with substitutes for missing headers; it must be searched last."""
    key = hashlib.sha256("\n".join(f"{name} {substitute_header(name)}" for name in sorted(names)).encode()).hexdigest()[
        :16
    ]
    folder = cache_folder("empty") / key
    for name in names:
        place = folder / name
        if ".." not in Path(name).parts and not Path(name).is_absolute() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, substitute_header(name).encode())
    folder.mkdir(parents=True, exist_ok=True)
    return folder
