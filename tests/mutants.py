"""Plant one bug at a time in shipped kernels and see whether `opbench check` finds it: `make mutants`.

    python tests/mutants.py [--count 600] [--seed 1] [--out build/mutants.jsonl] [--again] [--report] [OPERATOR…]

A mutant that every case calls right survives, and is listed with its line before and after. Lines of EQUIVALENT, and
bugs of it (`operator/file: line next`), change nothing that a kernel's user could see, and are not planted. Each
outcome is a line of the file named by --out as soon as it is known: a run that was ended goes on, others add to it;
--again tries what survived once more, --report only counts.

The cases are those of `opbench check --huge --random 1`, quick ones first, until one is not right.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import hashlib
import itertools
import json
import random
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.errors import OpbenchError
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.running.protocol import CheckCase, OpenBackend, pack
from opbench.running.targets import cases_to_check
from opbench.running.worker import Worker, WorkerHung

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
    ("guard too small", r"(?<=if \()(\w+) < (\w+)(?=\))", r"\1 < \2 - 1"),
    ("tie to the last", r"(?<=if \()(\w+) > (largest\w*)", r"\1 >= \2"),
    ("epilogue dropped", r"\bfmaxf\(([^(),]+), 0\.0f\)", r"\1"),
    ("atomic lost", r"\batomicAdd\(&(\w+\[\w+\]), ([^;]*)\);", r"\1 += \2;"),
    ("atomic lost", r"\batomicAdd\((\w+), ([^;]*)\);", r"*\1 += \2;"),
    ("rounded down", r"\((\w+) \+ (\w+) - 1\) / \2\b", r"(\1) / \2"),
)
"""What is planted: a name, where, and what then stands there. A barrier is moved a line, too."""

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
    r"\(threadIdx\.x \+ 1\) < 8 && 8 \* whole": "a tail behind vectors of eight has seven elements at most",
    r"return 0\.0f;\s+__sync": "who has left counts as arrived",
    r"^dropout/vectorised\.cu: if \(first > ": "of no element at all, each looks again",
    r"^dropout/vectorised\.cu: .*lane <= LANES; .*first \+ lane < ": "a tail has fewer elements than a vector",
    r"^batchnorm2d_backward/two_reductions\.cu: .*\(BLOCK\) / 2\) \{ const": "the same twice, by two threads",
    r"^conv2d_wgrad/nhwc_few_channels\.cu: .*filter \+= \(BLOCK\) / 2": "the same twice, by two threads",
    r"^layout2d/vectorised\.cu: .*k \+= \(BLOCK\) / 2": "the same twice, by two threads",
    r"^shared_reread/vec4\.cu: .*\(BLOCK\) / 2\) flat\[i\]": "the same twice, by two threads",
    r"^shared_reread/vec4\.cu: .*round <= rounds": "one more round over the same has the same maximum",
    r"^layout2d/vectorised\.cu: if \(row > TILE": "a block of 128 or 256 divides a tile: no row is beyond it",
    r"^softmax_backward/vectorised\.cu: .*k <= ITEMS; .*if \(row >= rows": "the step more breaks off",
    r"^sgd/vectorised\.cu: .*v = 1\.0f": "read with momentum only, which sets it",
    r"at_once = \(all\) / THREADS < 8": "7 where it were 8 rounds up to 8",
    r"\(short\)(r|u|r / 2) \*": "counts within a tile",
    r"^conv2d/im2col_matmul\.cu: if \(column < columns - 1\)": "four at a time, where four divide them",
    r"^conv2d_wgrad/implicit_gemm_split\.cu: if \(column < columns - 1\)": "four at a time, where four divide them",
    r"^conv2d/im2col_matmul\.cu: if \(step \+ 1 <= steps\) store": "into the buffer that nobody reads any more",
    r"^maxpool2d_backward/tiles\.cu: .*r > WINDOW": "no place is so far down",
    r"^upsample2d_backward/gather\.cu: if \(away <= 0": "0 from the middle the weight is 1 either way",
    r"^linear_dgrad/naive\.cu: if \(row > m ": "the grid has m rows",
    r"^attention_backward/tiled\.cu: .*query <= queries": "one tile more, and all of it is masked",
    r"^attention_decode/online\.cu: .*running_maximum = .*sum = 1\.0f": "the first factor of the sum is 0",
    r"^attention_decode/split\.cu: .*i <= ITEMS": "the next line leaves columns beyond the depth out",
    r"^conv3d/nhwc_grouped_mma\.cu: .*chunk = \(threadIdx\.x \+ 1\) % 8": "threads of a row change places",
    r"^groupnorm_backward/nhwc_split\.cu: .*\(short\)part": "there are few parts",
    r"^histogram/\w+\.cu: .*\(short\)blockIdx\.x \* BLOCK": "a grid has a few blocks per multiprocessor",
    r"^huber_loss/one_pass\.cu: .*\(threadIdx\.x \+ 1\) < LANES": "a tail has fewer elements than a vector",
    r"^int4_matmul/wgmma\.cu: if \(column (<= n|< n - 1)\) store": "TMA leaves out what is beyond n, a multiple of 8",
    r"^(layer|rms)norm_backward/block_per_row\.cu: .*\(threadIdx\.x \+ 1\) % 32 == 0": "all lanes have its value",
    r"^maxpool3d/grid\.cu: .*value >= largest": "the same value",
    r"^(normalize|rmsnorm)/block_per_row\.cu: .*\(BLOCK\) / 2\) to(tal)?\[": "the same twice, by two threads",
    r"^rmsnorm/block_per_row\.cu: .*shared\[threadIdx\.x / 32\] = value;": "before it nobody reads `shared`",
    r"^scaled_matmul/naive\.cu: .*\(short\)block": "32767 blocks of 128 along k are too many for a test",
    r"^scan/block_per_row\.cu: .*distance <= BLOCK": "no thread has so high a number",
    r"^sort/bitonic_shared\.cu: .*run / 2 <= length": "one merge more of sorted keys",
    r"^sort/bitonic_shared\.cu: .*i \+= \(BLOCK\) / 2": "the same twice, by two threads",
    r"^triangular_matmul/register_tile\.cu: if \(col < n - 1\)": "four at a time, where four divide n",
    r"^triplet_margin_loss/one_pass\.cu: .*i \+= \(BLOCK\) / 2": "the same twice, by two threads",
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
    """A line; two where they change places."""
    after: str
    following: str
    """What stands behind it."""

    @property
    def name(self) -> str:
        """A file name of its own."""
        return f"{self.operator}_{self.path.stem}_{self.line}_{zlib.crc32(f'{self.bug}{self.after}'.encode())}"

    @property
    def told(self) -> str:
        """What EQUIVALENT is asked about."""
        return f"{self.operator}/{self.path.name}: {self.after.strip()} {self.following.strip()}"

    @property
    def key(self) -> str:
        """The same for the same bug in the same text, wherever it lies."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    def text(self) -> str:
        """The file with its bug, and with the operator in its header."""
        lines = self.path.read_text().splitlines()
        lines[self.line - 1 : self.line + self.before.count("\n")] = [self.after]
        start = next(i for i, line in enumerate(lines) if line.startswith("// /// opbench"))
        lines.insert(start + 1, f'// operator = "{self.operator}"')
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, object]:
        """Where it is, and the two lines."""
        place = {"operator": self.operator, "file": self.path.name, "line": self.line, "bug": self.bug}
        return {"key": self.key, **place, "before": self.before, "after": self.after, "told": self.told}


