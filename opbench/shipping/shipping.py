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
from opbench.shipping.building import cmakelists, makefile
from opbench.shipping.choosing import choose_cases, find_target
from opbench.shipping.fixed_text import licence
from opbench.shipping.folder import require_free, write_folder
from opbench.shipping.interface import header_text
from opbench.shipping.library import Library, make_library
from opbench.shipping.options import ShipOptions
from opbench.shipping.proving import expected_values_file, test_text
from opbench.shipping.source import source_text
from opbench.tables import markdown_table


@dataclass(frozen=True)
class ShipResult:
    """The result of `opbench ship`: the folder that was written, notes, and a summary for the terminal."""

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
    gpu = find_target(options.gpu, book)
    selection = choose_cases(options.names, catalog, book, gpu, options.precision)
    on_progress(f"compiling {len(selection.cases)} case{'s' * (len(selection.cases) != 1)}")
    library = make_library(selection.cases, options.name, gpu, selection.time_notes, options.command)
    case_count = library.name
    cubin = f"{case_count}.{library.arch}.cubin"
    files = {
        f"{case_count}.h": header_text(library).encode(),
        f"{case_count}.cu": source_text(library).encode(),
        "Makefile": makefile(case_count, library.arch, "library", cubin).encode(),
        "CMakeLists.txt": cmakelists(case_count, library.arch, "library").encode(),
        "README.md": readme_text(library, cubin).encode(),
        "LICENSE": licence(),
        f"{case_count}_test.cpp": test_text(library).encode(),
        **{name: text.encode() for name, text in library.text.headers.items()},
    }
    if library.compiled.cubin:
        files[cubin] = library.compiled.cubin
    if options.test:
        files[f"{case_count}_test.safetensors"] = expected_values_file(
            library, lambda case: on_progress(f"float64 reference of {case}")
        )
    notes = list(selection.notes)
    if library.compiled.failure_reason:
        notes.append(f"no cubin: {library.compiled.failure_reason}")
    write_folder(options.out, files, manifest_data(library), options.replace)
    kernel_count = len(library.kernels)
    problems = sum(len(case) for case in library.cases.values())
    size = units.si(sum(map(len, files.values())), "B")
    count_text = f"{problems} problem{'s' * (problems != 1)}, {kernel_count} kernel text{'s' * (kernel_count != 1)}"
    summary = f"wrote {options.out}: {count_text}, {size}"
    return ShipResult(options.out, tuple(notes), summary)


def manifest_data(library: Library) -> dict[str, JSON]:
    """Return the data of ship.json: version, command, GPU and the checksum of each case's source."""
    return {
        "opbench": __version__,
        "command": library.command,
        "gpu": library.gpu,
        "arch": library.arch,
        "cases": {case.case.name: case.case.variant.source_sha256 for case in library.all_cases},
    }


def readme_text(library: Library, cubin: str) -> str:
    """Return the README: how to build, test and call the library."""
    prefix, first_case = library.name, library.all_cases[0]
    axes = ", ".join(f".{name} = {_c_literal(value)}" for name, value in first_case.case.problem.axes.items())
    call = ", ".join(t.name for t in (*first_case.code.inputs, *first_case.code.outputs))
    operator_name = first_case.case.problem.name
    rows = [
        (
            f"{case.case.problem.name}{case.case.problem}",
            case.case.name.removesuffix(str(case.case.problem)),
            units.si(case.code.workspace_bytes, "B") if case.code.workspace_bytes else "–",
            case.time_note or "–",
        )
        for case in library.all_cases
    ]
    lines = [
        f"# {prefix}: kernels for {library.gpu} ({library.arch})",
        "",
        f"Made by `{library.command}` (opbench {__version__}, MIT License). `{prefix}.h` is the interface,",
        f"`{prefix}.cu` the source, `opbench/` the headers that its kernels include.",
        "",
        *markdown_table(("problem", "variant", "workspace", "measured"), rows, left=range(4)),
        "",
        "```sh",
        "make test              # nvcc; or: cmake -B build && cmake --build build && ctest --test-dir build",
        f"make clean && make test cubin=1 CUDA=/usr/local/cuda   # g++ alone, with the kernels of {cubin}",
        "```",
        "",
        "```c",
        f'#include "{prefix}.h"',
        f"const {prefix}_{operator_name}_problem problem = {{{axes}}};",
        "size_t bytes;",
        f"if ({prefix}_{operator_name}_workspace(&problem, &bytes)) puts({prefix}_message());  /* not included */",
        f"if ({prefix}_{operator_name}(&problem, {call}, workspace, stream)) puts({prefix}_message());",
        "```",
        "",
        f"`{prefix}_test` tests the library with seeded inputs against a float64 reference. Results and allowed",
        f"errors are in `{prefix}_test.safetensors`. `TIME=1 ./{prefix}_test` also prints the time of each call.",
        f"Grids are sized for {library.sm_count} multiprocessors.",
        "",
    ]
    return "\n".join(lines)


def _c_literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
