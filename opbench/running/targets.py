"""Find the cases that the user's targets name: an operator, a variant, a user's file, or a printed case name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opbench.adopting.adopting import NoOperator, propose_catalog_header
from opbench.adopting.memory_plan import MemoryPlans, plan_of, proposed_plan
from opbench.checking.huge import huge_problems, long_problems
from opbench.errors import UsageError, unknown_name
from opbench.kernels.case import Case, fitting_cases, select
from opbench.kernels.case_names import CASE_NAME
from opbench.kernels.folders import Catalog, folder_error
from opbench.kernels.header import has_header, has_memory_header
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant
from opbench.running.options import RunSetup
from opbench.running.shapes import accepted_shapes, examples_of, is_shipped, shapes_like, with_supported_dtype
from opbench.running.suite import read_suite
from opbench.source.device_part import missing_headers
from opbench.source.project import project_folders
from opbench.source.sources import Source, include_closure

MAX_MODULES = 48
"""If checks of a variant compile more modules than this, each config runs on only some of the problems."""
MAX_INTERPRETED_PAIRS = 12
"""The limit on pairs of config and problem if instructions of newer GPUs are interpreted lane by lane."""
MAX_LONG_AXIS_THREADS = (1 << 21) + (1 << 13)
"""Most threads of a problem with a long axis that is checked; a million threads take one second."""

MEMORY_ONLY = "its own launches run; races, bounds, uninitialised reads and barriers are checked, results are not"


def own_variants(path: Path, catalog: Catalog, operator_name: str = "") -> tuple[Variant, ...]:
    """Return the variants in a user's .cu file.

    `operator_name`, the file's folder or its header names the operator. A file without a header that is in no
    operator's folder gets a proposed header. Raises UsageError if there is no such file, and NoOperator if no operator
    fits.
    """
    require_file(path)
    folder = path.resolve().parent
    operator = folder.name if folder in [f.resolve() for fs in catalog.folders.values() for f in fs] else ""
    if is_file_without_header(path) and not operator and not catalog.has_proposed_header(path):
        propose_catalog_header(path, catalog, operator_name)
    if operator_name:
        catalog.set_operator(path, operator_name)
    return catalog.own_variants(path.resolve(), operator_name or operator)


def require_file(path: Path) -> None:
    """Raise UsageError unless `path` is a file; the message names a kernel of the folder, or a file of a near name."""
    if path.is_dir():
        raise folder_error(path)
    if not path.is_file():
        raise UsageError(
            f"{path}: this file does not exist; {_own_files_hint(path)}write a .cu file with an opbench header (see "
            "'Your own kernel' in README.md), or list the shipped variants: opbench list variants",
            kind="no-such-file",
            subject=path,
        )


def _own_files_hint(path: Path) -> str:
    """Return the .cu file of the same folder whose name is nearest to a missing file's, as the start of a remedy."""
    names = [file.name for file in path.parent.glob("*.cu")]
    nearest = unknown_name("file", path.name, names).nearest
    return f"did you mean {path.parent / nearest}? Otherwise " if nearest else ""


def is_file_without_header(target: str | Path) -> bool:
    """Return whether a target is a .cu file that has no header."""
    return Path(target).suffix == ".cu" and not has_header(Path(target))


def is_file(target: str | Path) -> bool:
    """Return whether a target is the path of a user's file, not the name of an operator, variant or case."""
    return Path(target).suffix in (".cu", ".py")