def described(of: Mapping[str, object]) -> str:
    """A mutant, or its line of the file, for people."""
    diff = difflib.unified_diff(str(of["before"]).splitlines(), str(of["after"]).splitlines(), lineterm="", n=0)
    shown = "\n".join(f"    {line}" for line in diff if line[:2] not in {"--", "++", "@@"})
    return f"{of['operator']}/{of['file']}:{of['line']}: {of['bug']}\n{shown}"


def is_equivalent(told: str) -> bool:
    """Whether nobody could see the bug."""
    return any(re.search(pattern, told) for pattern in EQUIVALENT)


def mutants_of(operator: str, path: Path) -> Iterator[Mutant]:
    """Every bug that can be planted in a file, one line at a time."""
    lines = path.read_text().splitlines()
    body = next((i for i, line in enumerate(lines) if line.startswith("// ///") and i > 0 and "opbench" not in line), 0)
    for number, line in enumerate(lines[body + 1 :], body + 2):
        if is_equivalent(line):
            continue
        behind = [*lines[number : number + 2], "", ""]
        code = line.split("//")[0]
        for bug, pattern, replacement in BUGS:
            match = re.search(pattern, code)
            after = code[: match.start()] + match.expand(replacement) + code[match.end() :] if match else code
            found = Mutant(operator, path, bug, number, code, after, behind[0])
            if after != code and not is_equivalent(found.told):
                yield found
        statement = re.fullmatch(r"\s*[^\s#/{}][^{}]*\[[^{}]*;", behind[0].split("//")[0].rstrip())
        if statement and re.fullmatch(r"\s*__sync(?:threads|warp)\(\w*\);\s*", code):
            moved = Mutant(
                operator, path, "barrier moved", number, f"{line}\n{behind[0]}", f"{behind[0]}\n{line}", behind[1]
            )
            if not is_equivalent(moved.told):
                yield moved


