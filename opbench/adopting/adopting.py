"""Propose a header for a file: choose the kernel, find its operator, and read its launch from the host code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from opbench.adopting.file_facts import FileFacts, LaunchedKernel, read_file
from opbench.adopting.matching import MIN_SCORE, Match, nearest_operators, rank_operators, words_of
from opbench.adopting.memory_proposal import propose_memory
from opbench.adopting.operator_proposal import write_header
from opbench.adopting.proposal import Proposal
from opbench.errors import Location, UsageError, unknown
from opbench.kernels.folders import Catalog
from opbench.kernels.header_text import OPENING_LINE
from opbench.kernels.memory_header import NO_OPERATOR
from opbench.kernels.operator import Operator
from opbench.paths import next_command
from opbench.source.precision import PRODUCTS
from opbench.source.sources import tensor_core_operand_types


def propose(
    file: FileFacts,
    operators: Mapping[str, type[Operator]],
    operator: str = "",
    kernel: str = "",
    roots: Sequence[Path] = (),
) -> Proposal:
    """Propose the header of a file for one of some operators.

    `roots` are extra folders, which commands in messages name. Raises NoOperator if no operator fits, and
    UsageError if the file cannot be read.
    """
    path, kernels = file.path, file.kernels
    for declaration in file.own_declarations:
        if [token.text for token in declaration.tokens[:2]] == ["texture", "<"]:
            raise UsageError(
                "texture references are gone since CUDA 12; take a cudaTextureObject_t",
                Location(path, declaration.line),
                kind="texture-reference",
            )
    if not kernels:
        raise UsageError(f"{path}: defines no __global__ function that can be read; write its header by hand")
    chosen, others = _choose_kernel(file, kernel)
    if operator and operator not in operators:
        raise UsageError(unknown("operator", operator, operators, next_command("list operators", variants=roots)))
    launch = next((launch for launch in file.launches if launch.kernel == chosen), None)
    read = file.read(chosen, launch)
    for group in read.groups:
        if group.unreadable:
            raise NoOperator(
                f"{path}:{read.kernel.line}: structure '{group.parameter.name}' has a member that no header gives "
                f"({group.unreadable}): let the kernel take its fields one by one",
                subject=group.parameter.name,
            )
    ranked = rank_operators(read.facts, path.stem, {operator: operators[operator]} if operator else operators)
    match = ranked[0] if operator else _most_likely_operator(path, read, ranked, roots)
    proposal = Proposal(match.operator, chosen, evidence=["--operator says so"] if operator else match.evidence)
    write_header(proposal, file, read, match)
    hosts = [
        declaration for declaration in file.declarations if declaration.kind == "function" and not declaration.is_device
    ]
    if launch is None and any(chosen in host.uses - host.calls for host in hosts):
        text = f"host code hands '{chosen}' to a function that launches it, with a grid that cannot be read"
        proposal.contradict("launch", chosen, text)
    times = sum(
        declaration.is_kernel and declaration.kind == "function" and declaration.name == chosen
        for declaration in file.declarations
    )
    if times > 1:
        text = f"the file defines '{chosen}' {times} times, and the preprocessor takes one of them"
        proposal.contradict("launch", chosen, text)
    products = tensor_core_operand_types(file.sources).keys() & PRODUCTS.keys()
    if len(products) == 1:
        proposal.lines.insert(2, f'product = "{products.pop()}"')
    if others:
        proposal.notes.append(f"the file has other kernels, too: {', '.join(others)}; --kernel NAME takes one of them")
    return proposal


def adopt(
    path: Path,
    catalog: Catalog,
    operator: str = "",
    kernel: str = "",
    sizes: Mapping[str, int] | None = None,
) -> Proposal:
    """Propose the header of a file: with an operator if one fits, else a header to check only memory accesses.

    A requested `operator` is used even if its header contradicts the file; "none" requests a header without an
    operator. `sizes` are values of host variables for a header without one. Raises UsageError if the file
    cannot be read.
    """
    require_no_header(path)
    file = read_file(path, catalog.include)
    if operator == NO_OPERATOR or sizes:
        return propose_memory(file, sizes)
    operators = {name: catalog.operator(name) for name in catalog.operator_names()}
    try:
        proposal = propose(file, operators, operator, kernel, catalog.extra_roots)
        if operator or not proposal.contradictions:
            return proposal
        why = _contradicted(path, proposal)
    except NoOperator as error:
        if operator:
            raise
        why = error
    try:
        memory = propose_memory(file)
    except UsageError as error:
        raise UsageError(
            f"{why.fact}. Nor can its launches be read for a header without an operator: {error}", cause=error
        ) from None
    memory.notes.insert(0, why.fact)
    return memory


def header_of(path: Path, catalog: Catalog, operator: str = "") -> Proposal:
    """Add the proposed header of a file to a catalog; raise NoOperator if no operator fits.

    `operator` is the only one to try; empty means all.
    """
    require_no_header(path)
    names = [operator] if operator else catalog.operator_names()
    operators = {name: catalog.operator(name) for name in names}
    proposal = propose(read_file(path, catalog.include), operators, operator, roots=catalog.extra_roots)
    if proposal.contradictions:
        raise _contradicted(path, proposal)
    catalog.set_proposed_header(path, proposal.text)
    return proposal


def require_no_header(path: Path) -> None:
    """Raise UsageError if a file already has a header."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if OPENING_LINE in line:
            raise UsageError(
                f"has an opbench header already; check it with: {next_command('check', path)}",
                Location(path, number),
                kind="has-header",
            )