def read_bare_file(
    path: Path,
    catalog: Catalog,
    cases_of: Callable[[Path], list[Case]],
    memory: bool,
    sizes: Mapping[str, int],
    note: Callable[[str], None],
) -> tuple[list[Case] | None, MemoryPlans | None]:
    """Read a .cu file without an operator's header; return its cases, or a plan of its launches if no operator fits.

    Both are None for any other target. With `memory`, or `sizes` of its variables, a file runs without an
    operator.
    """
    if path.suffix != ".cu":
        return None, None
    bare, without_operator = is_file_without_header(path), has_memory_header(path)
    if not (bare or memory or sizes or without_operator):
        return None, None
    if not path.is_file():
        own_variants(path, catalog)
    if without_operator:
        note(f"{path}: {MEMORY_ONLY}")
        return [], plan_of(path, catalog.include, sizes)
    if bare and not memory and not sizes:
        try:
            proposal = propose_catalog_header(path, catalog)
            cases = cases_of(path)
        except UsageError as error:
            if error.kind == "no-kernel":
                raise
            note(f"memory mode: {error.explanation if isinstance(error, NoOperator) else error}")
        else:
            note(f"{path}: no header; operator {proposal.operator} ({'; '.join(proposal.evidence)})")
            for guess in proposal.guesses:
                note(f"guess: {guess}")
            return cases, None
    header, plans = proposed_plan(path, catalog.include, sizes)
    folders = (*catalog.include, *project_folders(path, catalog.include))
    _note_missing_headers(include_closure(path, folders), folders, note)
    note(f"{path}: {MEMORY_ONLY}")
    for text in (*header.notes, *(f"guess: {guess}" for guess in header.guesses)):
        note(text)
    return [], plans


def case_of(target: str | Path, pattern: str, catalog: Catalog, suite: str = "", backend: str = "cpu") -> Case:
    """Return one case: the one with the printed name, or the case of a file or variant that a pattern selects.

    A pattern is a printed name, a problem such as "(n=1000)", or a glob over the cases of the operator's
    examples, of which the largest is taken. Without a pattern, it is the first fitting problem of the `suite`
    for the backend, else the largest example, in the first config that fits.
    """
    if not is_file(target) and not re.fullmatch(r"(\w+)/([\w-]+)", str(target)):
        if pattern:
            raise UsageError(
                f"--case {pattern}: '{target}' already names one case, and --case selects among the cases of a "
                "FILE.cu; remove --case",
                kind="exclusive",
                subject="--case",
                value=pattern,
                allowed="FILE.cu",
            )
        return catalog.case(str(target))
    variants = _variants_of(target, catalog)
    if CASE_NAME.match(pattern):
        return catalog.case(pattern, variants)
    operator = catalog.operator(variants[0].operator)
    if suite and not pattern:
        suite_cases = read_suite(Path(suite), catalog, backend, only=operator.name).cases
        problems = dict.fromkeys(case.problem for case in suite_cases if case.problem.name == operator.name)
        stored_problems = ((v, with_supported_dtype(v, p)) for p in problems for v in variants)
        fitting = (Case(v, c, p) for v, p in stored_problems for c in v.configs if v.unmet_requirement(p, c) is None)
        if first_fitting := next(fitting, None):
            return first_fitting
    examples = dict.fromkeys(p for v in variants for p in examples_of(v, operator))
    problems = dict.fromkeys([operator.parse(pattern)]) if pattern.startswith("(") else examples
    cases = fitting_cases(variants, problems)
    if not cases:
        problem_of = {p: v for v in variants for p in shapes_like(v, list(examples), "cpu")[:1]}
        if pattern or not problem_of:
            named_sizes = [pattern] if pattern.startswith("(") else []
            refusal = no_problem_message("check", target, variants[0], catalog, named_sizes, RunSetup.seed)
            raise UsageError(f"{target}: {refusal}", kind="unsupported-problem", subject=target)
        cases = [case for p, v in problem_of.items() for case in fitting_cases([v], [p])]
    listing = catalog.command("check", target, list=True)
    matches = cases if pattern.startswith("(") else select(cases, [pattern] if pattern else [], listing)
    return max(matches, key=lambda case: (case.problem.bytes(), -matches.index(case)))


def cases_to_compare(targets: Sequence[str], pattern: str, catalog: Catalog) -> list[Case]:
    """Return one case of each target; all cases of an operator have the same problem, if one fits them all.

    Each case is chosen as by `case_of` from the suite quick.
    """
    cases = [case_of(target, pattern, catalog, "quick") for target in targets]
    for operator in dict.fromkeys(case.variant.operator for case in cases):
        indices = [index for index, case in enumerate(cases) if case.variant.operator == operator]
        for problem in dict.fromkeys(cases[place].problem for place in indices):
            if any(cases[place].variant.unmet_requirement(problem, cases[place].config) for place in indices):
                continue
            for place in indices:
                cases[place] = replace(cases[place], problem=problem)
            break
    return cases


