"""Plant one bug at a time in shipped kernels and see whether `opbench check` finds it: `make mutants`.

    python tests/mutants.py [--count 600] [--seed 1] [OPERATOR…]

A mutant that every case calls right survives, and is listed with its line before and after. Lines of EQUIVALENT, and
bugs of it (`operator/file: line next`), change nothing that a kernel's user could see, and are not planted.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import random
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench import api
from opbench.catalog.folders import Catalog

BUGS: tuple[tuple[str, str, str], ...] = (
    ("barrier deleted", r"__sync(?:threads|warp)\(\w*\);", ";"),
    ("guard off by one", r"(?<=if \()([^;{}]*?[\w\])]) < (?=[\w(])", r"\1 <= "),
    ("guard off by one", r"(?<=if \()([^;{}]*?[\w\])]) >= (?=[\w(])", r"\1 > "),
    ("bound off by one", r"(for \([^;]*;[^;]*?) < (?=[^;]*;)", r"\1 <= "),
    ("bound too small", r"(for \([^;]*;[^;]*?) < ([\w.]+)(?=; ?\+\+)", r"\1 < \2 - 1"),
    ("index off by one", r"\bthreadIdx\.x\b", "(threadIdx.x + 1)"),
    ("index of another axis", r"\bblockIdx\.x\b", "blockIdx.y"),
    ("initial value", r"= 0\.0f(?=[;,])", "= 1.0f"),
    ("initial value", r"-INFINITY|-FLT_MAX", "0.0f"),
    ("initial value missing", r"(float \w+) = 0\.0f;", r"\1;"),
    ("mask of half a warp", r"0xffffffffu?", "0x0000ffffu"),
    ("stride halved", r"\+= (BLOCK|blockDim\.x|\w+ \* BLOCK)(?=[;)])", r"+= (\1) / 2"),
    ("step skipped", r"(distance|offset|step) /= 2", r"\1 /= 4"),
    ("epilogue turned round", r"\bfmaxf\(", "fminf("),
    ("sum forgotten", r"(\b(?:sum|total|own|acc\w*)\w*(?:\[[^\]]*\])?) \+= ", r"\1 = "),
    ("sign", r"(?<=[\w\])]) - (?=\w+\[)", " + "),
    ("width narrowed", r"\((?:size_t|long long)\)", "(short)"),
    ("width narrowed", r"\bfloat (?=(?:sum|total|own)\b)", "short "),
)
"""What is planted: a name, where, and what then stands there."""

EQUIVALENT: dict[str, str] = {
    r"^\s*(//|#)": "no code",
    r"__launch_bounds__": "tells the compiler only",
    r"\b(i|thread|threadIdx\.x) < 4 && rest < ": "a tail behind vectors of four has three elements at most",
    r"\(size_t\)\(i \* ROWS\)": "64 at most, times rows: too narrow for more than 2^25 rows only",
    r"first < whole; first \+= UNROLL": "every access behind it looks again",
    r"fmaxf\(fminf\(|fminf\(fmaxf\(": "clamped on both sides",
    r"q = \(threadIdx\.x \+ 1\) % 16, line": "threads of a row change places, for reads and writes alike",
    r"away <= 0 \? first": "0 from the middle of an odd scale the weight is 1 either way",
    r"threadIdx\.x <= 8 && 8 \* whole": "a tail behind vectors of eight has seven elements at most",
    r"^dropout/vectorised\.cu: .*lane < LANES - 1": "a tail has fewer elements than a vector",
    r"^softmax/block_per_row\.cu: .*\(threadIdx\.x \+ 1\) % 32 == 0\) shared": "all lanes of a warp have its value",
    r"^softmax_cross_entropy/vectorised\.cu: .*k <= ITEMS; \+\+k\) \{ if \(row >= rows": "the step more breaks off",
    r"^layout2d/vectorised\.cu: .*k <= TILES \* TILE": "one step more, of which every thread leaves at once",
}


@dataclass(frozen=True)
class Mutant:
    """One bug in one kernel's file."""

    operator: str
    path: Path
    bug: str
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """A file name of its own."""
        return f"{self.operator}_{self.path.stem}_{self.line}_{zlib.crc32(f'{self.bug}{self.after}'.encode())}"

    def text(self) -> str:
        """The file with its bug, and with the operator in its header."""
        lines = self.path.read_text().splitlines()
        lines[self.line - 1] = self.after
        start = next(i for i, line in enumerate(lines) if line.startswith("// /// opbench"))
        lines.insert(start + 1, f'// operator = "{self.operator}"')
        return "\n".join(lines) + "\n"

    def described(self) -> str:
        """Where it is, and the two lines."""
        diff = difflib.unified_diff([self.before], [self.after], lineterm="", n=0)
        shown = "\n".join(f"    {line}" for line in diff if line[:2] not in {"--", "++", "@@"})
        return f"{self.operator}/{self.path.name}:{self.line}: {self.bug}\n{shown}"


