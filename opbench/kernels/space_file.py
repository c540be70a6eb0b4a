"""Read a file of tunables and rules that replaces those in a variant's header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opbench.errors import UsageError, unknown_name
from opbench.kernels import expression
from opbench.kernels.space import tunable_values
from opbench.kernels.variant import Variant
from opbench.records import read_toml


def with_search_space(variant: Variant, path: Path) -> Variant:
    """Return the variant with the tunables of a file instead of its header's, and with the file's rules added.

    Raises UsageError with the file's name for an invalid file.
    """
    table = read_toml(path)
    tune, added_rules = table.get("tune", {}), table.get("where", [])
    if unknown_keys := table.keys() - {"tune", "where"}:
        raise UsageError(unknown_name("key", min(unknown_keys), ("tune", "where"), place=str(path)))
    if not isinstance(tune, dict) or not isinstance(added_rules, list) or not (tune or added_rules):
        raise UsageError(
            f"{path}: the file needs a table tune, a list where, or both, as in a variant's header; for example: "
            "tune = { TILE = [16, 32] }",
            kind="missing-key",
            subject=path,
        )
    new_tune = dict(variant.tune)
    for name, value in tune.items():
        if name not in new_tune:
            raise UsageError(unknown_name("tunable", name, new_tune, f"of {variant.id}", place=str(path)))
        new_tune[name] = _values(path, name, value)
    _require_rules(path, added_rules)
    result = replace(variant, tune=new_tune, where=(*variant.where, *added_rules), searched=True)
    try:
        if not result.configs:
            raise UsageError(
                f"no combination of the tune values satisfies where = {list(result.where)}; change one of the "
                "conditions, or add values to tune",
                kind="no-config",
                subject="where",
                value=tuple(result.where),
            )
    except UsageError as error:
        raise UsageError(f"{path}: {error}", cause=error) from None
    return result


def _values(path: Path, name: str, value: object) -> tuple[int, ...]:
    try:
        return tunable_values(value)
    except UsageError as error:
        raise UsageError(f"{path}: tune.{name} {error}", cause=error) from None


def _require_rules(path: Path, rules: Sequence[object]) -> None:
    for rule in rules:
        if not isinstance(rule, str):
            raise UsageError(
                f'{path}: where: {rule!r} is not a valid expression; write a text such as "BM * BN <= 4096"',
                kind="not-an-expression",
                subject="where",
                value=rule,
            )
        try:
            expression.parse(rule)
        except UsageError as error:
            raise UsageError(f"{path}: where: {error}", cause=error) from None
