"""Suites: TOML files that list cases and settings."""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from opbench.checking.checking import MAX_TRACED_WORK
from opbench.errors import UsageError, unknown_name
from opbench.graph.problems import ALLOWED_PRECISIONS, network_problems, require_sizes
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.header import KeyTypes
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Config, Variant
from opbench.paths import next_command, path_from_here, shipped_folder, shipped_suites
from opbench.records import read_toml
from opbench.results.header import SkippedVariants
from opbench.running.shapes import accepts, examples_of, shapes_like, with_supported_dtype
from opbench.timing.clock import TIMING_MODES
from opbench.timing.sampling import TimingOptions

SUITE_KEYS: Mapping[str, KeyTypes] = {
    "title": str, "time_limit_s": (int, float), "traced_work": (int, float), "timing": dict, "run": list,
}  # fmt: skip
NETWORK_KEYS: Mapping[str, KeyTypes] = {
    "network": str, "sizes": dict, "precision": str, "layout": str, "variants": list, "configs": str, "cpu": dict,
    "training": bool,
}  # fmt: skip
RUN_KEYS: Mapping[str, KeyTypes] = {
    "operator": str,
    "variants": list,
    "problems": list,
    "sweep": dict,
    "configs": str,
    "tune": dict,
    "cpu": dict,
}
SIZE_KEYS = {key: RUN_KEYS[key] for key in ("problems", "sweep")}
TIMING_KEYS: Mapping[str, KeyTypes] = {
    f.name: (int, float) if f.type == "float" else {"int": int}.get(str(f.type), str) for f in fields(TimingOptions)
}


MAX_NAME_LENGTH = 60
"""Most characters of a suite's name, which is also the run's folder."""
MAX_PROBLEMS, MAX_CASES = 10_000, 20_000
"""Most problems of one [[run]] and most cases of one suite; more are probably a mistake."""


@dataclass(frozen=True)
class Suite:
    """The cases of a suite, and the settings to run them."""

    name: str
    title: str
    cases: tuple[Case, ...]
    timing: TimingOptions
    time_limit_s: float = 60.0
    traced_work: float = MAX_TRACED_WORK
    left_out: SkippedVariants = field(default_factory=dict)
    own_variant_ids: tuple[str, ...] = ()
    """Ids of the variants in files that the user named."""
    prepared_cases: frozenset[str] = frozenset()
    """Names of the cases whose setup launches are not part of their time, because a network runs them once."""


def read_suite(path: Path, catalog: Catalog, backend: str, only: str = "") -> Suite:
    """Read a suite file and return its cases for a backend; `only` selects the cases of one operator.

    Raises UsageError with the file's name for an unknown operator, variant, axis or key.
    """
    path = find_suite(path, catalog.operator_names())
    table = read_toml(path)
    try:
        _require_known(table, SUITE_KEYS, "key")
        expansion = _Expansion()
        for entry in table.get("run", []):
            if only and isinstance(entry, dict) and entry.get("operator", only) != only:
                continue
            expand = _expand_network if isinstance(entry, dict) and "network" in entry else _expand
            expand(entry, catalog, backend, expansion)
        if not expansion.cases and not only:
            raise UsageError(_no_case_message(expansion.left_out), kind="no-case", value=expansion.left_out)
        timing = _timing(table.get("timing", {}))
    except UsageError as error:
        raise UsageError(f"{path}: {error}", cause=error) from None
    limits = {name: float(table.get(name, getattr(Suite, name))) for name in ("time_limit_s", "traced_work")}
    for name, limit in limits.items():
        if not 0 < limit < float("inf"):
            raise UsageError(
                f"{path}: {name} = {limit:g} is not allowed; it must be a number > 0",
                kind="not-allowed",
                subject=name,
                value=limit,
                allowed=0,
            )
    cases = tuple(expansion.cases.values())
    return Suite(
        path.stem,
        table.get("title", path.stem),
        cases,
        timing,
        time_limit_s=limits["time_limit_s"],
        traced_work=limits["traced_work"],
        left_out=expansion.left_out,
    )


