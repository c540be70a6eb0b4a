"""The measure of repetition in kernels finds copies, whatever their spaces and comments, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizes import WINDOW, KernelText, Stretch, repeated_groups, repeated_share


def texts(folder: Path, *contents: str) -> list[KernelText]:
    """Write one kernel file per content and read it."""
    paths = [folder / f"{number}.cu" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    return [KernelText(path) for path in paths]


def statements(name: str, count: int) -> str:
    """Return lines of four tokens, all different."""
    return "".join(f"{name}{number} = {number};\n" for number in range(count))


def test_a_copy_counts_in_both_files(tmp_path: Path) -> None:
    copy = statements("x", WINDOW // 4 + 1)
    first, second = texts(tmp_path, copy + statements("a", 20), "// a comment\n\n" + copy.replace(" ", "  "))
    count = WINDOW // 4 + 1
    assert repeated_groups([first, second]) == [[Stretch(first.path, 1, count), Stretch(second.path, 3, count + 2)]]
    assert repeated_share([first, second]) == pytest.approx(2 * count / (2 * count + 22))


def test_a_copy_shorter_than_the_window_does_not_count(tmp_path: Path) -> None:
    copy = statements("x", WINDOW // 4)
    found = texts(tmp_path, copy + statements("a", 20), copy + statements("b", 20))
    assert repeated_groups(found) == []
    assert repeated_share(found) == 0