def _contradicted(path: Path, proposal: Proposal) -> NoOperator:
    operator, facts = proposal.operator, "; ".join(map(str, proposal.contradictions))
    return NoOperator(f"{path}: a header of {operator} would contradict the file: {facts}", (operator,))


PRINTED = frozenset(("input written", "output only read", "output read", "output size", "element type", "layout"))
"""What contradicts a header that is shown all the same: its operator is the one that the kernel's name says."""


class NoOperator(UsageError):
    """No operator fits a kernel.

    `nearest_operators` are the most similar operators, `fact` is the message without its commands.
    """

    kind = "no-operator"

    def __init__(self, fact: str, nearest_operators: Sequence[str] = (), commands: str = "", subject: str = "") -> None:
        super().__init__(f"{fact}{commands}", subject=subject)
        self.fact, self.nearest = fact, tuple(nearest_operators)


def _most_likely_operator(path: Path, read: LaunchedKernel, ranked: Sequence[Match], roots: Sequence[Path]) -> Match:
    """Return the operator with the most evidence; raise NoOperator without enough evidence or with a contradiction."""
    fitting = [candidate for candidate in ranked if not candidate.contradictions and candidate.score >= MIN_SCORE]
    if fitting:
        return fitting[0]
    named = [
        candidate
        for candidate in ranked
        if candidate.score >= MIN_SCORE and {c.kind for c in candidate.contradictions} <= PRINTED
    ]
    if named:
        return max(named, key=lambda candidate: candidate.score)
    near = nearest_operators(ranked, read.facts)
    named = sorted(
        (candidate for candidate in ranked if candidate.score >= MIN_SCORE), key=lambda candidate: -candidate.score
    )
    why = f": it is no {named[0].operator}, as {named[0].contradictions[0]}" if named else ""
    ways = (
        f"{next_command('adopt', path, variants=roots, operator=near[0])}; "
        f"a new one: {next_command('new operator', _snake_case(read.kernel.name))} --in mine"
    )
    raise NoOperator(
        f"{path}:{read.kernel.line}: no operator fits kernel '{read.kernel.name}'{why}. Nearest: {', '.join(near)}; "
        f"take one with: {ways}",
        near,
        f"; memory and races without one: {next_command('check', path, variants=roots)}",
        subject=read.kernel.name,
    )


def _snake_case(name: str) -> str:
    """Return a kernel's name in the style of operator names, such as "vector_add" for "vectorAdd"."""
    words = [word for word in words_of(name) if word not in ("kernel", "gpu", "cuda")]
    return "_".join(words) or "mine"


def _choose_kernel(file: FileFacts, wanted: str) -> tuple[str, list[str]]:
    """Return the kernel that needs a header, and the names of the file's other kernels."""
    if wanted and wanted not in file.kernels:
        raise UsageError(unknown("kernel", wanted, file.kernels, where=str(file.path)))
    launched = [launch.kernel for launch in file.launches if launch.kernel in file.kernels]
    chosen = wanted or next(iter(launched or file.kernels))
    return chosen, [name for name in file.kernels if name != chosen]
