"""Extract the device code of a file: the requested kernels and everything that they need, without host code.

Text that is not needed is blanked for the compilers, so that line numbers do not change. Dependencies are names
as `opbench.source.scan` finds them: a declaration is kept if a kept declaration names it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.errors import CompileError, Location
from opbench.paths import cache_folder, path_from_here, write_atomically
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
    blanked_declarations: tuple[Declaration, ...]
    """The blanked declarations of the first file."""
    empty: tuple[str, ...]
    """Names of headers in no folder of the user; those that no compiler has either are replaced by empty files."""
    implied_headers: tuple[str, ...] = ()
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
    """Return the declarations of the kernels that a text defines, in order."""
    return [declaration for declaration in declarations(text) if declaration.is_kernel]


def device_part(sources: Sequence[Source], kernel_names: Sequence[str]) -> DevicePart:
    """Return the device code that the named kernels, variables and name expressions need."""
    declarations_of_file, all_declarations, needed = _parse(sources, kernel_names)
    namespaces = KNOWN_NAMESPACES | {part for declaration in all_declarations for part in declaration.scope.split("::")}
    own_files = {source.path.name for source in sources}
    uses_thrust = any("thrust" in declaration.uses for declaration in all_declarations if id(declaration) in needed)
    texts: dict[Path, str] = {}
    blanked: list[Declaration] = []
    missing_names: list[str] = []
    for source in sources:
        kept_spans: list[tuple[int, int, str]] = []
        for declaration in declarations_of_file[source.path]:
            name = included(declaration.tokens[0]) if declaration.kind == "directive" else ""
            if name:
                header_name = name[1:-1]
                if (is_host_header(header_name) and not substitute_header(header_name)) or (
                    header_name.startswith("thrust/") and not uses_thrust
                ):
                    kept_spans.append((declaration.start, declaration.end, ""))
                elif Path(header_name).name not in own_files and not header_name.startswith(TOOLKIT_FOLDERS):
                    missing_names.append(header_name)
                    if is_path_include(header_name):
                        kept_spans.append((declaration.start, declaration.end, ""))
            elif declaration.kind == "using":
                namespace_names = {token.text for token in declaration.tokens[2:] if token.kind == "name"}
                namespace = next((token.text for token in declaration.tokens[2:] if token.kind == "name"), "")
                kept_spans.append(
                    (
                        declaration.start,
                        declaration.end,
                        _open_namespace(namespace, source.text, declaration) if namespace_names <= namespaces else "",
                    )
                )
            elif declaration.kind != "directive" and id(declaration) not in needed:
                kept_spans.append((declaration.start, declaration.end, _conditionals_within(declaration, source.text)))
                if source is sources[0]:
                    blanked.append(declaration)
        texts[source.path] = _replace_spans(source.text, kept_spans)
    return DevicePart(texts, tuple(blanked), tuple(dict.fromkeys(missing_names)), implied_headers(texts.values()))


def _open_namespace(space: str, text: str, declaration: Declaration) -> str:
    """Return a `using namespace`, after an empty definition, because no header may have opened the namespace."""
    return f"namespace {space} {{}} {text[declaration.start : declaration.end]}"


def _replace_spans(text: str, replacements: Iterable[tuple[int, int, str]]) -> str:
    """Replace spans of a text (start, end, new text); each replacement has as many line ends as the span."""
    lines: list[str] = []
    position = 0
    for start, end, replacement in replacements:
        missing_line_ends = text.count("\n", start, end) - replacement.count("\n")
        lines += [text[position:start], replacement, "\n" * missing_line_ends]
        position = end
    return "".join(lines) + text[position:]


def _conditionals_within(declaration: Declaration, text: str) -> str:
    """Return the preprocessor conditions within a removed declaration, each on its line: they may end after it."""
    lines, continues = [], False
    for line in text[declaration.start : declaration.end].split("\n"):
        match = re.match(r"\s*#\s*(\w+)", line)
        continues = continues or bool(match and match[1] in CONDITIONAL_DIRECTIVES)
        lines.append(line if continues else "")
        continues = continues and line.rstrip("\r").endswith("\\")
    return "\n".join(lines) if any(lines) else ""


def _parse(
    sources: Sequence[Source], kernel_names: Sequence[str]
) -> tuple[dict[Path, tuple[Declaration, ...]], list[Declaration], set[int]]:
    """Return the declarations by file, all declarations, and the ids of those that kernels and expressions need."""
    declarations_of_file = {source.path: declarations(source.text) for source in sources}
    all_declarations = list(itertools.chain.from_iterable(declarations_of_file.values()))
    words = {word for name in kernel_names for word in re.findall(r"[A-Za-z_]\w*", name)}
    return declarations_of_file, all_declarations, _needed(all_declarations, words)


def _needed(all_declarations: Sequence[Declaration], names: set[str]) -> set[int]:
    """Return the ids of the declarations that the given names need, directly or indirectly."""
    by_name = _declarations_by_name(all_declarations)
    needed_ids: set[int] = set()
    uses, calls, unvisited = set(names), set[str](), set(names)

    def keep(declaration: Declaration) -> None:
        needed_ids.add(id(declaration))
        unvisited.update(declaration.uses - uses, declaration.calls - calls)
        uses.update(declaration.uses)
        calls.update(declaration.calls)

    for candidate in all_declarations:
        if "operator" in candidate.names and candidate.is_device:
            keep(candidate)
    while unvisited:
        name = unvisited.pop()
        for candidate in by_name.get(name, ()):
            is_host_function = (
                candidate.kind in ("function", "prototype")
                and not candidate.is_device
                and "constexpr" not in candidate.specifiers
            )
            if id(candidate) not in needed_ids and (name in calls or (name in uses and not is_host_function)):
                keep(candidate)
    for candidate in all_declarations:
        declarations_of_names = [by_name[name] for name in candidate.uses & by_name.keys()]
        are_known = all(
            any(
                id(declaration_of_name) in needed_ids or declaration_of_name.kind == "directive"
                for declaration_of_name in same_name
            )
            for same_name in declarations_of_names
        )
        if candidate.tokens[0].text == "static_assert" and are_known:
            needed_ids.add(id(candidate))
    return needed_ids


def host_function(sources: Sequence[Source], kernel_names: Sequence[str]) -> tuple[Source, Declaration] | None:
    """Return a host-only function that the named kernels call, which nvcc would reject; None without one."""
    declarations_of_file, all_declarations, needed = _parse(sources, kernel_names)
    device_names = {
        name
        for declaration in all_declarations
        if declaration.kind != "directive" and declaration.is_device
        for name in declaration.names
    }
    for source in sources:
        for declaration in declarations_of_file[source.path]:
            if (
                declaration.kind != "function"
                or declaration.is_device
                or "constexpr" in declaration.specifiers
                or id(declaration) not in needed
                or declaration.name in device_names
                or declaration.name in kernel_names
            ):
                continue
            head_words = {token.text for token in declaration.tokens[: declaration.body]} - {declaration.name}
            # A macro before its name, or a region of a pragma, may mark the function for the device.
            is_plain = not any((word.isupper() and len(word) > 1) or word.startswith("__") for word in head_words)
            has_macro = any(
                directive_declaration.kind == "directive" and directive_declaration.names & head_words
                for directive_declaration in all_declarations
            )
            if is_plain and not has_macro:
                return source, declaration
    return None


def undefined_variable(sources: Sequence[Source], kernel_names: Sequence[str]) -> tuple[Source, Declaration] | None:
    """Return a device variable that the named kernels need and that is declared `extern` but never defined.

    Returns None without one.
    """
    declarations_of_file, all_declarations, needed = _parse(sources, kernel_names)

    def only_declared(declaration: Declaration) -> bool:
        token_texts = {token.text for token in declaration.tokens}
        return (
            declaration.kind == "other"
            and "extern" in token_texts
            and "=" not in token_texts
            and bool(declaration.specifiers & DEVICE_QUALIFIERS)
        )

    defined = {
        name
        for declaration in all_declarations
        if not only_declared(declaration) and declaration.kind == "other"
        for name in declaration.names
    }
    for source in sources:
        for candidate in declarations_of_file[source.path]:
            if (
                id(candidate) in needed
                and only_declared(candidate)
                and candidate.names
                and not candidate.names & defined
            ):
                return source, candidate
    return None


def _declarations_by_name(all_declarations: Sequence[Declaration]) -> dict[str, list[Declaration]]:
    """Return the declarations by the names that they declare; a use of a macro may declare names.

    A macro's use that passes on a host function, such as in a registry of launches, declares nothing for
    kernels.
    """
    result: dict[str, list[Declaration]] = {}
    for declaration in all_declarations:
        for name in declaration.names:
            result.setdefault(name, []).append(declaration)
    macros = {
        name: declaration
        for declaration in all_declarations
        if declaration.kind == "directive"
        for name in declaration.names
    }
    for declaration in all_declarations:
        first_word = declaration.tokens[0].text
        if (
            declaration.kind == "other"
            and first_word in macros
            and "=" not in {token.text for token in declaration.tokens[:3]}
        ):
            if any(_is_host_function(other) for name in declaration.uses for other in result.get(name, ())):
                continue
            for name in (macros[first_word].uses | declaration.uses) - result.keys():
                result.setdefault(name, []).append(declaration)
    return result


def write_device_code(part: DevicePart, sources: Sequence[Source], folder: Path) -> dict[Path, Path]:
    """Write the device code to files in a folder and return their paths.

    Includes are adjusted, because an unchanged file may include a changed one.
    """
    changed = {
        source.path: folder / f"{source_index}-{source.path.name}" for source_index, source in enumerate(sources)
    }
    for path, target in changed.items():
        text = redirect_includes(part.texts[path], path, changed)
        target.write_text(f'#line 1 "{path.absolute()}"\n{text}')
    return changed


def redirect_includes(text: str, path: Path, changed: Mapping[Path, Path]) -> str:
    """Return the text with absolute paths in its includes; changed files have their new paths."""
    by_name = {original.name: copy for original, copy in changed.items()}

    def rewrite_include(match: re.Match[str]) -> str:
        name = match[2][1:-1]
        if Path(name).name in by_name:
            return f'{match[1]}"{by_name[Path(name).name]}"'
        relative_path = path.parent / name
        return f'{match[1]}"{relative_path.absolute()}"' if match[2][0] == '"' and relative_path.is_file() else match[0]

    return re.sub(r'^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]+>|"[^"\n]+")', rewrite_include, text, flags=re.MULTILINE)


class HeaderNotFound(CompileError):
    """A compile error in a file that includes a missing header."""


def missing_header_error(error: CompileError, names: Sequence[str], sources: Sequence[Source]) -> CompileError:
    """Return the compile error with a message that names the missing headers."""
    if isinstance(error, HeaderNotFound):
        return error
    header_list = ", ".join(f"<{name}>" for name in names)
    location = next((include_location for name in names for include_location in _includes(name, sources)), None)
    if any("curand" in name for name in names):
        text = (
            f"{header_list}: cuRAND's device functions are not known here: give the kernel its random numbers, or "
            "their seeds, as an input"
        )
    elif any(name.startswith(TOOLKIT_FOLDERS) for name in names):
        text = (
            f"{header_list} is CUDA's own and was not found: install the wheel nvidia-cuda-cccl (of CUDA 12 "
            "nvidia-cuda-cccl-cu12), or a CUDA toolkit"
        )
    else:
        text = missing_header_message(names[0], sources)
    return HeaderNotFound(f"{text}\n{error}", location)


def is_path_include(name: str) -> bool:
    """Return whether an include gives a path, such as "../common.h", that no include folder can contain."""
    return ".." in Path(name).parts or Path(name).is_absolute()


def missing_header_message(name: str, sources: Sequence[Source]) -> str:
    """Return the message for a missing header: where it was searched, and where to put it."""
    includer = next((source.path for source in sources if _lines(name, source)), Path())
    target = (includer.absolute().parent / name).resolve()
    searched_text = (
        ""
        if is_path_include(name)
        else f", in {', '.join(filter(None, INCLUDE_FOLDERS))} there and in the folders above"
    )
    return (
        f"header '{name}' was not found; put it at {path_from_here(str(target))}\n"
        f"Looked for there{searched_text}. It is taken as empty, which serves only kernels that use nothing of it. "
        "Headers of many kernels can lie in DIR/include with --variants DIR."
    )


def missing_headers(sources: Sequence[Source], folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the headers in quotation marks that no folder contains, each with file:line of its include."""
    for source in sources:
        for line, written in includes(source.text):
            name = written[1:-1]
            is_users = written[0] == '"' and not (
                is_host_header(name) or name in STANDARD_HEADERS or is_compiler_header(name)
            )
            if is_users and not any((folder / name).is_file() for folder in (source.path.parent, *folders)):
                yield f"{path_from_here(str(source.path))}:{line}", name


def _includes(name: str, sources: Sequence[Source]) -> Iterable[Location]:
    """Return the lines that include a header."""
    return (
        Location(Path(path_from_here(str(source.path))), line) for source in sources for line in _lines(name, source)
    )


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
        file = folder / name
        if ".." not in Path(name).parts and not Path(name).is_absolute() and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, substitute_header(name).encode())
    folder.mkdir(parents=True, exist_ok=True)
    return folder
