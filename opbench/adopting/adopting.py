"""Propose a header for a file: choose the kernel, find its operator, and read its launch from the host code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from opbench.adopting.matching import Match
from opbench.adopting.memory_proposal import propose_memory
from opbench.adopting.operator_proposal import write_header
from opbench.adopting.parsed_file import LaunchedKernel, ParsedFile, read_file, require_kernels
from opbench.adopting.proposal import Proposal
from opbench.adopting.ranking import FILE_NAME_SCORE, MIN_SCORE, nearest_operators, rank_operators, words_of
from opbench.errors import Location, Unreadable, UsageError, unknown_name
from opbench.kernels.folders import Catalog
from opbench.kernels.header_text import OPENING_LINE
from opbench.kernels.memory_header import NO_OPERATOR
from opbench.kernels.operator import Operator
from opbench.paths import next_command
from opbench.source.precision import PRODUCTS
from opbench.source.sources import tensor_core_operand_types
from opbench.source.tokens import texts_of


def propose(
    file: ParsedFile,
    operators: Mapping[str, type[Operator]],
    operator: str = "",
    kernel: str = "",
    roots: Sequence[Path] = (),
) -> Proposal:
    """Propose the header of a .cu file: choose its kernel, and match the kernel with one of `operators`.

    `operator` and `kernel` limit the choice to one name; empty means the most likely. `roots` are extra folders, which
    commands in messages name. Raises NoOperator if no operator fits, and UsageError if the file cannot be read.
    """
    path = file.path
    for declaration in file.own_declarations:
        if texts_of(declaration.tokens[:2]) == ["texture", "<"]:
            raise UsageError(
                "texture references do not exist since CUDA 12; give the kernel a parameter of type "
                "cudaTextureObject_t instead",
                Location(path, declaration.line),
                kind="texture-reference",
            )
    require_kernels(file)
    kernel_name, other_kernels = _choose_kernel(file, kernel)
    if operator and operator not in operators:
        raise UsageError(unknown_name("operator", operator, operators, next_command("list operators", variants=roots)))
    launch = next((launch for launch in file.launches if launch.kernel == kernel_name), None)
    launched_kernel = file.read_kernel(kernel_name, launch)
    for argument_group in launched_kernel.argument_groups:
        if argument_group.unreadable:
            raise NoOperator(
                f"{path}:{launched_kernel.kernel.line}: structure '{argument_group.parameter.name}' has a member that "
                f"a header cannot set ({argument_group.unreadable}); give the kernel one parameter for each field of "
                "the structure",
                subject=argument_group.parameter.name,
            )
    ranked = rank_operators(
        launched_kernel.summary, path.stem, {operator: operators[operator]} if operator else operators
    )
    match = ranked[0] if operator else _most_likely_operator(path, launched_kernel, ranked, roots)
    proposal = Proposal(
        match.operator, kernel_name, evidence=["chosen with --operator"] if operator else match.evidence
    )
    write_header(proposal, file, launched_kernel, match)
    host_functions = [
        declaration for declaration in file.declarations if declaration.kind == "function" and not declaration.is_device
    ]
    if launch is None and any(
        kernel_name in host_function.uses - host_function.calls for host_function in host_functions
    ):
        text = f"host code passes '{kernel_name}' to a function that launches it, and opbench cannot read its grid"
        proposal.contradict("launch", kernel_name, text)
    definition_count = sum(
        declaration.is_kernel and declaration.kind == "function" and declaration.name == kernel_name
        for declaration in file.declarations
    )
    if definition_count > 1:
        text = f"the file defines '{kernel_name}' {definition_count} times, and the preprocessor selects one definition"
        proposal.contradict("launch", kernel_name, text)
    products = tensor_core_operand_types(file.sources).keys() & PRODUCTS.keys()
    if len(products) == 1:
        proposal.lines.insert(2, f'product = "{products.pop()}"')
    if other_kernels:
        proposal.notes.append(f"the file has other kernels: {', '.join(other_kernels)}; choose one with: --kernel NAME")
    return proposal


def adopt(
    path: Path, catalog: Catalog, operator: str = "", kernel: str = "", sizes: Mapping[str, int] | None = None
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
        mismatch = _contradiction_error(path, proposal)
    except NoOperator as error:
        if operator:
            raise
        mismatch = error
    try:
        memory_proposal = propose_memory(file)
    except UsageError as error:
        raise UsageError(
            f"{mismatch.explanation}. A header without an operator is not possible either, because opbench cannot "
            f"read the launches: {error}",
            cause=error,
        ) from None
    memory_proposal.notes.insert(0, mismatch.explanation)
    return memory_proposal


def propose_catalog_header(path: Path, catalog: Catalog, operator: str = "") -> Proposal:
    """Propose a header for a file and set it as the file's header in a catalog; return the proposal.

    `operator` is the only operator to try; empty means all operators. Raises NoOperator if no operator fits.
    """
    require_no_header(path)
    names = [operator] if operator else catalog.operator_names()
    operators = {name: catalog.operator(name) for name in names}
    proposal = propose(read_file(path, catalog.include), operators, operator, roots=catalog.extra_roots)
    if proposal.contradictions:
        raise _contradiction_error(path, proposal)
    catalog.set_proposed_header(path, proposal.text)
    return proposal


def require_no_header(path: Path) -> None:
    """Raise UsageError if a file already has a header."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise Unreadable(path, error) from None
    for line_number, line in enumerate(lines, 1):
        if OPENING_LINE in line:
            raise UsageError(
                f"has an opbench header already; check it with: {next_command('check', path)}",
                Location(path, line_number),
                kind="has-header",
            )


