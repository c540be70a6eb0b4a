"""The kernels' texts in one source: each in its own namespace, with its tunables as macros around it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench import paths
from opbench.kernels.case import Case
from opbench.kernels.launch import BuildRequest
from opbench.kernels.variant import Config, Variant, print_config
from opbench.source import device_part
from opbench.source.sources import Source, defined_macros, includes

HEADER_FOLDER = "opbench"
"""The folder of the shared headers, as kernels include them: <opbench/tile.cuh>."""
RULE_LINE = "=" * 110

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|\"[^\"\n]+\")[^\n]*\n?", re.MULTILINE)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*\n?", re.MULTILINE)
_NAMED_AS_C = re.compile(r"(?:^[ \t]+)?\bextern\s+\"C\"\s*(\{)?", re.MULTILINE)
_COMMENT = re.compile(r"(?://[^\n]*\n)+")
_BLANK_LINES = re.compile(r"\n{3,}")
_VARIANT_HEADER = re.compile(r"\A// /// opbench\n.*?^// ///[ \t]*\n(//[ \t]*\n)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class KernelText:
    """The text of one variant with one set of macros; several problems may share it."""

    namespace: str
    """The namespace of the text."""
    variant: Variant
    request: BuildRequest
    config: Config
    """The values of its tunables."""

    def qualified_name(self, kernel: str) -> str:
        """Return the C++ name of a kernel or variable with its namespace."""
        return f"{self.namespace}::{kernel.removeprefix('::')}"


def kernel_texts(cases: Iterable[Case]) -> dict[BuildRequest, KernelText]:
    """Return the source texts of the kernels of some cases by build request, each text once."""
    requests: dict[BuildRequest, list[Case]] = {}
    for case in cases:
        requests.setdefault(case.request(), []).append(case)
    result: dict[BuildRequest, KernelText] = {}
    used_spaces: set[str] = set()
    for request, cases_of_request in requests.items():
        variant = cases_of_request[0].variant
        space = stem = re.sub(r"\W", "_", f"{variant.operator}_{variant.name}")
        suffix = 1
        while space in used_spaces:
            suffix += 1
            space = f"{stem}_{suffix}"
        used_spaces.add(space)
        result[request] = KernelText(space, variant, request, cases_of_request[0].config)
    return result


@dataclass(frozen=True)
class DeviceText:
    """The source text for the GPU compiler: system headers, shared headers, and one namespace per kernel."""

    system_headers: tuple[str, ...]
    """CUDA's own headers that any text includes, with their brackets."""
    headers: Mapping[str, str]
    """Texts of the headers that kernels share, by the name in their `#include`."""
    kernels: Mapping[str, str]
    """Text of each kernel by namespace."""

    def __str__(self) -> str:
        lines = "\n".join(f"#include {name}" for name in self.system_headers)
        return "\n\n".join(part for part in (lines, *self.kernels.values()) if part) + "\n"


def device_text(texts: Iterable[KernelText]) -> DeviceText:
    """Return the device text of some kernels.

    Shared headers are included in the namespace of each kernel, because two of them may conflict within one namespace.
    """
    system_headers: dict[str, None] = {}
    headers_by_name: dict[str, str] = {}
    kernels: dict[str, str] = {}
    for kernel_text in texts:
        own_source, *headers = _needed_sources(kernel_text)
        shared_headers = [source for source in headers if _is_opbench_header(source, kernel_text.request.include)]
        private_headers = [source for source in headers if source not in shared_headers]
        system_headers |= dict.fromkeys(_system_headers((own_source, *headers), headers))
        ordered = _in_include_order({source.path.name: source for source in shared_headers})
        for source in ordered:
            headers_by_name[f"{HEADER_FOLDER}/{source.path.name}"] = _header_text(source)
        kernels[kernel_text.namespace] = _namespace_text(
            kernel_text, own_source, private_headers, [source.path.name for source in ordered]
        )
    return DeviceText(tuple(sorted(system_headers)), dict(sorted(headers_by_name.items())), kernels)


@functools.lru_cache(256)
def _shared_names(source: Source) -> list[str]:
    return [Path(name[1:-1]).name for _, name in includes(source.text) if name[1:].startswith(f"{HEADER_FOLDER}/")]


