"""Generates the options of a command from the fields of a frozen dataclass; the command receives one instance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field
from pathlib import Path
from typing import get_origin, get_type_hints

import click

from opbench.cli import completion
from opbench.errors import UsageError
from opbench.options import Option, option_fields, type_of


def add_options(
    kind: type, *, without: Collection[str] = (), only: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a dataclass to a command, which receives them as `options`, an instance of `kind`.

    `without` are fields to skip; if `only` is given, only these fields are used. An option that is not given has the
    default of its field.
    """
    hints = get_type_hints(kind)
    offered = {
        name: field for name, field in option_fields(kind).items() if name not in without and (not only or name in only)
    }

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: object) -> None:
            field_values = {name: _in_field(values.pop(name), *offered[name]) for name in offered}
            function(options=kind(**{k: v for k, v in field_values.items() if v is not None}), **values)

        decorated: Callable[..., None] = command
        for name, (made_of, details) in reversed(offered.items()):
            decorated = _click_option(name, hints[name], made_of.default, details)(decorated)
        return decorated

    return decorate


def _in_field(value: object, made_of: Field[object], details: Option) -> object:
    """Convert an option's value to its field's value; None if the option was not given."""
    if isinstance(value, bool):
        return value != made_of.default
    return value * details.unit if isinstance(value, int) else value


def _click_option(
    name: str, hint: object, default: object, details: Option
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flags = details.flags or ("--" + name.replace("_", "-"),)
    if default is MISSING:
        return click.argument(name, metavar=details.metavar, shell_complete=_completion(details))
    if hint is bool:
        return click.option(*flags, name, is_flag=True, help=details.help)
    known = default if _is_shown(default, details) else None
    if isinstance(known, int) and details.unit != 1:
        known //= details.unit
    return click.option(
        *flags,
        name,
        type=_click_type(type_of(hint), details),
        multiple=get_origin(hint) is tuple,
        default=known,
        show_default=known is not None,
        callback=_reader(details.parse) if details.parse else None,
        metavar=details.metavar,
        help=details.help,
        shell_complete=_completion(details),
    )


def _is_shown(default: object, details: Option) -> bool:
    """Return whether the help shows a default: not one that is not a valid value, such as 0 where the least is 1."""
    if default is None or default in ("", ()) or details.parse:
        return False
    if isinstance(default, (int, float)):
        return (details.least is None or default >= details.least) and (
            details.above is None or default > details.above
        )
    return True


def _click_type(kind: type, details: Option) -> click.ParamType[object] | type | None:
    if details.choices:
        return click.Choice(details.choices)
    if kind is Path:
        return click.Path(path_type=Path, file_okay=details.folder is not True, dir_okay=details.folder is not False)
    if details.parse:
        return None
    bound, is_open = (details.least, False) if details.above is None else (details.above, True)
    if bound is None or kind is str:
        return kind
    return (
        click.IntRange(min=int(bound), min_open=is_open) if kind is int else click.FloatRange(bound, min_open=is_open)
    )


def _reader(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], object]:
    def read(context: click.Context, parameter: click.Parameter, text: str | None) -> object:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise UsageError(f"{parameter.opts[0]} {error}", cause=error) from None

    return read


def _completion(details: Option) -> Callable[..., completion.Completions] | None:
    result: Callable[..., completion.Completions] | None = getattr(completion, details.complete or "-", None)
    return result
