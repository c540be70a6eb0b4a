"""Generate the options of a command from the fields of a frozen dataclass; the command receives one instance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field
from pathlib import Path
from typing import get_origin, get_type_hints

import click

from opbench.cli import completion
from opbench.cli.options import Number, WholeNumber
from opbench.errors import UsageError
from opbench.options import Option, option_fields, type_of


def add_options(
    dataclass_type: type, *, without: Collection[str] = (), only: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of a dataclass to a command.

    The command receives them as `options`, an instance of `dataclass_type`. `without` are fields to skip; if `only` is
    given, only these fields are used. An option that the user does not give has the default of its field.
    """
    field_types = get_type_hints(dataclass_type)
    offered_fields = {
        name: field
        for name, field in option_fields(dataclass_type).items()
        if name not in without and (not only or name in only)
    }

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: object) -> None:
            field_values = {name: _field_value(values.pop(name), *offered_fields[name]) for name in offered_fields}
            function(options=dataclass_type(**{k: v for k, v in field_values.items() if v is not None}), **values)

        decorated: Callable[..., None] = command
        for name, (own_field, details) in reversed(offered_fields.items()):
            decorated = _click_option(name, field_types[name], own_field.default, details)(decorated)
        return decorated

    return decorate


def _field_value(value: object, own_field: Field[object], details: Option) -> object:
    """Convert an option's value to its field's value; None if the option was not given."""
    if isinstance(value, bool):
        return value != own_field.default
    return value * details.factor if isinstance(value, int) else value


def _click_option(
    name: str, field_type: object, default: object, details: Option
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the click decorator that adds one field as an option, or as an argument if it has no default."""
    option_names = details.flags or ("--" + name.replace("_", "-"),)
    if default is MISSING:
        return click.argument(name, metavar=details.metavar, shell_complete=_completion(details))
    if field_type is bool:
        return click.option(*option_names, name, is_flag=True, help=details.help)
    shown_default = default if _is_shown(default, details) else None
    if isinstance(shown_default, int) and details.factor != 1:
        shown_default //= details.factor
    return click.option(
        *option_names,
        name,
        type=_click_type(type_of(field_type), details),
        multiple=get_origin(field_type) is tuple,
        default=shown_default,
        show_default=shown_default is not None,
        callback=_parse_callback(details.parse) if details.parse else None,
        metavar=details.metavar,
        help=details.help,
        shell_complete=_completion(details),
    )


def _is_shown(default: object, details: Option) -> bool:
    """Return whether the help shows a default; a value that the option does not allow stands for another default."""
    if default is None or default in ("", ()) or details.parse:
        return False
    if isinstance(default, (int, float)):
        return (details.minimum is None or default >= details.minimum) and (
            details.greater_than is None or default > details.greater_than
        )
    return True


def _click_type(value_type: type, details: Option) -> click.ParamType[object] | type | None:
    """Return the click type that validates an option's value."""
    if details.choices:
        return click.Choice(details.choices)
    if value_type is Path:
        return click.Path(path_type=Path, file_okay=details.folder is not True, dir_okay=details.folder is not False)
    if details.parse:
        return None
    minimum, is_open = (details.minimum, False) if details.greater_than is None else (details.greater_than, True)
    if value_type is int:
        return WholeNumber(None if minimum is None else int(minimum), min_open=is_open)
    return Number(minimum, min_open=is_open) if value_type is float else value_type


def _parse_callback(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """Return a click callback that parses an option's text; a ValueError becomes a UsageError with the
    option's name.
    """

    def read(context: click.Context, parameter: click.Parameter, text: str | None) -> object:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise UsageError(f"{parameter.opts[0]} {error}", cause=error) from None

    return read


def _completion(details: Option) -> Callable[..., completion.Completions] | None:
    """Return the function of `opbench.cli.completion` that an option names; None if it names none."""
    result: Callable[..., completion.Completions] | None = getattr(completion, details.completer or "-", None)
    return result