def _in_include_order(shared_headers: Mapping[str, Source]) -> list[Source]:
    """Return the shared headers, each after the headers that it includes."""
    ordered: dict[str, Source] = {}

    def append(name: str) -> None:
        for other in _shared_names(shared_headers[name]):
            if other in shared_headers and other not in ordered:
                append(other)
        ordered.setdefault(name, shared_headers[name])

    for name in shared_headers:
        append(name)
    return list(ordered.values())


@functools.lru_cache(256)
def _header_text(source: Source) -> str:
    """Return a shared header for shipping: its own includes are removed, because they come before it."""
    needs = ", ".join(_shared_names(source))
    comment = (
        f"// Of opbench (MIT License). Included in each kernel's namespace{', behind ' + needs if needs else ''}.\n"
    )
    return comment + _PRAGMA_ONCE.sub("", _INCLUDE.sub("", source.text)).lstrip("\n")


def _needed_sources(kernel_text: KernelText) -> Sequence[Source]:
    """Return the source files of a variant; for a file with host code, only the parts that its kernels need."""
    sources = kernel_text.variant.sources
    if not device_part.has_host_part(sources):
        return sources
    device_source = device_part.device_part(sources, kernel_text.request.roots)
    return [Source(s.path, device_source.texts[s.path].encode(), s.modified_ns) for s in sources]


def _is_opbench_header(source: Source, folders: Sequence[Path]) -> bool:
    return any(source.path.parent == folder / HEADER_FOLDER for folder in folders)


def _system_headers(texts: Iterable[Source], sources: Sequence[Source]) -> list[str]:
    """Return the headers in angle brackets that come with the compiler, not with opbench."""
    own_names = {source.path.name for source in sources}
    included_names = [name for source in texts for _, name in includes(source.text)]
    return [
        f"<{n[1:-1]}>"
        for n in included_names
        if Path(n[1:-1]).name not in own_names and not device_part.is_host_header(n[1:-1])
    ]


def _namespace_text(
    kernel_text: KernelText, own_source: Source, private_headers: Sequence[Source], shared_names: Sequence[str]
) -> str:
    """Return the text of one kernel in its namespace, with a comment that names its variant and file."""
    variant = kernel_text.variant
    text = _VARIANT_HEADER.sub("", own_source.text).lstrip("\n")
    leading_comment = match[0] if (match := _COMMENT.match(text)) else ""
    headers = {source.path.name: source for source in private_headers}

    def inlined(match: re.Match[str]) -> str:
        source = headers.pop(Path(match[1][1:-1]).name, None)
        return _INCLUDE.sub(inlined, _PRAGMA_ONCE.sub("", source.text)) + "\n" if source else ""

    body = _INCLUDE.sub(inlined, text[len(leading_comment) :])
    body = _NAMED_AS_C.sub(lambda match: "inline namespace c_names {" if match[1] else "", body).strip("\n")
    body = _BLANK_LINES.sub("\n\n", body).strip("\n")
    macros = dict.fromkeys(name for name, _ in kernel_text.request.macros)
    for source in (own_source, *private_headers):
        macros |= dict.fromkeys(defined_macros(source.text))
    lines = [
        f"// {RULE_LINE}",
        f"// {variant.id}{print_config(kernel_text.config)}: {variant.title}",
        f"// from {_origin_path(variant)}, sha256 {variant.source_sha256[:16]}",
        "//",
        *leading_comment.rstrip("\n").split("\n"),
        *(f"#define {name} {value}" for name, value in kernel_text.request.macros),
        f"namespace {kernel_text.namespace} {{",
        *(f'#include "{HEADER_FOLDER}/{name}"' for name in shared_names),
        body,
        f"}}  // namespace {kernel_text.namespace}",
        *(f"#undef {name}" for name in macros),
    ]
    return "\n".join(lines)


def _origin_path(variant: Variant) -> str:
    """Return a variant's path without the folders of this machine, so that readers elsewhere can find the file."""
    relative_path = f"{variant.path.parent.name}/{variant.path.name}"
    return (
        f"variants/{relative_path}" if paths.portable_path(str(variant.path)).startswith("variants/") else relative_path
    )
