"""Names that both profilers' filters take as they are, and ranges that cost nothing without a tool."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench import nvtx

NAMES = st.from_regex(r"[a-z_0-9]{1,8}/[a-zA-Z0-9_-]{1,12}", fullmatch=True)
CONFIGS = st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,4}", fullmatch=True), st.integers(-99, 99), max_size=3)
AXES = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,4}", fullmatch=True),
    st.integers(-9, 999) | st.sampled_from(["f16", "bf16"]),
    max_size=8,
)


def _print(name: str, config: dict[str, int], axes: dict[str, int | str]) -> str:
    tuned = f"[{','.join(f'{k}={v}' for k, v in config.items())}]" if config else ""
    return f"{name}{tuned}({','.join(f'{k}={v}' for k, v in axes.items())})"


CASES = st.builds(_print, NAMES, CONFIGS, AXES)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No tool in the environment, and the decision not yet taken."""
    for variable in (*nvtx.TOOL_VARIABLES, nvtx.SWITCH_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    nvtx._domain.cache_clear()
    yield monkeypatch
    nvtx._domain.cache_clear()


def test_the_name_reads_like_the_case() -> None:
    assert nvtx.safe_name("matmul/tiled[TILE=16](m=64,n=64,k=64)") == "matmul.tiled.TILE-16.m-64.n-64.k-64"
    assert nvtx.safe_name("conv2d/naive(n=1,dtype=f16)") == "conv2d.naive.n-1.dtype-f16"


@given(CASES | st.text())
def test_only_characters_that_no_filter_interprets(case: str) -> None:
    name = nvtx.safe_name(case)
    assert re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name)
    assert len(name) <= nvtx.MAX_NAME_LENGTH


@given(CASES, CASES)
def test_distinct_cases_keep_distinct_names(one: str, other: str) -> None:
    assert (nvtx.safe_name(one) == nvtx.safe_name(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a/b(x=1)", "a/b/x=1"),
        ("a/b(x=1,y=2)", "a/b[x=1](y=2)"),
        ("a/b(x=1.5)", "a/b(x=1,5)"),
        ("a/b(x=é)", "a/b(x=è)"),
        ("a/b(x=" + "1" * 200 + ")", "a/b(x=" + "1" * 201 + ")"),
    ],
)
def test_names_that_flatten_alike_are_told_apart_by_a_hash(one: str, other: str) -> None:
    assert nvtx.safe_name(one) != nvtx.safe_name(other)


def test_a_colour_is_the_operators_own_and_stays() -> None:
    assert nvtx.colour("matmul") == nvtx.colour("matmul")
    assert {nvtx.colour(f"operator{i}") for i in range(200)} == set(nvtx.PALETTE)
    # Written down, as a changed hash would repaint every report.
    assert nvtx.colour("matmul") == "#0072B2"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"NVTX_INJECTION64_PATH": "/x.so"}, "NVTX_INJECTION64_PATH"),
        ({"CUDA_INJECTION64_PATH": "/x.so"}, "CUDA_INJECTION64_PATH"),
        ({"NSYS_PROFILING_SESSION_ID": "7"}, "NSYS_PROFILING_SESSION_ID"),
        ({"NV_NSIGHT_INJECTION_PORT_BASE": "49152"}, "NV_NSIGHT_INJECTION_PORT_BASE"),
        ({"NVTX_INJECTION64_PATH": ""}, None),
    ],
)
def test_a_tool_shows_in_the_environment(environment: dict[str, str], found: str | None) -> None:
    assert nvtx.tool_attached(environment) == found


def test_without_a_tool_nvtx_is_not_even_imported() -> None:
    program = (
        "import sys\nfrom opbench.nvtx import case_range, phase_range\n"
        "with phase_range('build'), phase_range('check'), case_range('a/b(x=1)', 'a'): pass\n"
        "sys.exit('nvtx' in sys.modules)"
    )
    variables = (*nvtx.TOOL_VARIABLES, nvtx.SWITCH_VARIABLE)
    done = subprocess.run(["env", *(f"--unset={v}" for v in variables), sys.executable, "-c", program], check=False)
    assert done.returncode == 0


def test_without_a_tool_all_ranges_are_one_object(fresh: pytest.MonkeyPatch) -> None:
    assert nvtx.case_range("a/b(x=1)", "a") is nvtx.phase_range("measure") is nvtx.phase_range("build")


class Recorder:
    """Stands for an NVTX domain."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, str]] = []
        self.depth = 0

    def get_event_attributes(self, message: str, color: int, category: str) -> tuple[str, int, str]:
        return (message, color, category)

    def push_range(self, attributes: tuple[str, int, str]) -> None:
        self.depth += 1
        self.seen.append(("push", *attributes))

    def pop_range(self) -> None:
        self.depth -= 1


def test_with_a_tool_ranges_carry_name_colour_and_category(fresh: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("nvtx", reason="has no wheel for every platform")
    domain = Recorder()
    asked: list[str] = []
    fresh.setattr(library, "get_domain", lambda name: asked.append(name) or domain)
    fresh.setenv("NVTX_INJECTION64_PATH", "/tool.so")
    with pytest.raises(RuntimeError), nvtx.phase_range("profile"), nvtx.case_range("a/b(x=1)", "matmul"):
        assert domain.depth == 2
        raise RuntimeError
    assert domain.depth == 0 and asked == ["opbench"]
    colour = 0xFF000000 | int(nvtx.colour("matmul")[1:], 16)
    assert domain.seen[1] == ("push", "a.b.x-1", colour, "case")
    assert domain.seen[0][3] == "profile"


@pytest.mark.parametrize("switch", ["1", "0"])
def test_the_switch_decides_over_the_environment(fresh: pytest.MonkeyPatch, switch: str) -> None:
    fresh.setenv("CUDA_INJECTION64_PATH", "/tool.so")
    fresh.setenv(nvtx.SWITCH_VARIABLE, switch)
    with nvtx.phase_range("build"), nvtx.case_range("a/b(x=1)", "a"):
        assert (nvtx._domain() is not None) == (switch == "1")


def test_a_missing_package_is_said_once_and_stops_nothing(fresh: pytest.MonkeyPatch) -> None:
    fresh.setitem(sys.modules, "nvtx", None)
    fresh.setenv(nvtx.SWITCH_VARIABLE, "1")
    with pytest.warns(RuntimeWarning, match="pip install nvtx"), nvtx.phase_range("build"):
        pass
    with nvtx.phase_range("build"):
        pass
