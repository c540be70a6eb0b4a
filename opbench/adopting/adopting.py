"""The header that a file would need: which kernel is meant, what it computes, and what a launch says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from opbench.adopting.host_launches import HostLaunch, global_definitions, launches_of
from opbench.adopting.host_program import program_of
from opbench.adopting.host_structs import structs_of
from opbench.adopting.host_textures import textures_of
from opbench.adopting.kernel_facts import KernelFacts
from opbench.adopting.matching import ENOUGH, Contradiction, Match, nearest, rank, words_of
from opbench.adopting.memory_proposal import propose_memory
from opbench.adopting.proposal import Proposal, read_kernel, write_header
from opbench.errors import UsageError, unknown
from opbench.kernels.folders import Catalog
from opbench.kernels.header_text import OPENING_LINE
from opbench.kernels.memory_header import NO_OPERATOR
from opbench.kernels.operator import Operator
from opbench.paths import next_command
from opbench.source.precision import PRODUCTS
from opbench.source.project import project_folders
from opbench.source.scan import Declaration, declarations
from opbench.source.sources import closure, matrix_classes


def propose(
    path: Path,
    operators: Mapping[str, type[Operator]],
    operator: str = "",
    kernel: str = "",
    roots: Sequence[Path] = (),
) -> Proposal:
    """Propose the header of a file; `roots` are extra folders, which commands in messages name.

    Raises NoOperator where no operator fits, UsageError where nothing can be read.
    """
    require_no_header(path)
    try:
        sources = closure(path, project_folders(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    everything = [one for source in sources for one in declarations(source.text)]
    for one in declarations(sources[0].text):
        if [token.text for token in one.tokens[:2]] == ["texture", "<"]:
            raise UsageError(
                f"{path}:{one.line}: texture references are gone since CUDA 12; take a cudaTextureObject_t"
            )
    kernels = {one.name: one for one in everything if one.is_kernel}
    if not kernels:
        raise UsageError(f"{path}: defines no __global__ function that can be read; write its header by hand")
    launches = launches_of(everything, sources[0].text)
    chosen, others = _chosen(path, kernels, launches, kernel)
    if operator and operator not in operators:
        raise UsageError(unknown("operator", operator, operators, next_command("list operators", variants=roots)))
    launch = next((one for one in launches if one.kernel == chosen), None)
    functions = {one.name: one for one in everything if one.kind == "function" and one.is_device}
    structs = structs_of(everything)
    read = read_kernel(kernels[chosen], launch, structs, functions)
    for group in read.groups:
        if group.unreadable:
            raise NoOperator(
                f"{path}:{kernels[chosen].line}: structure '{group.parameter.name}' has a member that no header gives "
                f"({group.unreadable}): let the kernel take its fields one by one"
            )
    ranked = rank(read.facts, path.stem, {operator: operators[operator]} if operator else operators)
    found = ranked[0] if operator else _likeliest(path, kernels[chosen], ranked, read.facts, roots)
    proposal = Proposal(found.operator, chosen, evidence=["--operator says so"] if operator else found.evidence)
    program = program_of(everything, sources[0].text)
    write_header(proposal, read, found, program, textures_of(everything), structs, global_definitions(everything))
    hosts = [one for one in everything if one.kind == "function" and not one.is_device]
    if launch is None and any(chosen in one.uses - one.calls for one in hosts):
        text = f"host code hands '{chosen}' to a function that launches it, with a grid that cannot be read"
        proposal.contradictions.append(Contradiction("launch", chosen, text))
    if (times := sum(one.is_kernel and one.kind == "function" and one.name == chosen for one in everything)) > 1:
        text = f"the file defines '{chosen}' {times} times, and the preprocessor takes one of them"
        proposal.contradictions.append(Contradiction("launch", chosen, text))
    products = matrix_classes(sources).keys() & PRODUCTS.keys()
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
    """Propose the header of a file: of an operator where one fits, else one by which memory alone is checked.

    An `operator` that is asked for is taken although its header contradicts the file; "none" asks for no operator.
    `sizes` are values of host variables for a header without one. Raises UsageError where nothing can be read.
    """
    require_no_header(path)
    if operator == NO_OPERATOR or sizes:
        return propose_memory(path, catalog.include, sizes)
    operators = {name: catalog.operator(name) for name in catalog.operator_names()}
    try:
        found = propose(path, operators, operator, kernel, catalog.extra_roots)
        if operator or not found.contradictions:
            return found
        why = _contradicted(path, found)
    except NoOperator as error:
        if operator:
            raise
        why = error
    try:
        memory = propose_memory(path, catalog.include)
    except UsageError as error:
        raise UsageError(
            f"{why.fact}. Nor can its launches be read for a header without an operator: {error}"
        ) from None
    memory.notes.insert(0, why.fact)
    return memory


def header_of(path: Path, catalog: Catalog) -> Proposal:
    """Let a catalog take the header that is proposed for a file without one; raises NoOperator where none fits."""
    found = propose(
        path, {name: catalog.operator(name) for name in catalog.operator_names()}, roots=catalog.extra_roots
    )
    if found.contradictions:
        raise _contradicted(path, found)
    catalog.set_proposed_header(path, found.text)
    return found


def require_no_header(path: Path) -> None:
    """Refuse a file that has a header already."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if OPENING_LINE in line:
            raise UsageError(
                f"{path}:{number}: has an opbench header already; check it with: {next_command('check', path)}"
            )


