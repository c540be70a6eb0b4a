"""Read the CUDA source in a Python file that calls PyTorch's `load_inline`; the Python file is not run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from opbench.errors import Location, UsageError

CALL_NAME, SOURCES_ARGUMENT = "load_inline", "cuda_sources"
SOURCES_POSITION = 2
"""The index of `cuda_sources` among the arguments of `load_inline`."""


def read_inline_source(path: Path) -> str:
    """Return the CUDA source that a Python file passes to load_inline.

    Each line has the number that it has in the Python file, if its text is one literal. Raises UsageError for a
    file without such a call, or with a source that is not a literal.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: this file cannot be read: {error}; name a readable Python file in UTF-8",
            kind="unreadable",
            subject=path,
            cause=error,
        ) from None
    except SyntaxError as error:
        raise UsageError(
            f"this line is not valid Python: {error.msg}; correct the line",
            Location(path, error.lineno or 1),
            kind="not-python",
            subject=path,
            value=error.msg,
        ) from None
    texts = _texts(tree)
    result: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called_name(node.func) == CALL_NAME:
            sources = next((k.value for k in node.keywords if k.arg == SOURCES_ARGUMENT), None)
            if sources is None and len(node.args) > SOURCES_POSITION:
                sources = node.args[SOURCES_POSITION]
            for element in sources.elts if isinstance(sources, (ast.List, ast.Tuple)) else [sources] if sources else []:
                text = _text(element, texts)
                if text is None:
                    raise UsageError(
                        f"opbench cannot read {SOURCES_ARGUMENT} here, because the program computes its text; "
                        "write the CUDA source as a string, or as the name of a string at the top of the file",
                        Location(path, element.lineno),
                        kind="computed-source",
                        subject=SOURCES_ARGUMENT,
                    )
                if text not in result:
                    result.append(text)
    if not result:
        raise UsageError(
            f"{path}: this file has no call of {CALL_NAME}() with {SOURCES_ARGUMENT}, so opbench sees no CUDA source; "
            "save the CUDA source as a .cu file and name that file",
            kind="no-source",
            subject=path,
        )
    lines: list[str] = []
    for line, source in sorted(result):
        lines += [""] * (line - 1 - len(lines))
        lines += source.split("\n")
    return "\n".join(lines).rstrip("\n") + "\n"


def _called_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _texts(tree: ast.Module) -> dict[str, tuple[int, str]]:
    """Return the strings assigned to variables at the top of a file, each with its first line."""
    result: dict[str, tuple[int, str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and (text := _text(statement.value, result)) is not None:
            result |= {target.id: text for target in statement.targets if isinstance(target, ast.Name)}
    return result


def _text(node: ast.expr, texts_by_name: Mapping[str, tuple[int, str]]) -> tuple[int, str] | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.lineno, node.value
    return texts_by_name.get(node.id) if isinstance(node, ast.Name) else None