def cases_to_check(
    catalog: Catalog,
    target: str | Path,
    random_shapes: int,
    seed: int,
    every: bool = True,
    problems: Sequence[str] = (),
    note: Callable[[str], None] = lambda text: None,
    huge: bool = False,
) -> list[Case]:
    """Return the cases to check: every config of a target's variants on supported examples and random shapes.

    A printed name is one case. `problems` such as "(n=1000)" replace examples and shapes. Unless `every` is
    true, the configs of a variant that would compile more than `MAX_MODULES` modules, because its macros depend on
    the problem, share the problems: see `_share_problems`. With `huge`, problems beyond 2**31 elements are
    included.
    """
    if CASE_NAME.match(str(target)):
        if problems:
            raise UsageError(
                f"--problem {problems[0]}: '{target}' already names one case with its problem; remove --problem, or "
                "name a FILE.cu",
                kind="exclusive",
                subject="--problem",
                value=problems[0],
                allowed="FILE.cu",
            )
        return [catalog.case(str(target))]
    variants = _variants_of(target, catalog)
    for variant in {v.path: v for v in variants if not is_shipped(v)}.values():
        _note_missing_headers(variant.sources, variant.include, note)
    cases = []
    for variant in variants:
        operator = catalog.operator(variant.operator)
        examples = list(dict.fromkeys(map(operator.parse, problems) if problems else examples_of(variant, operator)))
        _require_reference(variant.operator, examples, seed)
        drawn = [] if problems else operator.random_problems(seed, random_shapes)
        if drawn and not is_shipped(variant):
            drawn = list(accepted_shapes(variant, drawn, examples, seed).problems)
        shapes = [p for p in dict.fromkeys(drawn) if p not in examples]
        pairs = fitting_cases([variant], [*examples, *shapes])
        if not pairs:
            refusal = no_problem_message("check", target, variant, catalog, problems, seed)
            if len(variants) == 1:
                raise UsageError(refusal, kind="unsupported-problem", subject=variant.id)
            note(refusal)
            continue
        share_count, reason = (1, "") if every else _share_count(variant, pairs)
        selected_cases = _share_problems(pairs, shapes, share_count) if share_count > 1 else pairs
        if len(selected_cases) < len(pairs):
            note(
                f"{variant.id}: {len(selected_cases)} of {len(pairs)} pairs of config and problem are checked, "
                f"because {reason}; to check all pairs add --all"
            )
        cases += selected_cases
        if huge:
            cases += _huge(variant, examples)
    return cases


def _variants_of(target: str | Path, catalog: Catalog) -> Sequence[Variant]:
    """Return the variants of a file or of an operator, or the variant with a name such as "relu/vec4"."""
    if is_file(target):
        return own_variants(Path(target), catalog)
    operator, slash, variant = str(target).partition("/")
    return [catalog.variant(operator, variant)] if slash else catalog.variants(operator)


def _note_missing_headers(sources: Sequence[Source], include: Sequence[Path], note: Callable[[str], None]) -> None:
    for location, name in dict.fromkeys(missing_headers(sources, include)):
        note(
            f"{location}: header '{name}' was not found and is taken as empty: "
            "only kernels that use nothing of it compile"
        )


