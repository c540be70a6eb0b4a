"""Run the CUDA tests of the public suite GPUVerify on the CPU and write a table of what opbench reports.

    python tests/gpuverify_races.py FOLDER FILE

FOLDER is the suite's: `testsuite/CUDA/**/kernel.cu`, whose first lines name the expected result and the launch. This
repository holds nothing of the suite. Each kernel runs once on at most 16 blocks; numbers in buffers are random, others
those that a precondition (`__requires`) of the file names. Annotations of the verifier but assertions do nothing.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opbench.backend.base import TraceOptions
from opbench.emulator.backend import CpuBackend
from opbench.errors import OpbenchError
from opbench.kernels.launch import BuildRequest, Dim3, KernelLaunch
from opbench.kernels.scalar import Struct

HEAD = """\
# python tests/gpuverify_races.py FOLDER FILE: CUDA tests of the suite GPUVerify on the CPU, and what opbench reports.
# "must fail": the suite expects that GPUVerify rejects the kernel. It proves statements about every input and about
# annotations; opbench runs the kernel once, on one input. "not run": the reason; such a kernel is not counted.
# "stores of one value": opbench takes stores of the same value for right and says so in a note.
# "in step": the suite runs the kernel with --warp-sync, for lanes in step. No GPU since Volta guarantees that.
"""
ANNOTATIONS = "".join(
    f"#define __{name}(...) ((void)0)\n"
    for name in (
        *("requires", "ensures", "invariant", "global_invariant", "assume", "axiom", "requires_fresh_array"),
        *("no_read", "no_write", "read", "write", "read_implies", "write_implies", "function_wide_invariant"),
        *("candidate_invariant", "candidate_assert", "non_temporal"),
    )
) + (
    "#include <assert.h>\n#define __assert(e) assert(e)\n#define __global_assert(e) assert(e)\n"
    "#define __implies(a, b) (!(a) || (b))\n#define __enabled() true\n"
)
ELEMENTS, MOST_BLOCKS, MOST_THREADS = 1 << 18, 16, 1024
IGNORED = frozenset({"uninitialised_global", "uninitialised_shared"})
"""Findings that follow from the contents of the buffers, which the suite does not say."""


def size(text: str, name: str) -> Dim3:
    """Return a size such as `--blockDim=[8,8]` of a file's second line."""
    numbers = [int(n) for n in re.findall(rf"--{name}=\[?([\d,]+)", text)[0].split(",")]
    return (*numbers, 1, 1)[:3]