def find_suite(path: Path, operators: Sequence[str] = ()) -> Path:
    """Return the path of a suite: the file itself, or the shipped suite of that name, such as "quick".

    A plain name is first a shipped suite, whatever the working directory contains. `operators` are names to
    suggest in the error.
    """
    candidate = shipped_folder("suites") / f"{path.stem}.toml"
    if str(path) == path.stem and candidate.is_file():
        return candidate
    if path.is_file():
        return path
    if path.suffix in ("", ".toml") and candidate.is_file():
        return candidate
    suites = [p.stem for p in shipped_suites()]
    if path.is_dir():
        raise UsageError(
            f"{path}: this is a folder, not the file of a suite; name a .toml file, such as {path / 'own.toml'}, or a "
            "shipped suite: opbench list suites",
            kind="is-a-folder",
            subject=path,
        )
    nearest = difflib.get_close_matches(path.stem, [*operators, *suites], n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"shipped suites: {', '.join(sorted(suites))}."
    raise UsageError(
        f"{path}: no file, operator or suite has this name; {hint} "
        "To list all: opbench list operators, or: opbench list suites",
        kind="no-such-suite",
        subject=path,
        allowed=tuple(nearest) or tuple(sorted(suites)),
    )


class NoFittingProblem(UsageError):
    """The error that a user's own variant supports none of the problems."""

    kind = "no-case"

    def __init__(self, message: str, variant: Variant, left_out: SkippedVariants) -> None:
        super().__init__(message, subject=variant.path, value=left_out)
        self.variant = variant


def suite_for_variants(
    variants: Sequence[Variant], catalog: Catalog, backend: str, problems: Sequence[str] = ()
) -> Suite:
    """Return a suite that compares the user's own variants, in every config, with the operator's other variants.

    The problems are those of the quick suite that all the files support, so that the table shows their rank on
    the ladder; without such problems they are the operator's examples. `problems` replace both. Raises
    UsageError if a file supports none of them.
    """
    operators: dict[str, list[Variant]] = {}
    for variant in variants:
        operators.setdefault(variant.operator, []).append(variant)
    suites = [
        _suite_on_ladder(own_variants_of_operator, catalog, backend, problems)
        for own_variants_of_operator in operators.values()
    ]
    files = list(dict.fromkeys(variant.path for variant in variants))
    file_names = [file.name for file in files]
    ladders = " and ".join(f"the ladder of {operator}" for operator in operators)
    return replace(
        suites[0],
        name="-".join(file.stem for file in files)[:MAX_NAME_LENGTH],
        title=f"{', '.join(file_names[:-1]) + ' and ' if file_names[1:] else ''}{file_names[-1]} on {ladders}",
        cases=tuple(case for suite in suites for case in suite.cases),
        left_out={problem: reasons for suite in suites for problem, reasons in suite.left_out.items()},
        own_variant_ids=tuple(variant.id for variant in variants),
    )


def _suite_on_ladder(variants: Sequence[Variant], catalog: Catalog, backend: str, problems: Sequence[str]) -> Suite:
    """Return the cases of a user's variants and of the other variants of one operator, the user's first."""
    operator, names = variants[0].operator, {v.name for v in variants}
    quick_suite = read_suite(Path("quick"), catalog, backend, only=operator)
    shipped_folder = [c for c in quick_suite.cases if c.variant.operator == operator and c.variant.name not in names]
    variants_with_configs = [(variant, variant.configs) for variant in variants]
    named_problems = [catalog.operator(operator).parse(problem) for problem in problems]
    ladder_problems = list(dict.fromkeys(c.problem for c in shipped_folder))
    expansion = _Expansion()
    for problem in named_problems or dict.fromkeys(
        with_supported_dtype(v, p) for p in ladder_problems for v in variants
    ):
        expansion.add(problem, variants_with_configs)
    if not named_problems:
        expansion.add_fitting(variants_with_configs, ladder_problems, catalog.operator(operator), backend)
    for file in dict.fromkeys(variant.path for variant in variants):
        if not any(case.variant.path == file for case in expansion.cases.values()):
            unfit_variant = next(variant for variant in variants if variant.path == file)
            raise NoFittingProblem(f"{file}: {_no_case_message(expansion.left_out)}", unfit_variant, expansion.left_out)
    ladder_variants = {(c.variant.name, str(c.config)): c for c in shipped_folder}.values()
    other_problems = dict.fromkeys(c.problem for c in expansion.cases.values() if c.problem not in ladder_problems)
    ladder_cases = [replace(c, problem=problem) for problem in other_problems for c in ladder_variants]
    shipped_folder += [c for c in ladder_cases if c.unmet_requirement() is None]
    cases = []
    for problem, own_cases in itertools.groupby(expansion.cases.values(), lambda c: c.problem):
        cases += [*own_cases, *(c for c in shipped_folder if c.problem == problem)]
    return replace(quick_suite, cases=tuple(cases), left_out=expansion.left_out)


def suite_for_operator(operator: str, catalog: Catalog, backend: str) -> Suite:
    """Return the suite of one operator: its part of the quick suite, or else its examples.

    Raises UsageError if it has no variant, or none that supports its examples.
    """
    quick_suite = read_suite(Path("quick"), catalog, backend, only=operator)
    suite = replace(quick_suite, name=operator, title=f"{operator} alone")
    cases = tuple(c for c in quick_suite.cases if c.variant.operator == operator)
    if cases:
        return replace(
            suite, cases=cases, left_out={p: w for p, w in quick_suite.left_out.items() if p.startswith(f"{operator}(")}
        )
    expansion = _Expansion()
    variants = [(variant, variant.configs) for variant in catalog.variants(operator)]
    if not variants:
        first_variant = path_from_here(str(catalog.operator_file(operator).parent / "naive.cu"))
        raise UsageError(
            f"{operator}: this operator has no variant; write {first_variant} (docs/kernels.md), then: "
            f"{catalog.command('check', first_variant)}",
            kind="no-variant",
            subject=operator,
        )
    for problem in catalog.operator(operator).examples():
        expansion.add(problem, variants)
    if not expansion.cases:
        raise UsageError(
            f"{operator}: {_no_case_message(expansion.left_out)}",
            kind="no-case",
            subject=operator,
            value=expansion.left_out,
        )
    return replace(suite, cases=tuple(expansion.cases.values()), left_out=expansion.left_out)


def suite_for_case(case: Case, catalog: Catalog) -> Suite:
    """Return the suite of one case, timed like the quick suite.

    Raises UsageError if the variant does not accept the problem.
    """
    if (reason := case.unmet_requirement()) is not None:
        raise UsageError(
            f"{case.name}: the variant does not accept this problem: the variant {reason}; choose other sizes or "
            f"another variant: {catalog.command('list cases', case.problem.name)}",
            kind="unsupported-problem",
            subject=case.name,
            value=reason.subject,
        )
    quick_suite = read_suite(Path("quick"), catalog, "cpu", only=case.variant.operator)
    return replace(
        quick_suite, name=f"{case.variant.operator}-{case.variant.name}", title=case.name, cases=(case,), left_out={}
    )


@dataclass
class _Expansion:
    """Cases by name in order of appearance, and the variants that have no case for a problem."""

    cases: dict[str, Case] = field(default_factory=dict)
    left_out: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, problem: Operator, variants_with_configs: Iterable[tuple[Variant, Sequence[Config]]]) -> None:
        """Add each variant in all configs that support a problem; record variants without such a config."""
        for variant, configs in variants_with_configs:
            fitting = [c for c in configs if variant.unmet_requirement(problem, c) is None]
            self.cases |= {case.name: case for case in (Case(variant, config, problem) for config in fitting)}
            if configs and not fitting:
                reason = str(variant.unmet_requirement(problem, configs[0]))
                names = self.left_out.setdefault(f"{problem.name}{problem}", {}).setdefault(reason, [])
                names += [variant.name] if variant.name not in names else []
            if len(self.cases) > MAX_CASES:
                raise UsageError(
                    f"the suite expands to more than {MAX_CASES} cases, for example {problem.name}{problem}; "
                    'name fewer problems or variants, write configs = "default", or split the suite into files',
                    kind="too-many-cases",
                    allowed=MAX_CASES,
                )

    def add_fitting(
        self,
        variants_with_configs: Sequence[tuple[Variant, Sequence[Config]]],
        listed_problems: Sequence[Operator],
        operator: type[Operator],
        backend: str,
    ) -> None:
        """Find problems for variants that have no case.

        Shapes generated from the listed problems come first, then the examples, then shapes generated from the
        examples.
        """
        for variant, configs in variants_with_configs:
            if any(case.variant == variant for case in self.cases.values()):
                continue
            examples = examples_of(variant, operator)
            fitting = [p for p in examples if accepts(variant, p)]
            problems = shapes_like(variant, listed_problems, backend) if listed_problems else []
            for problem in problems[:1] or fitting or shapes_like(variant, examples, backend)[:1] or examples:
                self.add(problem, [(variant, configs)])


