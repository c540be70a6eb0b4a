"""Print how large the project is: lines per room, longest files, headers, repeated names, untyped values, evidence.

python tests/sizes.py
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = {".py", ".hpp", ".cpp", ".cu", ".cuh"}
LONGEST = 10


def sources(folder: Path) -> list[Path]:
    """Return the source files below a folder."""
    return [path for path in folder.rglob("*") if path.suffix in CODE and "shipped" not in path.parts]


def lines(paths: list[Path]) -> int:
    """Count the lines of files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def main() -> None:
    """Print one line per room and per total."""
    for room in sorted(path for path in (ROOT / "opbench").iterdir() if path.is_dir()):
        print(f"{lines(sources(room)):>8,} lines  opbench/{room.name}")
    for name in ("opbench", "variants", "tests"):
        print(f"{lines(sources(ROOT / name)):>8,} lines  {name} in all")
    modules = sources(ROOT / "opbench")
    for path in sorted(modules, key=lambda path: -lines([path]))[:LONGEST]:
        print(f"{lines([path]):>8,} lines  {path.relative_to(ROOT)}")
    headers = sources(ROOT / "variants" / "include")
    includes = {path: len(re.findall(r"^#include <opbench/", path.read_text(), re.MULTILINE)) for path in headers}
    most = max(includes.values())
    print(f"{lines(headers):>8,} lines  {len(headers)} kernel headers; each includes {most} others at most")
    classes = Counter(name for path in modules for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE))
    repeated = sorted(name for name, times in classes.items() if times > 1)
    print(f"{len(repeated):>8,} class names of several modules{': ' if repeated else ''}{', '.join(repeated)}")
    untyped = sum(len(re.findall(r"\bAny\b", path.read_text())) for path in modules if path.suffix == ".py")
    print(f"{untyped:>8,} uses of Any in opbench")
    evidence = sum(path.stat().st_size for path in (ROOT / "reports").rglob("*") if path.is_file())
    print(f"{evidence / 1e6:>8,.1f} MB of evidence in reports")


if __name__ == "__main__":
    main()
