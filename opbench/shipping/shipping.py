"""Write a library as files, for `opbench ship` with operators and cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opbench import units
from opbench._version import __version__
from opbench.kernels.folders import Catalog
from opbench.records import JSON
from opbench.results.book import read_book
from opbench.shipping.building import cmakelists, makefile, table
from opbench.shipping.choosing import choose_cases, target
from opbench.shipping.fixed_text import licence
from opbench.shipping.folder import require_free, write_folder
from opbench.shipping.interface import header_text
from opbench.shipping.library import Library, make_library
from opbench.shipping.options import ShipOptions
from opbench.shipping.proving import expectations, test_text
from opbench.shipping.source import source_text


@dataclass(frozen=True)
class ShipResult:
    """The files that were written."""

    out: Path
    notes: tuple[str, ...]
    summary: str


def ship_library(options: ShipOptions, on_progress: Callable[[str], None] = lambda text: None) -> ShipResult:
    """Write a library of the named problems.

    Raises UsageError, CompileError or EnvironmentFault and then writes nothing.
    """
    require_free(options.out, options.replace)
    catalog = Catalog(options.variants)
    book = read_book(options.book) if options.book else None
    gpu = target(options.gpu, book)
    choice = choose_cases(options.names, catalog, book, gpu, options.precision)
    on_progress(f"compiling {len(choice.cases)} case{'s' * (len(choice.cases) != 1)}")
    library = make_library(choice.cases, options.name, gpu, choice.time_notes, options.command)
    n = library.name
    cubin = f"{n}.{library.arch}.cubin"
    files = {
        f"{n}.h": header_text(library).encode(),
        f"{n}.cu": source_text(library).encode(),
        "Makefile": makefile(n, library.arch, "library", cubin).encode(),
        "CMakeLists.txt": cmakelists(n, library.arch, "library").encode(),
        "README.md": readme(library, cubin).encode(),
        "LICENSE": licence(),
        f"{n}_test.cpp": test_text(library).encode(),
        **{name: text.encode() for name, text in library.text.headers.items()},
    }
    if library.compiled.cubin:
        files[cubin] = library.compiled.cubin
    if options.test:
        files[f"{n}_test.safetensors"] = expectations(library, lambda case: on_progress(f"float64 reference of {case}"))
    notes = list(choice.notes)
    if library.compiled.why_not:
        notes.append(f"no cubin: {library.compiled.why_not}")
    write_folder(options.out, files, manifest(library), options.replace)
    kernel_count = len(library.kernels)
    problems = sum(len(case) for case in library.cases.values())
    size = units.si(sum(map(len, files.values())), "B")
    count_text = f"{problems} problem{'s' * (problems != 1)}, {kernel_count} kernel text{'s' * (kernel_count != 1)}"
    summary = f"wrote {options.out}: {count_text}, {size}"
    return ShipResult(options.out, tuple(notes), summary)


def manifest(library: Library) -> dict[str, JSON]:
    """Return the origin of all parts, for programs."""
    return {
        "opbench": __version__,
        "command": library.command,
        "gpu": library.gpu,
        "arch": library.arch,
        "cases": {case.case.name: case.case.variant.source_sha256 for case in library.all_cases},
    }


def readme(library: Library, cubin: str) -> str:
    """Return the README: how to build, test and call the library."""
    n, first_case = library.name, library.all_cases[0]
    axes = ", ".join(f".{name} = {_literal(value)}" for name, value in first_case.case.problem.axes.items())
    call = ", ".join(t.name for t in (*first_case.code.inputs, *first_case.code.outputs))
    o = first_case.case.problem.name
    rows = [("problem", "variant", "workspace", "measured")]
    rows += [
        (
            f"{case.case.problem.name}{case.case.problem}",
            case.case.name.removesuffix(str(case.case.problem)),
            units.si(case.code.workspace_bytes, "B") if case.code.workspace_bytes else "–",
            case.time_note or "–",
        )
        for case in library.all_cases
    ]
    lines = [
        f"# {n}: kernels for {library.gpu} ({library.arch})",
        "",
        f"Made by `{library.command}` (opbench {__version__}, MIT License). `{n}.h` is the interface,",
        f"`{n}.cu` the source, `opbench/` the headers that its kernels include.",
        "",
        *table(rows),
        "",
        "```sh",
        "make test              # nvcc; or: cmake -B build && cmake --build build && ctest --test-dir build",
        f"make clean && make test cubin=1 CUDA=/usr/local/cuda   # g++ alone, with the kernels of {cubin}",
        "```",
        "",
        "```c",
        f'#include "{n}.h"',
        f"const {n}_{o}_problem problem = {{{axes}}};",
        "size_t bytes;",
        f"if ({n}_{o}_workspace(&problem, &bytes)) puts({n}_message());  /* not held: says so */",
        f"if ({n}_{o}(&problem, {call}, workspace, stream)) puts({n}_message());",
        "```",
        "",
        f"`{n}_test` proves the build: seeded inputs, the float64 reference's results and what elements may be off by",
        f"lie in `{n}_test.safetensors`. `TIME=1 ./{n}_test` prints the time of a call, too. Grids are sized for",
        f"{library.sm_count} multiprocessors.",
        "",
    ]
    return "\n".join(lines)


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
