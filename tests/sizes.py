"""Print how large the project is: lines per package, longest files, headers, repeated names, untyped values, evidence.

python tests/sizes.py               one line per package and total
python tests/sizes.py --repeats 20  the 20 largest groups of kernel lines that repeat
"""

from __future__ import annotations

import argparse
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opbench.source.tokens import tokens

ROOT = Path(__file__).parent.parent
CODE = {".py", ".hpp", ".cpp", ".cu", ".cuh"}
LONGEST = 10
WINDOW = 50
"""So many tokens in a row that stand in two places count as a repetition; comments and space are no tokens."""


def sources(folder: Path) -> list[Path]:
    """Return the source files below a folder."""
    return [path for path in folder.rglob("*") if path.suffix in CODE and "shipped" not in path.parts]


def kernel_files() -> list[Path]:
    """Return the variants and kernel headers in CUDA C++."""
    return sorted(path for path in sources(ROOT / "variants") if path.suffix in {".cu", ".cuh"})


def lines(paths: list[Path]) -> int:
    """Count the lines of files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


@dataclass(frozen=True)
class Stretch:
    """Consecutive lines of a file, counted from 1."""

    path: Path
    first: int
    last: int


class KernelText:
    """The tokens of a kernel file, each with its line."""

    def __init__(self, path: Path) -> None:
        """Read the tokens of `path`."""
        text = path.read_text()
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        found = list(tokens(text))
        self.path = path
        self.words = [token.text for token in found]
        self.lines = [bisect_right(starts, token.start) for token in found]

    @cached_property
    def windows(self) -> list[tuple[str, ...]]:
        """Return each run of WINDOW tokens, in order."""
        return [tuple(self.words[at : at + WINDOW]) for at in range(len(self.words) - WINDOW + 1)]

    def stretch(self, first: int, last: int) -> Stretch:
        """Return the lines from the window `first` to the window `last`."""
        return Stretch(self.path, self.lines[first], self.lines[last + WINDOW - 1])


def repeated_windows(texts: list[KernelText]) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Return the windows that stand in several places, each with its places: a file's number and the window's."""
    places = defaultdict(list)
    for number, text in enumerate(texts):
        for at, window in enumerate(text.windows):
            places[window].append((number, at))
    return {window: where for window, where in places.items() if len(where) > 1}


def repeated_lines(texts: list[KernelText]) -> dict[Path, int]:
    """Return by file how many lines, comments included, lie in a window that repeats."""
    repeated = repeated_windows(texts)
    counts = {}
    for text in texts:
        inside: set[int] = set()
        for at, window in enumerate(text.windows):
            if window in repeated:
                stretch = text.stretch(at, at)
                inside.update(range(stretch.first, stretch.last + 1))
        counts[text.path] = len(inside)
    return counts


def repeated_share(texts: list[KernelText]) -> float:
    """Return the share of all lines, comments included, that lie in a window that repeats."""
    return sum(repeated_lines(texts).values()) / lines([text.path for text in texts])


def repeated_groups(texts: list[KernelText]) -> list[list[Stretch]]:
    """Return the groups of equal stretches, those first whose copies have the most lines in all."""
    repeated = repeated_windows(texts)
    groups: dict[tuple[str, ...], list[Stretch]] = {}
    for text in texts:
        first = 0
        while first < len(text.windows):
            where = repeated.get(text.windows[first])
            last = first
            while where and last + 1 < len(text.windows):
                following = repeated.get(text.windows[last + 1])
                if following is None or following != [(number, at + 1) for number, at in repeated[text.windows[last]]]:
                    break
                last += 1
            if where:
                groups.setdefault(tuple(text.words[first : last + WINDOW]), []).append(text.stretch(first, last))
            first = last + 1
    return sorted(groups.values(), key=lambda group: -sum(one.last - one.first + 1 for one in group[1:]))


def print_repeats(most: int) -> None:
    """Print the largest groups of kernel lines that repeat."""
    texts = [KernelText(path) for path in kernel_files()]
    for group in repeated_groups(texts)[:most]:
        print(f"{len(group)} times {group[0].last - group[0].first + 1} lines")
        for one in group:
            print(f"    {one.path.relative_to(ROOT)}:{one.first}-{one.last}")


def main() -> None:
    """Print one line per package and per total, or the groups of kernel lines that repeat."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="print the N largest groups of kernel lines that repeat"
    )
    repeats = parser.parse_args().repeats
    if repeats is not None:
        print_repeats(repeats)
    else:
        print_sizes()


def print_sizes() -> None:
    """Print one line per package and per total."""
    for package in sorted(path for path in (ROOT / "opbench").iterdir() if path.is_dir() and sources(path)):
        print(f"{lines(sources(package)):>8,} lines  opbench/{package.name}")
    for name in ("opbench", "variants", "tests"):
        print(f"{lines(sources(ROOT / name)):>8,} lines  {name} in all")
    modules = sources(ROOT / "opbench")
    for path in sorted(modules, key=lambda path: -lines([path]))[:LONGEST]:
        print(f"{lines([path]):>8,} lines  {path.relative_to(ROOT)}")
    headers = sources(ROOT / "variants" / "include")
    includes = {path: len(re.findall(r"^#include <opbench/", path.read_text(), re.MULTILINE)) for path in headers}
    most = max(includes.values())
    print(f"{lines(headers):>8,} lines  {len(headers)} kernel headers; each includes {most} others at most")
    kernels = kernel_files()
    variants = [path for path in kernels if path.suffix == ".cu"]
    print(f"{lines(variants):>8,} lines  {len(variants)} variants in CUDA C++")
    repeats = repeated_lines([KernelText(path) for path in kernels])
    total = lines(kernels)
    shared = sum(repeats[path] for path in kernels if "#include <opbench/" in path.read_text())
    print(f"{100 * sum(repeats.values()) / total:>8.1f} % of kernel lines repeat (windows of {WINDOW} tokens)")
    print(f"{100 * shared / total:>8.1f} % of kernel lines repeat and are in files that include kernel headers")
    classes = Counter(name for path in modules for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE))
    repeated = sorted(name for name, times in classes.items() if times > 1)
    print(f"{len(repeated):>8,} class names of several modules{': ' if repeated else ''}{', '.join(repeated)}")
    untyped = sum(len(re.findall(r"\bAny\b", path.read_text())) for path in modules if path.suffix == ".py")
    print(f"{untyped:>8,} uses of Any in opbench")
    evidence = sum(path.stat().st_size for path in (ROOT / "reports").rglob("*") if path.is_file())
    print(f"{evidence / 1e6:>8,.1f} MB of evidence in reports")


if __name__ == "__main__":
    main()
