"""Write starter files that run and are right without a change, for `opbench new`."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import click

from opbench.cli import CommandGroup
from opbench.cli.options import variants_option
from opbench.errors import EnvironmentFault, UsageError, unknown_name
from opbench.paths import next_command, write_file

VALID_NAME = re.compile(r"[a-z][a-z0-9_]*")

UNSET_ADDRESS = "ADDRESS-OF-OPBENCH@COMMIT"
"""A placeholder for the address from which CI installs opbench."""
folder_option = click.option(
    "--in",
    "folder",
    default="mine",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder of your variants, with one subfolder per operator.",
)


@click.group("new", cls=CommandGroup)
def new_command() -> None:
    """Write starter files for an operator, a variant or a CI workflow; never overwrite a file."""


@new_command.command("operator", short_help="Write an operator, a first variant and a suite.")
@click.argument("name")
@folder_option
def operator_command(name: str, folder: Path) -> None:
    """Write starter files for your own operator: its reference, a first variant and a suite."""
    from opbench.kernels.folders import Catalog

    _require_name(name, "operator")
    catalog = Catalog((folder,) if folder.is_dir() else ())
    if name in catalog.operator_names():
        raise UsageError(
            f"operator '{name}' exists already; add a variant to it: opbench new variant {name}/NAME", kind="exists"
        )
    replacements = {"NAME": name, "CLASS": "".join(part.capitalize() for part in name.split("_"))}
    operator_folder = folder / name
    texts = {
        operator_folder / "operator.py": _template("operator.txt", replacements),
        operator_folder / "naive.cu": _template("variant.txt", replacements),
        folder / f"{name}.toml": _template("suite.txt", replacements | {"DIR": shlex.quote(str(folder))}),
    }
    _write(texts)
    _print_next_command(next_command("check", name, variants=[folder]))


@new_command.command("variant", short_help="Write a variant: a copy of the simplest one of the operator.")
@click.argument("name", metavar="OPERATOR/NAME")
@folder_option
@variants_option
def variant_command(name: str, folder: Path, roots: tuple[Path, ...]) -> None:
    """Write a new variant of an operator: a copy of its simplest variant, for you to make faster."""
    from opbench.kernels.folders import Catalog

    operator, slash, variant_name = name.partition("/")
    if not slash:
        raise UsageError(
            f"'{name}' names no variant; write OPERATOR/NAME: opbench new variant {name}/mine",
            kind="not-a-variant",
            subject=name,
        )
    _require_name(variant_name, "variant")
    catalog = Catalog(tuple(dict.fromkeys((*roots, *((folder,) if folder.is_dir() else ())))))
    if operator not in catalog.operator_names():
        raise UsageError(unknown_name("operator", operator, catalog.operator_names(), "opbench list operators"))
    ladder = catalog.variants(operator)
    if variant_name in {variant.name for variant in ladder}:
        raise UsageError(f"variant '{name}' exists already; choose another name", kind="exists")
    first_variants = [v for v in ladder if not v.builds_on and v.path.suffix == ".cu" and v.path.stem == v.name]
    # Among the first variants of ladders, the most general one is copied.
    simplest = min(first_variants, key=lambda v: len(v.supports), default=None)
    if simplest is None:
        raise UsageError(
            f"every variant of {operator} builds on another one or shares its file, so opbench has no file to copy; "
            f"choose a file from: opbench list {operator}, and copy the file by hand",
            kind="nothing-to-copy",
            subject=operator,
        )
    source = simplest.path.read_text()
    title = re.compile(r'^(// title\s*= )".*"$', re.MULTILINE)
    if (count := len(title.findall(source))) != 1:
        raise UsageError(
            f'{simplest.path}: has {count} lines such as // title = "…", and opbench copies only a file with one; copy '
            "it by hand",
            kind="nothing-to-copy",
            subject=simplest.path,
            value=count,
            allowed=1,
        )
    header_lines = rf'\1"{variant_name}: what it does otherwise"' + f'\n// builds_on = "{simplest.name}"'
    new_source = title.sub(header_lines, source)
    header, header_end, body = new_source.partition("// ///\n//\n")
    note = "// Write here why it is faster than the variant it builds on, and what limits it. Of the latter:\n//\n"
    _write({folder / operator / f"{variant_name}.cu": header + header_end + note + body if header_end else new_source})
    _print_next_command(next_command("check", name, variants=[folder]))


@new_command.command("ci", short_help="Write a CI workflow that checks your kernels.")
@folder_option
@click.option(
    "--base",
    default="reports/base",
    show_default=True,
    metavar="DIR",
    help="CI compares with the base runs in this folder (one per suite).",
)
@click.option(
    "--source",
    default=UNSET_ADDRESS,
    metavar="ADDRESS@COMMIT",
    help="The git address and the commit or tag from which CI installs opbench [default: a placeholder to fill in].",
)
def ci_command(folder: Path, base: str, source: str) -> None:
    """Write a CI workflow for your kernels.

    It checks each pull request on a CPU, shows findings at their source lines, and compares times on a GPU runner.
    """
    replacements = {
        "DIR": shlex.quote(str(folder)),
        "BASE": shlex.quote(base),
        "UNSET": UNSET_ADDRESS,
        "SOURCE": source,
    }
    _write(
        {
            Path(".github/workflows/kernels.yml"): _template("workflow.txt", replacements),
            Path(".github/opbench-matcher.json"): _template("matcher.txt", replacements),
        }
    )
    if source == UNSET_ADDRESS:
        _print_next_command(
            "set OPBENCH_SOURCE in .github/workflows/kernels.yml to the git address of opbench and a commit of it"
        )
    for suite in sorted(folder.glob("*.toml")) or [folder / "SUITE.toml"]:
        run = next_command("run", suite, variants=[folder], out=f"{base}/{suite.stem}")
        _print_next_command(f"on the machine with the GPU: {run}")
    _print_next_command(f"git add .github {shlex.quote(base)}")


def _require_name(name: str, kind: str) -> None:
    """Raise UsageError unless a name is a valid identifier; `kind` is "operator" or "variant"."""
    if not VALID_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"'{name}' is not allowed as the name of {'an' if kind == 'operator' else 'a'} {kind}; use a-z, 0-9 and _",
            kind="not-allowed",
            subject=kind,
            value=name,
            allowed="a-z, 0-9 and _",
        )


def _template(file: str, replacements: Mapping[str, str]) -> str:
    """Return a template file of this package with its placeholders replaced."""
    text = resources.files("opbench.cli").joinpath("templates", file).read_text()
    for placeholder, value in replacements.items():
        text = re.sub(rf"\b{placeholder}(?=_|\b)", value, text)
    return text


def _write(texts: Mapping[Path, str]) -> None:
    """Write all of the files or none; raise UsageError if one exists."""
    existing_paths = [path for path in texts if path.exists()]
    if existing_paths:
        raise UsageError(
            f"{existing_paths[0]}: exists already, and opbench does not overwrite a file; "
            "choose another name or --in DIR",
            kind="exists",
            subject=existing_paths[0],
        )
    written: list[Path] = []
    try:
        for path, text in texts.items():
            write_file(path, text.encode(), "choose another folder: --in DIR", parents=True)
            written.append(path)
    except EnvironmentFault:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    for path in texts:
        click.echo(f"wrote {path}")


def _print_next_command(command: str) -> None:
    click.echo(f"next: {command}", err=True)