def _no_case_message(left_out: SkippedVariants) -> str:
    """Return the message for a suite without a case: the first reason why a variant has none."""
    if not left_out:
        return "the suite has no case; add a [[run]] table with operator and problems"
    problem, reasons = next(iter(left_out.items()))
    reason, names = next(iter(reasons.items()))
    listing = next_command("list variants", problem.partition("(")[0])
    return (
        f"no variant accepts any of the problems: for {problem}, {names[0]} {reason}; choose other problems; to see "
        f"the rules of each variant: {listing}"
    )


def _require_known(table: object, allowed_keys: Mapping[str, KeyTypes], label: str) -> None:
    """Raise UsageError for an unknown key, or for a value of the wrong type."""
    if not isinstance(table, dict):
        raise UsageError(
            f"{table!r} is not allowed here, because a table is needed; write a table with keys from "
            f"{', '.join(allowed_keys)}",
            kind="not-allowed",
            value=table,
            allowed=tuple(allowed_keys),
        )
    for key, value in table.items():
        if key not in allowed_keys:
            raise UsageError(unknown_name(label, key, allowed_keys))
        if not isinstance(value, allowed_keys[key]) or isinstance(value, bool) != (allowed_keys[key] is bool):
            kind_names: dict[KeyTypes, str] = {
                list: "list", dict: "table", str: "string", int: "whole number", bool: "true or false",
            }  # fmt: skip
            allowed = kind_names.get(allowed_keys[key], "number")
            raise UsageError(
                f"{key} = {value!r} is not allowed; it must be {'' if allowed_keys[key] is bool else 'a '}{allowed}",
                kind="not-allowed",
                subject=key,
                value=value,
                allowed=allowed,
            )