def mutants_of(operator: str, path: Path) -> Iterator[Mutant]:
    """Every bug that can be planted in a file, one line at a time."""
    lines = path.read_text().splitlines()
    body = next((i for i, line in enumerate(lines) if line.startswith("// ///") and i > 0 and "opbench" not in line), 0)
    for number, line in enumerate(lines[body + 1 :], body + 2):
        if any(re.search(pattern, line) for pattern in EQUIVALENT):
            continue
        code = line.split("//")[0]
        for bug, pattern, replacement in BUGS:
            match = re.search(pattern, code)
            after = code[: match.start()] + match.expand(replacement) + code[match.end() :] if match else code
            told = f"{operator}/{path.name}: {after.strip()} {''.join(lines[number : number + 1]).strip()}"
            if after != code and not any(re.search(pattern, told) for pattern in EQUIVALENT):
                yield Mutant(operator, path, bug, number, code, after)


def drawn(operators: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants, spread evenly over the operators and over the kinds of bugs."""
    catalog, chance, piles = Catalog(), random.Random(seed), []
    for operator in operators:
        paths = sorted({v.path for v in catalog.variants(operator) if not v.is_library})
        whole = [path for path in paths if not re.search(r'#include "|\[rung\.', path.read_text())]
        found = [mutant for path in whole for mutant in mutants_of(operator, path)]
        chance.shuffle(found)
        kinds: dict[str, list[Mutant]] = {}
        for mutant in found:
            kinds.setdefault(mutant.bug, []).append(mutant)
        piles.append(in_turn(list(kinds.values())))
    return in_turn(piles)[:count]


def in_turn(piles: Sequence[Sequence[Mutant]]) -> list[Mutant]:
    """One of each pile, then the next of each."""
    rows = itertools.zip_longest(*piles)
    return [mutant for row in rows for mutant in row if mutant is not None]


def survivors(planted: Sequence[Mutant], folder: Path, random_shapes: int = 1) -> tuple[list[Mutant], list[Mutant]]:
    """Those that every case called right, and those that no case tried."""
    paths = {}
    for mutant in planted:
        path = folder / f"{mutant.name}.cu"
        path.write_text(mutant.text())
        paths[mutant] = path
    results = api.check(
        list(paths.values()), backend="cpu", random_shapes=random_shapes, huge=True, cpu_only=True, time_limit_s=20.0
    )
    alive, untried = [], []
    for mutant, path in paths.items():
        statuses = {r.status for r in results if r.variant == path.stem} - {"unsupported"}
        if not statuses:
            untried.append(mutant)
        elif statuses == {"right"}:
            alive.append(mutant)
    return alive, untried


def main() -> int:
    """Plant, check in batches, list."""
    parser = argparse.ArgumentParser(description="plant bugs in shipped kernels and see whether check finds them")
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=20)
    given = parser.parse_args()
    planted = drawn(given.operators or Catalog().operator_names(), given.count, given.seed)
    alive: list[Mutant] = []
    tried = 0
    for first in range(0, len(planted), given.batch):
        with tempfile.TemporaryDirectory(prefix="opbench-mutants-") as folder:
            lived, untried = survivors(planted[first : first + given.batch], Path(folder))
        tried += len(planted[first : first + given.batch]) - len(untried)
        alive += lived
        for mutant in lived:
            print(f"survives: {mutant.described()}", flush=True)
        print(f"{tried - len(alive)} of {tried} found", file=sys.stderr, flush=True)
    share = 100 * (tried - len(alive)) / max(1, tried)
    print(
        f"{tried} mutants of {len({m.operator for m in planted})} operators: {share:.1f} % found, {len(alive)} survive"
    )
    return 0 if share >= 98 else 1


if __name__ == "__main__":
    sys.exit(main())
