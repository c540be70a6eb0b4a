"""The header's key `mechanism`: validated, documented, named by every variant that improves another, and true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opbench.checking.checking import trace_case
from opbench.errors import UsageError
from opbench.kernels.folders import case_named
from opbench.kernels.header import read_variants
from opbench.kernels.mechanism import MECHANISMS
from opbench.kernels.variant import Variant
from support.common import CATALOG, RELU, ROOT, kernel_variants

CUDA = kernel_variants()
TITLE = 'title = "a kernel of a test"'


def read_with(folder: Path, header: str) -> tuple[Variant, ...]:
    """Return the variants of a kernel that has these lines in its header, too."""
    path = folder / "mine.cu"
    path.write_text(RELU.replace(TITLE, f"{TITLE}\n// {header}", 1))
    return read_variants(path)


def test_a_header_names_mechanisms(tmp_path: Path) -> None:
    (variant,) = read_with(tmp_path, 'mechanism = ["coalesced", "grid_stride", "coalesced"]')
    assert variant.mechanism == ("coalesced", "grid_stride")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('mechanism = ["coalesed"]', "unknown mechanism 'coalesed'; did you mean 'coalesced'?"),
        ("mechanism = [4]", "unknown mechanism '4'; known: async_copy,"),
        ('mechanism = "coalesced"', "mechanism = 'coalesced' is not allowed; write a list"),
    ],
)
def test_an_unknown_mechanism_is_refused_at_its_line(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_with(tmp_path, header)
    assert str(caught.value).startswith(f"{tmp_path / 'mine.cu'}:4: ") and message in str(caught.value)


def test_variants_have_the_mechanisms_of_their_file_and_their_own() -> None:
    split = CATALOG.variant("linear", "mma_3xtf32")
    plain = CATALOG.variant("linear", "mma_tf32")
    assert split.path == plain.path and set(split.mechanism) - set(plain.mechanism) == {"operand_split"}


def test_every_variant_that_improves_another_names_its_mechanisms() -> None:
    silent = [variant.id for variant in CUDA if variant.builds_on and not variant.mechanism]
    assert silent == [], "add mechanism = [...] to their headers (docs/kernels.md lists the names)"


def test_every_mechanism_is_used_and_documented() -> None:
    used = {name for variant in CUDA for name in variant.mechanism}
    # No ladder has a variant with double arithmetic; advice names its cure in kernels of others.
    assert set(MECHANISMS) - used == {"single_precision"}
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs" / "kernels.md").read_text(), re.MULTILINE)
    assert {name: text for name, text in rows if name in MECHANISMS} == dict(MECHANISMS)


PROBLEMS = {
    "relu": "(n=65536)",
    "add": "(n=65536)",
    "copy": "(n=65536)",
    "sum": "(n=65536)",
    "transpose": "(rows=128,cols=128)",
    "layout2d": "(n=2,c=64,h=8,w=8)",
    "softmax": "(rows=64,cols=256)",
    "layernorm": "(rows=64,cols=256)",
    "rmsnorm": "(rows=64,cols=256)",
    "reduce": "(outer=64,axis=256)",
    "normalize": "(outer=64,axis=1024)",
    "scan": "(rows=4,cols=8192)",
    "segment_reduce": "(segments=4,rows=1024,cols=256)",
    "histogram": "(n=65536)",
    "sampling": "(rows=64,cols=1024)",
    "sort": "(n=16384)",
    "top_k": "(rows=1,cols=32768,k=4)",
    "reduce_backward": "(outer=64,axis=256,op=l2)",
    "softmax_backward": "(rows=64,cols=256)",
    "matmul": "(m=64,n=64,k=64)",
    "triangular_matmul": "(n=128)",
    "grouped_matmul": "(m=64,n=64,k=64,groups=1)",
    "int4_matmul": "(m=64,n=64,k=64)",
    "int8_matmul": "(m=64,n=64,k=64)",
    "scaled_matmul": "(m=64,n=64,k=64)",
    "batched_matmul": "(batch=2,m=64,n=64,k=64)",
}


@pytest.mark.parametrize(
    "variant",
    [v for v in CUDA if v.operator in PROBLEMS and v.precision == "f32" and not v.compute_capability],
    ids=lambda v: v.id,
)
def test_what_a_variant_says_of_its_accesses_is_what_is_counted(variant: Variant) -> None:
    """On sizes that tiles divide: `coalesced`, `vectorised_access` and `bank_conflict_free` by their counts."""
    problem = CATALOG.operator(variant.operator).parse(PROBLEMS[variant.operator])
    config = next((c for c in variant.configs if variant.unmet_requirement(problem, c) is None), None)
    if config is None:
        pytest.skip("does not serve the problem of this test")
    traffic, _ = trace_case(case_named(f"{variant.id}{problem}"))
    whole = traffic.scaled_to_all_blocks()
    sides = [side for kind in ("load", "store") if (side := whole.select(space="global", kind=kind))]
    excess = [sum(e.sectors for e in side) / sum(e.ideal_sectors for e in side) for side in sides]
    if variant.builds_on or "coalesced" in variant.mechanism:
        assert ("coalesced" in variant.mechanism) == (max(excess, default=1.0) <= 1.5)
    widest = max((e.width for side in sides for e in side), default=0)
    assert ("vectorised_access" in variant.mechanism) == (widest == 16)
    if "bank_conflict_free" in variant.mechanism:
        assert whole.total("conflicts", space="shared") <= 0.05 * whole.total("wavefronts", space="shared")
