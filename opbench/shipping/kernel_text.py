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

HEADERS = "opbench"
"""The folder of the shared headers, as kernels include them: <opbench/tile.cuh>."""
RULE_LINE = "=" * 110

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|\"[^\"\n]+\")[^\n]*\n?", re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*\n?", re.MULTILINE)
_NAMED_AS_C = re.compile(r"(?:^[ \t]+)?\bextern\s+\"C\"\s*(\{)?", re.MULTILINE)
_COMMENT = re.compile(r"(?://[^\n]*\n)+")
_BLANK = re.compile(r"\n{3,}")
_HEADER = re.compile(r"\A// /// opbench\n.*?^// ///[ \t]*\n(//[ \t]*\n)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class KernelText:
    """The text of one variant with one set of macros; several problems may share it."""

    space: str
    """The namespace of the text."""
    variant: Variant
    request: BuildRequest
    config: Config
    """The values of its tunables."""

    def qualified(self, kernel: str) -> str:
        """Return the qualified name of a kernel or variable."""
        return f"{self.space}::{kernel.removeprefix('::')}"


def kernel_texts(cases: Iterable[Case]) -> dict[BuildRequest, KernelText]:
    """Return the texts of some cases, each once, by what has to be compiled."""
    requests: dict[BuildRequest, list[Case]] = {}
    for case in cases:
        requests.setdefault(case.request(), []).append(case)
    result: dict[BuildRequest, KernelText] = {}
    taken: set[str] = set()
    for request, sharing in requests.items():
        variant = sharing[0].variant
        space = stem = re.sub(r"\W", "_", f"{variant.operator}_{variant.name}")
        number = 1
        while space in taken:
            number += 1
            space = f"{stem}_{number}"
        taken.add(space)
        result[request] = KernelText(space, variant, request, sharing[0].config)
    return result


@dataclass(frozen=True)
class DeviceText:
    """The text for the GPU compiler, in parts."""

    system: tuple[str, ...]
    """CUDA's own headers that any text includes, with their brackets."""
    headers: Mapping[str, str]
    """Texts of the headers that kernels share, by the name in their `#include`."""
    kernels: Mapping[str, str]
    """Text of each kernel by namespace."""

    def __str__(self) -> str:
        lines = "\n".join(f"#include {name}" for name in self.system)
        return "\n\n".join(part for part in (lines, *self.kernels.values()) if part) + "\n"


def device_text(texts: Iterable[KernelText]) -> DeviceText:
    """Return the device text of some kernels.

    Shared headers are included in the namespace of each kernel, because two of them may conflict within one namespace.
    """
    system: dict[str, None] = {}
    shared: dict[str, str] = {}
    kernels: dict[str, str] = {}
    for piece in texts:
        own, *headers = _cut(piece)
        common = [source for source in headers if _is_shared(source, piece.request.include)]
        private = [source for source in headers if source not in common]
        system |= dict.fromkeys(_of_the_system((own, *headers), headers))
        ordered = _by_need({source.path.name: source for source in common})
        for source in ordered:
            shared[f"{HEADERS}/{source.path.name}"] = _header_text(source)
        kernels[piece.space] = _piece_text(piece, own, private, [source.path.name for source in ordered])
    return DeviceText(tuple(sorted(system)), dict(sorted(shared.items())), kernels)


@functools.lru_cache(256)
def _shared_names(source: Source) -> list[str]:
    return [Path(name[1:-1]).name for _, name in includes(source.text) if name[1:].startswith(f"{HEADERS}/")]


def _by_need(common: Mapping[str, Source]) -> list[Source]:
    """Return the shared headers, each after the headers that it includes."""
    ordered: dict[str, Source] = {}

    def put(name: str) -> None:
        for other in _shared_names(common[name]):
            if other in common and other not in ordered:
                put(other)
        ordered.setdefault(name, common[name])

    for name in common:
        put(name)
    return list(ordered.values())


@functools.lru_cache(256)
def _header_text(source: Source) -> str:
    """Return a shared header for shipping: its own includes are removed, because they come before it."""
    needs = ", ".join(_shared_names(source))
    comment = (
        f"// Of opbench (MIT License). Included in each kernel's namespace{', behind ' + needs if needs else ''}.\n"
    )
    return comment + _ONCE.sub("", _INCLUDE.sub("", source.text)).lstrip("\n")


def _cut(kernel_text: KernelText) -> Sequence[Source]:
    """Return the variant's texts; for a file with host code, only the parts that its kernels need."""
    sources = kernel_text.variant.sources
    if not device_part.has_host_part(sources):
        return sources
    part = device_part.device_part(sources, kernel_text.request.roots)
    return [Source(s.path, part.texts[s.path].encode(), s.modified_ns) for s in sources]


def _is_shared(source: Source, folders: Sequence[Path]) -> bool:
    return any(source.path.parent == folder / HEADERS for folder in folders)


def _of_the_system(texts: Iterable[Source], sources: Sequence[Source]) -> list[str]:
    """Return the headers in angle brackets that no folder of opbench has: those of the compiler."""
    ours = {source.path.name for source in sources}
    named = [name for source in texts for _, name in includes(source.text)]
    return [f"<{n[1:-1]}>" for n in named if Path(n[1:-1]).name not in ours and not device_part.is_host_header(n[1:-1])]


def _piece_text(kernel_text: KernelText, own: Source, private: Sequence[Source], shared: Sequence[str]) -> str:
    """Return one namespace, with a comment that names its variant and origin."""
    variant = kernel_text.variant
    text = _HEADER.sub("", own.text).lstrip("\n")
    why = match[0] if (match := _COMMENT.match(text)) else ""
    headers = {source.path.name: source for source in private}

    def inlined(match: re.Match[str]) -> str:
        source = headers.pop(Path(match[1][1:-1]).name, None)
        return _INCLUDE.sub(inlined, _ONCE.sub("", source.text)) + "\n" if source else ""

    body = _INCLUDE.sub(inlined, text[len(why) :])
    body = _NAMED_AS_C.sub(lambda match: "inline namespace c_names {" if match[1] else "", body).strip("\n")
    body = _BLANK.sub("\n\n", body).strip("\n")
    macros = dict.fromkeys(name for name, _ in kernel_text.request.macros)
    for source in (own, *private):
        macros |= dict.fromkeys(defined_macros(source.text))
    lines = [
        f"// {RULE_LINE}",
        f"// {variant.id}{print_config(kernel_text.config)}: {variant.title}",
        f"// from {_origin(variant)}, sha256 {variant.source_sha256[:16]}",
        "//",
        *why.rstrip("\n").split("\n"),
        *(f"#define {name} {value}" for name, value in kernel_text.request.macros),
        f"namespace {kernel_text.space} {{",
        *(f'#include "{HEADERS}/{name}"' for name in shared),
        body,
        f"}}  // namespace {kernel_text.space}",
        *(f"#undef {name}" for name in macros),
    ]
    return "\n".join(lines)


def _origin(variant: Variant) -> str:
    """Return the name of the file, as readers elsewhere can find it."""
    near = f"{variant.path.parent.name}/{variant.path.name}"
    return f"variants/{near}" if paths.portable(str(variant.path)).startswith("variants/") else near