def _contradicted(path: Path, found: Proposal) -> NoOperator:
    listed = "; ".join(map(str, found.contradictions))
    return NoOperator(f"{path}: a header of {found.operator} would contradict the file: {listed}", (found.operator,))


PRINTED = frozenset(("input written", "output only read", "output read", "output size", "element type", "layout"))
"""What contradicts a header that is shown all the same: its operator is the one that the kernel's name says."""


class NoOperator(UsageError):
    """No operator fits a kernel; `nearest` are those that come nearest, `fact` is the message without its commands."""

    def __init__(self, fact: str, nearest: Sequence[str] = (), commands: str = "") -> None:
        super().__init__(f"{fact}{commands}")
        self.fact, self.nearest = fact, tuple(nearest)


def _likeliest(
    path: Path, kernel: Declaration, ranked: Sequence[Match], facts: KernelFacts, roots: Sequence[Path]
) -> Match:
    """The operator that most speaks for; raises NoOperator where too little does, or where the file contradicts it."""
    fitting = [one for one in ranked if not one.contradictions and one.score >= ENOUGH]
    if fitting:
        return fitting[0]
    named = [one for one in ranked if one.score >= ENOUGH and {c.kind for c in one.contradictions} <= PRINTED]
    if named:
        return max(named, key=lambda one: one.score)
    near = nearest(ranked, facts)
    named = sorted((one for one in ranked if one.score >= ENOUGH), key=lambda one: -one.score)
    why = f": it is no {named[0].operator}, as {named[0].contradictions[0]}" if named else ""
    ways = (
        f"{next_command('adopt', path, variants=roots, operator=near[0])}; "
        f"a new one: {next_command('new operator', _snake(kernel.name))} --in mine"
    )
    raise NoOperator(
        f"{path}:{kernel.line}: no operator fits kernel '{kernel.name}'{why}. Nearest: {', '.join(near)}; "
        f"take one with: {ways}",
        near,
        f"; memory and races without one: {next_command('check', path, variants=roots)}",
    )


def _snake(name: str) -> str:
    """A kernel's name as a folder of operators would have it."""
    words = [word for word in words_of(name) if word not in ("kernel", "gpu", "cuda")]
    return "_".join(words) or "mine"


def _chosen(
    path: Path, kernels: Mapping[str, Declaration], launches: Sequence[HostLaunch], wanted: str
) -> tuple[str, list[str]]:
    """The kernel that is meant, and the others."""
    if wanted and wanted not in kernels:
        raise UsageError(unknown("kernel", wanted, kernels, where=str(path)))
    launched = [name for name in dict.fromkeys(one.kernel for one in launches) if name in kernels]
    chosen = wanted or next(iter(launched or kernels))
    return chosen, [name for name in kernels if name != chosen]
