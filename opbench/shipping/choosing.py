"""Choose the cases to ship: complete case names, or a winners file's cases of an operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opbench import units
from opbench.errors import UsageError, unknown_name
from opbench.gpu.limits.capability import capability_of
from opbench.gpu.limits.products import PRODUCTS, product
from opbench.graph.problems import ALLOWED_PRECISIONS
from opbench.graph.zoo import NETWORKS
from opbench.kernels.capability import missing_capability
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.paths import next_command
from opbench.results.book import Book, BookEntry
from opbench.results.winners import entries_of
from opbench.shipping.measured import Choice, choose_case, problem_named


@dataclass(frozen=True)
class ShipTarget:
    """The GPU that sources are made for."""

    name: str
    arch: str
    """Such as "sm_90"."""
    sm_count: int
    """Number of multiprocessors by which grids are sized."""


@dataclass(frozen=True)
class ShipSelection:
    """Cases, one per problem, with the known times and notes on the choice."""

    cases: tuple[Case, ...]
    time_notes: dict[str, str]
    notes: tuple[str, ...] = ()


def find_target(gpu: str, book: Book | None = None) -> ShipTarget:
    """Return the GPU that `--gpu` names: by an architecture (sm_90), a model (h200) or a name in the winners file.

    Raises UsageError for an unknown name, and for an architecture of which the winners file has several GPUs.
    """
    known_product = product(gpu)
    if known_product:
        return ShipTarget(known_product.name, known_product.arch, known_product.sm_count)
    match = re.fullmatch(r"(?:sm_|compute_)?(\d{2,3})a?", gpu)
    if not match:
        raise UsageError(
            f"--gpu {gpu}: {unknown_name('GPU', gpu.lower(), PRODUCTS)}, or give an architecture such as sm_90"
        )
    arch = f"sm_{match[1]}"
    book_gpus = [name for name, capability in (book.gpus if book else {}).items() if _arch_name(capability) == arch]
    if len(book_gpus) > 1:
        raise UsageError(
            f"--gpu {gpu}: the winners file has several GPUs of {arch} ({', '.join(book_gpus)}); choose one: "
            f"--gpu {book_gpus[0]!r}",
            kind="several-gpus",
            subject="--gpu",
            value=gpu,
            allowed=tuple(book_gpus),
        )
    products = [gpu_product for name in book_gpus if (gpu_product := product(name))] or [
        p for p in PRODUCTS.values() if p.arch == arch
    ]
    if not products:
        architectures = ", ".join(sorted({p.arch for p in PRODUCTS.values()}))
        raise UsageError(
            f"--gpu {gpu}: opbench knows no GPU of architecture {arch}; choose one of {architectures}",
            kind="unknown-architecture",
            subject="--gpu",
            value=arch,
            allowed=architectures,
        )
    best = max(products, key=lambda gpu_product: (gpu_product.sm_count, gpu_product.dram_bytes_per_s))
    return ShipTarget(book_gpus[0] if len(book_gpus) == 1 else best.name, arch, best.sm_count)


def _arch_name(capability: str) -> str:
    return f"sm_{capability.replace('.', '')}"


def choose_cases(
    names: Sequence[str], catalog: Catalog, book: Book | None, gpu: ShipTarget, precision: str
) -> ShipSelection:
    """Return the cases for some names. A name is a complete case or an operator with cases in a winners file.

    Raises UsageError for an unknown name, for a case that does not fit its problem or calls a library, and for two
    cases of one problem.
    """
    choices = [choice for name in names for choice in _choices(name, catalog, book, gpu, precision)]
    cases = [_require_shippable(choice.case, gpu) for choice in choices]
    time_notes = {choice.case.name: choice.time_note for choice in choices}
    notes = [choice.note for choice in choices if choice.note]
    if book is not None:
        edited = set(book.edited(catalog))
        notes += [f"{c.name}: edited since it was measured" for c in cases if c.name in edited]
    by_problem: dict[tuple[str, str], Case] = {}
    for case in cases:
        case_of_problem = by_problem.setdefault((case.problem.name, str(case.problem)), case)
        if case_of_problem.name != case.name:
            raise UsageError(
                f"{case_of_problem.name} and {case.name} have the same problem, and a library has one case for each "
                "problem; remove one of the two cases",
                kind="duplicate-problem",
                subject=case_of_problem.name,
                value=case.name,
            )
    return ShipSelection(tuple(by_problem.values()), time_notes, tuple(notes))


def _choices(name: str, catalog: Catalog, book: Book | None, gpu: ShipTarget, precision: str) -> list[Choice]:
    """Return the cases that one name stands for: a case, a problem, or an operator of a winners file."""
    if problem := problem_named(name, catalog):
        return [_choose_for_problem(problem, catalog, book, gpu, precision)]
    if "(" in name:
        return [Choice(catalog.case(name), "", "")]
    if name not in catalog.operator_names():
        known_names = [*catalog.operator_names(), *NETWORKS]
        name_error = unknown_name("operator or network", name, known_names, catalog.command("list operators"))
        raise UsageError(
            f"{name_error}; or name a case, such as 'relu/vec4(n=1048576)': {catalog.command('list cases')}",
            cause=UsageError(name_error),
        )
    if book is None:
        raise UsageError(
            f"'{name}' is an operator, and a library needs its sizes. Name one problem, such as "
            f"'{name}{_example_sizes(catalog, name)}', or cases ({catalog.command('list cases', name)}), or add a "
            "winners file with --book book.json (write one with: opbench book RUN --out book.json)",
            kind="no-winners-file",
            subject=name,
        )
    entries = _fastest_entries(book.entries, name, gpu, precision)
    if not entries:
        operators_text = ", ".join(sorted({e.operator for e in book.entries})) or "nothing"
        raise UsageError(
            f"the winners file has no problem of {name} in {precision} for {gpu.arch}, but problems of "
            f"{operators_text}; name one problem instead, such as '{name}{_example_sizes(catalog, name)}'",
            kind="no-such-problem",
            subject=name,
            value=precision,
            allowed=gpu.arch,
        )
    return [Choice(catalog.case(entry.winner.case), _time_text(entry), "") for entry in entries]


def _choose_for_problem(
    problem: Operator, catalog: Catalog, book: Book | None, gpu: ShipTarget, precision: str
) -> Choice:
    """Choose a case for a problem: the winner in --book, else the committed winner, else the case ranked first."""
    name = f"{problem.name}{problem}"
    for entry in _fastest_entries(book.entries if book else (), problem.name, gpu, precision):
        if entry.problem == str(problem):
            case = catalog.case(entry.winner.case)
            return Choice(case, _time_text(entry), f"{name}: takes {case.variant.name}, the winner of --book")
    committed_entries = _fastest_entries(entries_of(problem), problem.name, gpu, precision)
    return choose_case(problem, catalog, next(iter(committed_entries), None), gpu.name, gpu.arch, precision)


def _example_sizes(catalog: Catalog, operator: str) -> str:
    return str(max(catalog.operator(operator).examples(), key=lambda problem: problem.bytes()))


def _fastest_entries(entries: Sequence[BookEntry], operator: str, gpu: ShipTarget, precision: str) -> list[BookEntry]:
    """Return the fastest entry of each problem of an operator on this GPU, or on GPUs of its architecture."""
    fastest_entries: dict[str, BookEntry] = {}
    gpus = {entry.gpu: entry.compute_capability for entry in entries}
    same_architecture = {name for name, capability in gpus.items() if _arch_name(capability) == gpu.arch}
    same_gpu = {
        name
        for name in same_architecture
        if name == gpu.name or ((known_product := product(name)) and known_product.name == gpu.name)
    }
    for entry in entries:
        is_fitting = entry.gpu in (same_gpu or same_architecture) and entry.operator == operator
        has_dtype = entry.precision in ("bf16", "f16") and f"dtype={entry.precision}" in entry.problem
        if not is_fitting or not (has_dtype or entry.precision in ALLOWED_PRECISIONS[precision]):
            continue
        fastest_so_far = fastest_entries.get(entry.problem)
        if fastest_so_far is None or entry.winner.median_s < fastest_so_far.winner.median_s:
            fastest_entries[entry.problem] = entry
    return list(fastest_entries.values())


def _time_text(entry: BookEntry) -> str:
    text = f"{units.time(entry.winner.median_s)} on {entry.gpu}"
    return text if entry.speedup is None else f"{text}, {entry.speedup:.2f} x a library's speed"


def require_shippable_variant(case: Case, gpu: ShipTarget) -> None:
    """Raise UsageError for a case that calls a vendor's library, and for a case that the GPU cannot run."""
    if case.variant.is_library:
        raise UsageError(
            f"{case.name}: this variant calls a vendor's library from Python, which cannot be shipped as C++; name a "
            f"variant of a .cu file: {next_command('list variants', case.problem.name)}",
            kind="vendor-library",
            subject=case.name,
        )
    if reason := missing_capability(capability_of(gpu.arch), case.variant.compute_capability):
        raise UsageError(
            f"{case.name}: {reason} (--gpu names {gpu.name}, {gpu.arch}); name another variant "
            f"({next_command('list variants', case.problem.name)}), or another --gpu",
            kind="missing-capability",
            subject=case.name,
            value=gpu.arch,
            allowed=case.variant.compute_capability,
        )


def _require_shippable(case: Case, gpu: ShipTarget) -> Case:
    """Return the case unchanged; raise UsageError if the case cannot be shipped for this GPU."""
    if reason := case.unmet_requirement():
        raise UsageError(
            f"{case.name}: this case cannot be shipped: the variant {reason}; choose another problem or variant: "
            f"{next_command('list cases', case.problem.name)}",
            kind="unsupported-problem",
            subject=case.name,
            value=reason.subject,
        )
    require_shippable_variant(case, gpu)
    return case