def _require_each(values: Sequence[object], element_type: type, label: str) -> None:
    for value in values:
        if not isinstance(value, element_type):
            raise UsageError(
                f"{label}: {value!r} is not allowed; each element of the list must be a "
                f"{'table' if element_type is dict else 'string'}",
                kind="not-allowed",
                subject=label,
                value=value,
                allowed="table" if element_type is dict else "string",
            )


def _timing(table: Mapping[str, Any]) -> TimingOptions:
    _require_known(table, TIMING_KEYS, "timing key")
    for key, value in table.items():
        if not isinstance(value, str) and not 0 <= value < float("inf"):
            raise UsageError(
                f"timing.{key} = {value!r} is not allowed; it must be a finite number >= 0",
                kind="not-allowed",
                subject=f"timing.{key}",
                value=value,
                allowed=0,
            )
    if (mode := table.get("mode", "cold")) not in TIMING_MODES:
        raise UsageError(
            f'timing.mode = "{mode}" is not allowed; choose one of {", ".join(TIMING_MODES)}',
            kind="not-allowed",
            subject="timing.mode",
            value=mode,
            allowed=tuple(TIMING_MODES),
        )
    return TimingOptions(**table)


def _expand(entry: Mapping[str, Any], catalog: Catalog, backend: str, expansion: _Expansion) -> None:
    """Add the cases of one [[run]] table; settings for the other backend are validated, too."""
    _require_known(entry, RUN_KEYS, "key of [[run]]")
    if "operator" not in entry:
        raise UsageError(
            'a [[run]] table needs operator = "name" (opbench list operators), or network = "name" (opbench net list)',
            kind="missing-key",
            subject="operator",
        )
    operator = catalog.operator(entry["operator"])
    listing = catalog.command("list variants", entry["operator"])
    ladder = catalog.variants(entry["operator"])
    variants = _choose_variants(ladder, entry.get("variants", ["*"]), entry["operator"], listing)
    _require_tunable(entry.get("tune", {}), variants)
    _require_known(entry.get("cpu", {}), SIZE_KEYS, "key of [run.cpu]")
    problems = {"cuda": _problems(entry, operator)}
    problems["cpu"] = _problems(entry["cpu"], operator) if "cpu" in entry else problems["cuda"]
    if not problems[backend]:
        axes = [axis.name for axis in fields(operator) if axis.default is MISSING]
        raise UsageError(
            f"the [[run]] table of operator '{operator.name}' has no problem; add problems = [{{ … }}] with a value "
            f"for each axis ({', '.join(axes)}), or a table [run.sweep] with a list of values for each axis",
            kind="no-problem",
            subject=operator.name,
        )
    with_configs = [(variant, _choose_configs(variant, entry)) for variant in variants]
    for problem in problems[backend]:
        expansion.add(problem, with_configs)