def no_problem_message(
    verb: str, target: str | Path, variant: Variant, catalog: Catalog, problems: Sequence[str], seed: int
) -> str:
    """Return the message that no problem fits a variant, with a command that names sizes which fit.

    `problems` are those that the user named, such as "(n=1000)".
    """
    if not variant.configs:
        return f"{variant.id}: no config meets the rules of where; change where or the values of tune in {variant.path}"

    def command(problem: Operator) -> str:
        return catalog.command(verb, target, problem=problem)

    operator = catalog.operator(variant.operator)
    examples = [operator.parse(problem) for problem in problems] or examples_of(variant, operator)
    shapes = accepted_shapes(variant, [], [*examples, *examples_of(variant, operator)], seed, 1)
    if problems:
        unmet_requirement = variant.unmet_requirement(examples[0], variant.configs[0])
        start = f"{variant.id} does not accept {examples[0]}: the variant {unmet_requirement}"
    else:
        start = f"{variant.id} accepts none of its operator's examples and no random shape was found"
    if shapes.problems:
        return f"{start}; sizes that it accepts: {command(shapes.problems[0])}"
    if (nearest := shapes.nearest) is None:
        return f"{start}; name sizes that it accepts: {command(examples[0])}"
    if not nearest.reason:
        return (
            f"{start} that the CPU emulator gets through in seconds; the smallest is {nearest.problem}: "
            f"{command(nearest.problem)}"
        )
    return (
        f"{start}; the nearest problem tried is {nearest.problem}: the variant {nearest.reason}; if that can be met, "
        f"name the sizes: {command(nearest.problem)}"
    )


def _huge(variant: Variant, examples: list[Operator]) -> list[Case]:
    """Return cases of the default config on problems with more elements than an `int` or a `short` can count."""
    config = variant.configs[0]

    def fits(problem: Operator) -> bool:
        return variant.unmet_requirement(problem, config) is None

    supported_examples = [problem for problem in examples if fits(problem)]
    cases = [Case(variant, config, problem) for problem in huge_problems(supported_examples, fits)]
    interpreted = variant.product or variant.compute_capability
    for sizes in long_problems(supported_examples) if not interpreted else ():
        supported = [Case(variant, config, problem) for problem in sizes if fits(problem)]
        cases += [case for case in supported if case.threads() <= MAX_LONG_AXIS_THREADS][:1]
    return list({case.name: case for case in cases}.values())


def _require_reference(name: str, examples: Sequence[Operator], seed: int) -> None:
    """Raise UsageError, before any case runs, if an operator has no example or its reference fails."""
    if not examples:
        raise UsageError(
            f"{name}: examples() of the operator returns no problem; return some small problems with odd sizes (as in "
            "variants/relu/operator.py)",
            kind="no-examples",
            subject=name,
        )
    by_size = sorted(examples, key=lambda problem: problem.flops() + problem.bytes())
    # The smallest examples have sizes of 1, which NumPy broadcasts to any shape; the largest take long.
    median_example = by_size[len(by_size) // 2]
    median_example.reference_outputs(median_example.make_inputs(seed))


def _share_count(variant: Variant, pairs: Sequence[Case]) -> tuple[int, str]:
    """Return the number of configs that share a variant's problems, and the reason for the sharing."""
    modules = len({case.request() for case in pairs}) if variant.define else 0
    if variant.compute_capability and len(pairs) > MAX_INTERPRETED_PAIRS:
        return -(-len(pairs) // MAX_INTERPRETED_PAIRS), "its instructions are interpreted on the CPU"
    return max(1, -(-modules // MAX_MODULES)), "each compiles a module of its own"


def _share_problems(pairs: Sequence[Case], shapes: Sequence[Operator], share_count: int) -> list[Case]:
    """Return each config on its part of the examples and on one random shape.

    Every problem and every config occurs.
    """
    cases: list[Case] = []
    for config_index, config in enumerate(pairs[0].variant.configs):
        cases_of_config = [case for case in pairs if case.config == config]
        examples = [case for case in cases_of_config if case.problem not in shapes]
        random = [case for case in cases_of_config if case.problem in shapes]
        cases += examples[config_index % share_count :: share_count] or examples[:1]
        cases += random[config_index % len(random) :][:1] if random else []
    chosen_names = {case.name for case in cases}
    covered_problems = {case.problem for case in cases}
    for case in pairs:  # A problem that has no config yet gets the first that fits.
        if case.problem not in covered_problems:
            covered_problems.add(case.problem)
            chosen_names.add(case.name)
    return [case for case in pairs if case.name in chosen_names]
