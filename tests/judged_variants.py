"""Judge shipped variants on the CPU as strangers' kernels are judged, in the cage: none may be refused.

    python tests/judged_variants.py FILE [--count 300] [--jobs 1] [--limit SECONDS]

FILE gets a line of JSON per variant as soon as its verdict is known, so the same command continues a stopped run; if
only FILE.xz is there, it is unpacked first. A line has the variant, the answer, the code and reason of a refusal, the
secret seed, seconds, and the first 16 digits of the SHA-256 of its file. Every operator gives its first variants
before any gives its next one. The last line printed counts the answers; exit code 1: a variant was not accepted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import zip_longest
from pathlib import Path
from typing import Any

from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.records import stored_file, unpacked

MOST_CONFIGS = 24
"""Variants with more configs take minutes; tests/test_variants.py checks them."""
OPTIONS = JudgeOptions(backend="cpu", time_limit_s=240.0, drawn=1)


def spread(catalog: Catalog, count: int) -> list[Variant]:
    """Return the first variants of every ladder, then the second ones, and so on, up to a count."""
    kernels = [[v for v in catalog.variants(name) if not v.is_library] for name in catalog.operator_names()]
    in_turns = [variant for turn in zip_longest(*kernels) for variant in turn if variant is not None]
    return [variant for variant in in_turns if len(variant.configs) <= MOST_CONFIGS][:count]


def verdict_of(variant: str, source: Path) -> dict[str, Any]:
    """Judge one variant and return its line."""
    began = time.monotonic()
    document = judge([variant], OPTIONS)
    refusal = {} if document.overall == "accepted" else {"code": document.code, "reason": document.reason}
    return {
        "variant": variant,
        "answer": document.overall,
        **refusal,
        "seed": document.seed,
        "cases": len(document.cases),
        "seconds": round(time.monotonic() - began, 2),
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest()[:16],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the variants that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no variant after these seconds")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if not options.file.exists() and (packed := stored_file(options.file)).exists():
        options.file.write_bytes(unpacked(packed))
    known = options.file.read_text(encoding="utf-8").splitlines() if options.file.exists() else []
    lines = {line["variant"]: line for line in map(json.loads, known)}
    wanted = [variant for variant in spread(Catalog(), options.count) if variant.id not in lines]
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of the libraries half
    with (
        options.file.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(options.jobs, mp_context=context) as pool,
    ):
        left = iter(wanted)
        pending = {pool.submit(verdict_of, v.id, v.path) for v, _ in zip(left, range(options.jobs), strict=False)}
        while pending:
            done = next(as_completed(pending))
            pending.remove(done)
            if time.monotonic() - began < options.limit and (variant := next(left, None)):
                pending.add(pool.submit(verdict_of, variant.id, variant.path))
            line = done.result()
            lines[line["variant"]] = line
            file.write(json.dumps(line) + "\n")
            file.flush()
    answers = Counter(line["answer"] for line in lines.values())
    print(f"{len(lines)} variants of {len({name.partition('/')[0] for name in lines})} operators: {dict(answers)}")
    return int(set(answers) != {"accepted"})


if __name__ == "__main__":
    sys.exit(main())