def limited(grid: Dim3) -> Dim3:
    """Return a grid of at most `MOST_BLOCKS` blocks: the suite's races do not depend on their number."""
    x = min(grid[0], MOST_BLOCKS)
    y = min(grid[1], max(1, MOST_BLOCKS // x))
    return x, y, min(grid[2], max(1, MOST_BLOCKS // (x * y)))


def kind(declared: str) -> str:
    """Return the kind of a declared type or field: "pointer", "float" or "int"; raise ValueError for any other."""
    words = re.sub(r"\b(const|volatile|unsigned|signed|__restrict__)\b", "", declared).split()
    if "*" in declared or "[" in declared:
        return "pointer"
    if (words and words[0] in ("float", "int", "char", "short", "size_t", "long")) or len(words) == 1:
        return "float" if words[0] == "float" else "int"
    raise ValueError(f"parameter {declared}")


def fields(text: str, name: str) -> list[str]:
    """Return the kinds of the fields of a structure, with those of its base and of inner structures; [] if unknown."""
    found = re.search(
        rf"\b(?:struct|class)\s+{name}\s*(?::\s*(\w+)\s*)?{{|\bstruct\s*{{(?=[^}}]*}}\s*{name}\s*;)", text
    )
    if not found:
        return []
    kinds = fields(text, found[1]) if found[1] else []
    inside, depth = "", 1
    for character in text[found.end() :]:
        depth += (character == "{") - (character == "}")
        if not depth:
            break
        inside += character
    # Of a class with functions, the fields come first; an inner structure without a name has fields of its own.
    for line in re.split(r"\bpublic:", inside)[0].replace("struct {", "").split(";"):
        declaration = line.strip().lstrip("}").strip()
        count = int((re.findall(r"\[(\d+)\]", declaration) or ["1"])[0])
        first, *names = (part.strip() for part in re.sub(r"\[\d+\]", "", declaration).split(","))
        if len(first.split()) > 1:
            inner = fields(text, first.split()[0])
            kinds += (inner or [kind(first)] * (1 + len(names))) * count
    return kinds


def parameters(text: str, kernel: str) -> list[str | list[str]]:
    """Return the kinds of a kernel's parameters, a list for a structure; raise ValueError for an unknown type."""
    inside = re.findall(rf"\b{kernel}\s*\(([^)]*)\)", text)[0].replace("void", "").strip()
    return [
        (fields(text, parameter.split()[-2]) if len(parameter.split()) > 1 and "*" not in parameter else [])
        or kind(parameter)
        for parameter in filter(None, (one.strip() for one in inside.split(",")))
    ]


def checked(backend: CpuBackend, text: str, source: Path) -> str:
    """Run a file's kernel; return the kinds of its findings, "-" for none, or why it does not run."""
    block, grid = size(text, "blockDim"), limited(size(text, "gridDim"))
    if block[0] > MOST_THREADS:  # the suite is older than the limit of today's GPUs
        block = (MOST_THREADS, 1, 1)
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    kernel = re.findall(r"__global__[^;{(]*?(\w+)\s*\(", code)[-1]
    try:
        kinds = parameters(code, kernel)
    except ValueError as error:
        return f"not run: {error}"
    macros = "".join(f"#define {name} {value}\n" for name, value in re.findall(r"-D(\w+)=(\w+)", text))
    groups = (
        "#include <cooperative_groups.h>\n#define synchronize(group) group.sync()\n"
        if "cooperative_groups" in code
        else ""
    )
    source.write_text(groups + ANNOTATIONS + macros + code, encoding="utf-8")
    named = re.findall(r"__requires\(\w+\s*==\s*(\d+|blockDim\.x)\)", code)
    numbers = [block[0] if name == "blockDim.x" else int(name) for name in named] or [1]
    flat = [one for parameter in kinds for one in ([parameter] if isinstance(parameter, str) else parameter)]
    buffers = {f"b{i}": backend.allocate(f"b{i}", (ELEMENTS,), "i32") for i in range(flat.count("pointer"))}
    names, scalars = iter(buffers), iter(numbers * len(flat))

    def value(kind: str) -> str | float | int:
        return next(names) if kind == "pointer" else float(next(scalars)) if kind == "float" else next(scalars)

    arguments = tuple(
        value(parameter) if isinstance(parameter, str) else Struct(tuple(map(value, parameter))) for parameter in kinds
    )
    random = np.random.default_rng(20260)
    for buffer in buffers.values():
        buffer.write(random.integers(1, 1000, ELEMENTS, np.int32))
    request = BuildRequest(source=source, kernels=(kernel,))
    launch = KernelLaunch(kernel, grid, block, 0, arguments, cooperative="cooperative_groups" in code and grid[0] > 1)
    try:
        if reason := backend.unsupported_reason(request):
            return f"not run: {reason}"
        trace = backend.trace(request, [launch], buffers, TraceOptions(count=False))
    except OpbenchError as error:
        return f"not run: {re.split('; |: /', str(error).splitlines()[0].replace(str(source), 'kernel.cu'))[0]}"
    finally:
        backend.free(buffers)
    # The suite does not say how large a buffer is, either, so only an access outside all buffers is one out of bounds.
    findings = [
        one for one in trace.findings if one.kind not in IGNORED and not (one.kind == "out_of_bounds" and one.buffer)
    ]
    kinds_of = sorted({one.kind.replace("_", "-") for one in findings})
    return " ".join(kinds_of) or ("-, stores of one value" if any("same" in n.kind for n in trace.notes) else "-")


def main(arguments: Sequence[str]) -> int:
    """Check all tests and write the table; exit code 1: a kernel that must pass was accused."""
    suite, out = Path(arguments[0]) / "testsuite" / "CUDA", Path(arguments[1])
    backend, rows = CpuBackend(), []
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(sorted(suite.rglob("kernel.cu"))):
            text = path.read_text(encoding="utf-8")
            result = text.split("\n")[0].removeprefix("//").strip().lower()
            if "_error" in result:  # the suite's own front end refuses these files
                continue
            seen = checked(backend, text, Path(folder) / f"kernel_{number}.cu")
            must = "in step" if result == "pass" and "--warp-sync" in text else "pass" if result == "pass" else "fail"
            said = re.findall(
                r"^//.*?((?:\S+ )?(?:race|null pointer|assert|constant mem|invariant).*)$", text, re.MULTILINE
            )
            expected = said[0].strip()[:34] if said and must == "fail" else ""
            rows.append((path.parent.relative_to(suite).as_posix(), must, expected, seen))
    table = ""
    for must in ("fail", "pass", "in step"):
        ran = [seen for _, label, _, seen in rows if label == must and not seen.startswith("not run")]
        title = f"must {must}" if must != "in step" else must
        table += f"{title}: {sum(seen[0] != '-' for seen in ran)} of {len(ran)} reported\n"
    table += f"not run: {sum(seen.startswith('not run') for *_, seen in rows)}\n\n"
    table += f"{'test':52} {'must':8} {'the suite expects':34} reported\n"
    for name, must, expected, seen in rows:
        if must != "pass" or seen[0] != "-":
            table += f"{name:52} {must:8} {expected:34} {seen}\n"
    out.write_text(HEAD + table, encoding="utf-8")
    print(out.read_text(encoding="utf-8"), end="")
    return int(any(must == "pass" and seen[0] != "-" and not seen.startswith("not run") for _, must, _, seen in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