def _expand_network(entry: Mapping[str, Any], catalog: Catalog, backend: str, expansion: _Expansion) -> None:
    """Add a network's distinct problems, each with every variant that fits it in the allowed precision.

    The problems are those after all graph passes.
    """
    _require_known(entry, NETWORK_KEYS, "key of [[run]] with a network")
    _require_known(entry.get("cpu", {}), {key: NETWORK_KEYS[key] for key in ("sizes", "configs")}, "key of [run.cpu]")
    settings = {**entry, **(entry.get("cpu", {}) if backend == "cpu" else {})}
    precision, patterns = settings.get("precision", "f32"), settings.get("variants", ["*"])
    _require_each(patterns, str, "variants")
    for table in (entry, entry.get("cpu", {})):
        require_sizes(settings["network"], table.get("sizes", {}))
    problems = network_problems(
        settings["network"],
        settings.get("sizes", {}),
        precision,
        settings.get("layout", "nchw"),
        settings.get("training", False),
    )
    ladders = {operator: catalog.variants(operator) for operator in dict.fromkeys(p.name for p in problems)}
    all_variants = [variant for ladder in ladders.values() for variant in ladder]
    if unmatched := next(
        (p for p in patterns if not any(_matches_pattern(variant, p) for variant in all_variants)), None
    ):
        variant_names = {variant.id if "/" in unmatched else variant.name for variant in all_variants}
        raise UsageError(unknown_name("variant", unmatched, variant_names, place=str(settings["network"])))
    for problem in problems:
        variants = [v for v in ladders[problem.name] if any(_matches_pattern(v, p) for p in patterns)]
        precise_enough = [v for v in variants if v.precision in ALLOWED_PRECISIONS[precision]]
        expansion.add(
            problem, [(v, _choose_configs(v, {"configs": settings.get("configs", "all")})) for v in precise_enough]
        )


def _matches_pattern(variant: Variant, pattern: str) -> bool:
    """Return whether a glob matches the variant's name or, if the glob contains a slash, "operator/variant"."""
    return fnmatch.fnmatchcase(variant.id if "/" in pattern else variant.name, pattern)


def _problems(entry: Mapping[str, Any], operator: type[Operator]) -> list[Operator]:
    """Return the listed problems, then every combination of the sweep's axes; empty without either."""
    _require_each(entry.get("problems", []), dict, "problems")
    problems = [operator.from_axes(axes) for axes in entry.get("problems", [])]
    sweep = {axis: v if isinstance(v, list) else [v] for axis, v in entry.get("sweep", {}).items()}
    if not sweep:
        return problems
    if (count := math.prod(len(values) for values in sweep.values())) > MAX_PROBLEMS:
        product = " × ".join(f"{len(values)} of {axis}" for axis, values in sweep.items())
        raise UsageError(
            f"the table [run.sweep] gives {count} problems ({product}); at most {MAX_PROBLEMS} are allowed; remove "
            "some values",
            kind="too-many-problems",
            subject="sweep",
            value=count,
            allowed=MAX_PROBLEMS,
        )
    return problems + [
        operator.from_axes(dict(zip(sweep, values, strict=True))) for values in itertools.product(*sweep.values())
    ]


def _choose_variants(
    variants: Sequence[Variant], patterns: Sequence[str], operator: str, listing: str
) -> list[Variant]:
    _require_each(patterns, str, "variants")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(v.name, pattern) for v in variants):
            names = [v.name for v in variants]
            raise UsageError(unknown_name("variant", pattern, names, listing, place=operator))
    return [v for v in variants if any(fnmatch.fnmatchcase(v.name, p) for p in patterns)]


def _require_tunable(tune: Mapping[str, object], variants: Sequence[Variant]) -> None:
    """Raise UsageError for a tunable or a value that no variant has."""
    allowed_values: dict[str, set[int]] = {}
    for config in (c for v in variants for c in v.configs):
        for key, value in config.items():
            allowed_values.setdefault(key, set()).add(value)
    _require_known(dict.fromkeys(tune, None), dict.fromkeys(allowed_values, object), "tunable")
    for key, values in tune.items():
        for choice in values if isinstance(values, list) else [values]:
            if not isinstance(choice, int) or choice not in allowed_values[key]:
                allowed_list = ", ".join(map(str, sorted(allowed_values[key])))
                raise UsageError(
                    f"tune.{key} = {choice!r} is not allowed; choose from {allowed_list}",
                    kind="not-allowed",
                    subject=f"tune.{key}",
                    value=choice,
                    allowed=tuple(sorted(allowed_values[key])),
                )


def _choose_configs(variant: Variant, entry: Mapping[str, Any]) -> list[Config]:
    """Return the configs that an entry selects: all, those that its `tune` allows, or only the default.

    A tunable that the variant lacks is ignored.
    """
    selection = entry.get("configs", "all")
    if selection not in ("all", "default"):
        raise UsageError(
            f'configs = "{selection}" is not allowed; write "all", or "default" for the first config of each variant',
            kind="not-allowed",
            subject="configs",
            value=selection,
            allowed=("all", "default"),
        )
    if selection == "default":
        return variant.configs[:1]
    allowed_values = {key: v if isinstance(v, list) else [v] for key, v in entry.get("tune", {}).items()}
    configs = [
        c for c in variant.configs if all(c[key] in values for key, values in allowed_values.items() if key in c)
    ]
    return configs or variant.configs[:1]