def drawn(operators: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants, spread evenly over the operators and over the kinds of bugs."""
    catalog, chance, piles = Catalog(), random.Random(seed), []
    for operator in operators:
        paths = sorted({v.path for v in catalog.variants(operator) if not v.is_library})
        whole = [path for path in paths if not re.search(r'#include "|\[(rung|variant)\.', path.read_text())]
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


HANGS_AFTER_S = 60.0


class Trial:
    """A process that checks mutants, one case after the other."""

    def __init__(self, folder: Path, random_shapes: int = 1) -> None:
        self.folder, self.random_shapes = folder, random_shapes
        self._worker = Worker(OpenBackend("cpu"), folder / "worker.log")
        self._session = Session(open_backend("cpu"))
        """Which only says what cannot run here."""

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *raised: object) -> None:
        self._worker.end()

    def outcome(self, mutant: Mutant) -> dict[str, object]:
        """What became of it: "found", "survives", "untried" where no case asks, "refused" by the compiler; and why."""
        path = self.folder / f"{mutant.name}.cu"
        path.write_text(mutant.text())
        try:
            cases = cases_to_check(Catalog(), path, self.random_shapes, 20260, False, huge=True)
            reason = self._first_reason([case for case in cases if self._session.unsupported_reason(case) is None])
        except OpbenchError as error:
            return {"outcome": "untried", "reason": str(error)}
        finally:
            path.unlink()
        if reason is None:
            return (
                {"outcome": "survives", "cases": len(cases)} if cases else {"outcome": "untried", "reason": "no case"}
            )
        kind = "refused" if "does not compile" in reason[1] else "found"
        return {"outcome": kind, "case": reason[0], "reason": reason[1]}

    def _first_reason(self, cases: Sequence[Case]) -> tuple[str, str] | None:
        for case in quickest_first(cases, self._session.is_sampled):
            try:
                verdict = self._worker.ask(CheckCase(pack(case)), HANGS_AFTER_S).verdict
            except WorkerHung as error:
                return case.name, str(error)
            except OpbenchError as error:
                return case.name, str(error)
            if not verdict.right:
                return case.name, verdict.reason
        return None


def quickest_first(cases: Sequence[Case], is_channels_last: Callable[[Case], bool]) -> list[Case]:
    """A problem of middling size and what its module serves, then by module; then those that `is_channels_last`."""
    by_size = sorted((c for c in cases if not is_channels_last(c)), key=lambda c: c.problem.flops() + c.problem.bytes())
    last = [case for case in cases if is_channels_last(case)]
    first = by_size[len(by_size) // 2 :][:1]
    modules = collections.defaultdict(list)
    for case in (*first, *by_size):
        modules[case.request()].append(case)
    return list({case.name: case for case in (*itertools.chain(*modules.values()), *last)}.values())


def read(out: Path) -> dict[str, dict[str, object]]:
    """The latest outcome of each mutant in a file, whose last line may be torn."""
    found = {}
    for line in out.read_text().splitlines() if out.exists() else []:
        try:
            found[str(json.loads(line)["key"])] = json.loads(line)
        except ValueError:
            continue
    return found


def report(outcomes: Sequence[Mapping[str, object]]) -> float:
    """Print what was found, by kind of bug and by operator, and what survives; the share that was found."""
    seen = [o for o in outcomes if o["outcome"] in ("found", "survives") and not is_equivalent(str(o["told"]))]
    for what in ("bug", "operator"):
        for kind in sorted({str(o[what]) for o in seen}):
            of_kind = [o["outcome"] == "found" for o in seen if o[what] == kind]
            print(f"{sum(of_kind):5} of {len(of_kind):4}  {kind}")
        print()
    alive = [o for o in seen if o["outcome"] == "survives"]
    for one in alive:
        print(f"survives: {described(one)}")
    rest = collections.Counter(str(o["outcome"]) for o in outcomes)
    share = 100 * (len(seen) - len(alive)) / max(1, len(seen))
    print(
        f"{len(seen)} mutants of {len({o['operator'] for o in seen})} operators: {share:.1f} % found, "
        f"{len(alive)} survive; beside them {rest['found'] + rest['survives'] - len(seen)} equivalent ones, "
        f"{rest['refused']} that do not compile, {rest['untried']} that no case asks for"
    )
    return share


def main() -> int:
    """Plant, check, write down, list."""
    parser = argparse.ArgumentParser(description="plant bugs in shipped kernels and see whether check finds them")
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/mutants.jsonl"))
    parser.add_argument("--again", action="store_true", help="try what survived once more, nothing else")
    parser.add_argument("--report", action="store_true", help="count what the file has")
    given = parser.parse_args()
    known = read(given.out)
    if not given.report:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        operators = given.operators or Catalog().operator_names()
        planted = drawn(operators, sys.maxsize if given.again else given.count, given.seed)
        survived = {key for key, o in known.items() if o["outcome"] == "survives"}
        todo = [m for m in planted if (m.key in survived if given.again else m.key not in known)]
        with tempfile.TemporaryDirectory(prefix="opbench-mutants-") as folder, Trial(Path(folder)) as trial:
            for number, mutant in enumerate(todo, 1):
                began = time.monotonic()
                one = {**mutant.to_json(), **trial.outcome(mutant), "seconds": round(time.monotonic() - began, 2)}
                known[mutant.key] = one
                with given.out.open("a") as file:
                    file.write(json.dumps(one) + "\n")
                print(f"{number} of {len(todo)}: {one['outcome']}: {described(one)}", file=sys.stderr, flush=True)
    return 0 if report(list(known.values())) >= 98 else 1


if __name__ == "__main__":
    sys.exit(main())
