"""Compute capabilities: how users write them, and what a GPU lacks for a variant."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from opbench.cli import cli
from opbench.errors import UsageError
from opbench.gpu.limits.capability import capability_of
from opbench.kernels.capability import missing_capability, parse_capability


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8.6", (8, 6)),
        ("sm_86", (8, 6)),
        ("9.0a", (9, 0)),
        ("sm_121", (12, 1)),
        ("", None),
        ("h100", None),
        ("86.1.2", None),
    ],
)
def test_capabilities_are_read_as_users_write_them(text: str, expected: tuple[int, int] | None) -> None:
    assert parse_capability(text) == expected


def test_a_gpu_is_named_by_product_or_number() -> None:
    assert capability_of("NVIDIA H100 80GB HBM3") == (9, 0) and capability_of("rtx3080") == capability_of("8.6")
    with pytest.raises(UsageError, match="gtx780ti"):
        capability_of("gtx780ti")


@pytest.mark.parametrize(
    ("have", "wanted", "missing"),
    [
        ((6, 1), "", False),
        ((7, 5), "8.0", True),
        ((12, 0), "8.0", False),
        ((9, 0), "9.0a", False),
        ((12, 0), "9.0a", True),
        ((10, 0), "9.0", False),
    ],
)
def test_a_newer_gpu_runs_all_but_what_one_generation_alone_has(
    have: tuple[int, int], wanted: str, missing: bool
) -> None:
    assert bool(missing_capability(have, wanted)) == missing


def test_list_shows_what_a_gpu_can_run() -> None:
    def names(*options: str) -> dict[str, str]:
        done = CliRunner().invoke(cli, ["list", "variants", "linear", "--json", *options], catch_exceptions=False)
        return {row["name"]: row["compute_capability"] for row in json.loads(done.output)}

    pascal, ampere, hopper = (names("--gpu", gpu) for gpu in ("6.1", "rtx3080", "h100"))
    assert set(pascal) < set(ampere) < set(hopper) and set(hopper) == set(names())
    assert set(pascal.values()) == {""} and "linear/mma_bf16" in ampere