def _contradiction_error(path: Path, proposal: Proposal) -> NoOperator:
    """Return an error that lists the contradictions of a proposal with its file."""
    operator, contradiction_texts = proposal.operator, "; ".join(map(str, proposal.contradictions))
    return NoOperator(
        f"{path}: a header of {operator} would contradict the file: {contradiction_texts}",
        (operator,),
        f"; write a header without an operator with: {next_command('adopt', path, operator=NO_OPERATOR, write=True)}",
    )


TOLERATED_CONTRADICTIONS = frozenset(
    ("input written", "output only read", "output read", "output size", "element type", "layout")
)
"""Kinds of contradictions with which an operator is still proposed; the proposal then lists them."""


class NoOperator(UsageError):
    """The error that no operator fits a kernel.

    `nearest` has the names of the most similar operators, `explanation` has the message without its commands.
    """

    kind = "no-operator"

    def __init__(
        self, explanation: str, nearest_operators: Sequence[str] = (), commands: str = "", subject: str = ""
    ) -> None:
        super().__init__(f"{explanation}{commands}", subject=subject)
        self.explanation, self.nearest = explanation, tuple(nearest_operators)


def _most_likely_operator(
    path: Path, launched_kernel: LaunchedKernel, ranked: Sequence[Match], roots: Sequence[Path]
) -> Match:
    """Return the match with the highest score among those without a contradiction.

    Otherwise, return the match with the highest score and only tolerated contradictions. Raises NoOperator if there is
    none.
    """
    fitting_matches = [
        candidate for candidate in ranked if not candidate.contradictions and candidate.score >= MIN_SCORE
    ]
    if fitting_matches:
        return fitting_matches[0]
    tolerable_matches = [
        candidate
        for candidate in ranked
        if candidate.score >= MIN_SCORE and {c.kind for c in candidate.contradictions} <= TOLERATED_CONTRADICTIONS
    ]
    if tolerable_matches:
        return max(tolerable_matches, key=lambda candidate: candidate.score)
    nearest_names = nearest_operators(ranked, launched_kernel.summary)
    refused_matches = sorted(
        (candidate for candidate in ranked if candidate.score >= MIN_SCORE), key=lambda candidate: -candidate.score
    )
    contradiction_text = (
        f"; {refused_matches[0].operator} does not fit, because {refused_matches[0].contradictions[0]}"
        if refused_matches
        else ""
    )
    is_named = next(match.score for match in ranked if match.operator == nearest_names[0]) >= FILE_NAME_SCORE
    kind, suggested_operator = ("", nearest_names[0]) if is_named else (" by its tensors", "NAME")
    commands = (
        f"{next_command('adopt', path, variants=roots, operator=suggested_operator)}; define a new operator with: "
        f"{next_command('new operator', _snake_case(launched_kernel.kernel.name))} --in mine"
    )
    raise NoOperator(
        f"{path}:{launched_kernel.kernel.line}: no operator fits kernel "
        f"'{launched_kernel.kernel.name}'{contradiction_text}. Nearest{kind}: {', '.join(nearest_names)}; use "
        f"{'the nearest' if is_named else 'an'} operator with: {commands}",
        nearest_names,
        f"; or check memory and races without an operator: {next_command('check', path, variants=roots)}",
        subject=launched_kernel.kernel.name,
    )


def _snake_case(name: str) -> str:
    """Return a kernel's name in the style of operator names, such as "vector_add" for "vectorAdd"."""
    words = [word for word in words_of(name) if word not in ("kernel", "gpu", "cuda")]
    return "_".join(words) or "mine"


def _choose_kernel(file: ParsedFile, requested_kernel: str) -> tuple[str, list[str]]:
    """Return the name of the requested, first launched or first kernel, and the names of the other kernels."""
    if requested_kernel and requested_kernel not in file.kernels:
        raise UsageError(unknown_name("kernel", requested_kernel, file.kernels, place=str(file.path)))
    launched_names = [launch.kernel for launch in file.launches if launch.kernel in file.kernels]
    kernel_name = requested_kernel or next(iter(launched_names or file.kernels))
    return kernel_name, [name for name in file.kernels if name != kernel_name]
