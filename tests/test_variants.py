"""Every variant in the tree, found by looking: right on the CPU over odd shapes, and compiles for two GPUs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import zlib
from collections.abc import Callable

import pytest

from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.errors import UsageError
from opbench.gpu.compile import nvrtc
from opbench.kernels.capability import missing_capability, parse_capability
from opbench.kernels.case import Case
from opbench.kernels.launch import BuildRequest
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant
from opbench.running import targets
from support.builders.compiled import LITTLE_OPTIMISED, SYNTAX_ONLY, compile_all, compile_errors
from support.common import CATALOG, kernel_variants
from support.daily import daily_sample
from support.needs import needs_nvrtc

CUDA = kernel_variants()
VARIANTS = {variant.id: variant for variant in CUDA}


def nothing(case: Case) -> float:
    return 0.0


def covering(
    pairs: list[Case], shows: Callable[[Case], set[object]], price: Callable[[Case], float] = nothing
) -> list[Case]:
    """As few pairs as show everything that all of them show; the one with the most that is new, less its price, comes
    first.
    """
    fresh = [(case, left, price(case)) for case in pairs if (left := shows(case))]
    kept: list[Case] = []
    while fresh := [(case, left, cost) for case, left, cost in fresh if left]:
        best, seen, _ = max(fresh, key=lambda each: len(each[1]) - each[2])
        kept.append(best)
        fresh = [(case, left - seen, cost) for case, left, cost in fresh]
    return kept


def served(case: Case) -> set[tuple[str, str]]:
    """The modes of a case's problem, each with its value."""
    return {(mode, case.problem.scope[mode]) for mode in case.problem.modes()}


WARP = 32


@functools.cache
def examples_of(operator: str) -> list[Operator]:
    """Return the examples of an operator; each of its variants takes the same."""
    return list(CATALOG.operator(operator).examples())


def fitting(variant: Variant) -> list[Case]:
    """Return the examples that a variant runs, in its first config that fits any of them."""
    examples = examples_of(variant.operator)
    by_config = ([Case(variant, config, problem) for problem in examples] for config in variant.configs)
    return next(filter(None, ([case for case in cases if case.unmet_requirement() is None] for cases in by_config)), [])


def price(case: Case) -> float:
    """Half a thing that is shown for each doubling of the emulator's time, which was fitted to measured times."""
    threads, sizes = case.threads(), case.problem.scope
    reduction = case.problem.reduction()
    if {"c", "r", "s"} <= sizes.keys():  # a tile takes the channels of each filter position in steps of 16
        reduction = max(reduction, sizes["r"] * sizes["s"] * math.ceil(sizes["c"] / 16) * 16)
    expected_s = 8e-6 * threads + 8e-9 * case.problem.flops() + 3e-7 * threads * reduction
    return 0.5 * math.log2(1 + expected_s / 0.05)


LAST = {variant.path: variant for variant in CUDA}
"""The last variant of each file. The others share its kernels and headers, and differ by a few macros."""


def kinds(case: Case) -> set[object]:
    """Return what a case's problem covers: values of modes, and axes that are long, odd, a multiple of four or whole
    warps.
    """
    axes = {axis: size for axis, size in case.problem.scope.items() if isinstance(size, int) and size > 1}
    sizes = {(axis, size > WARP, size % 4 == 0, size % WARP == 0) for axis, size in axes.items()}
    return {*served(case), *((axis, place, kind) for axis, *each in sizes for place, kind in enumerate(each))}


@functools.lru_cache(maxsize=1)
def telling(name: str) -> list[Case]:
    """Return two examples in the first config that fits any: together they show the most, and cost the least.

    Each mode's value, each value of a macro, and an axis that is long, odd or a multiple of four count.
    """

    def shows(case: Case) -> set[object]:
        axes = {axis: size for axis, size in case.problem.scope.items() if isinstance(size, int) and size > 1}
        classes = {(axis, kind) for axis, size in axes.items() for kind in (size > WARP, size % 4 == 0)}
        return {None, *served(case), *case.request().macros, *classes}

    pairs = fitting(VARIANTS[name])
    pairs.sort(key=lambda case: case.problem.flops() + case.problem.bytes())
    kept = covering(pairs, shows, price)[:2]
    return kept + [case for case in reversed(pairs) if case not in kept][: 2 - len(kept)]


def more_of_the_module(variant: Variant) -> list[Case]:
    """Return the example that adds the most to the most telling one, and needs no other module."""
    first, *_ = telling(variant.id)
    module, seen = first.request(), kinds(first)
    others = [case for case in fitting(variant) if case != first and case.request() == module]
    return covering(others, lambda case: kinds(case) - seen, price)[:1]


MODULES = 3
"""As many as the check of one variant compiles here, unless its modes or its tuned parameters take more."""


def tuned_values(variant: Variant, seen: set[object]) -> set[tuple[str, object]]:
    """Return for each tuned parameter one value that is not in `seen`, another one each day; with OPBENCH_LONG all.

    Other values of a parameter show the same property again: the kernel is right with another size. NVRTC compiles
    all of them every day.
    """
    values: dict[str, dict[object, None]] = {}
    for config in variant.configs:
        for item in config.items():
            if item not in seen:
                values.setdefault(item[0], {})[item[1]] = None
    if os.environ.get("OPBENCH_LONG"):
        return {(name, value) for name, others in values.items() for value in others}
    return {(name, *daily_sample(list(others), 1, f"{variant.id} {name}")) for name, others in values.items()}


def spread(variant: Variant, pairs: list[Case]) -> list[Case]:
    """As few pairs as show, with the two most telling ones, the day's value of each tuned parameter, each mode's values
    that the variant serves and several values of macros, then each kind of size of each axis.

    The tree has minutes, on two cores: `opbench check --all` takes every pair, and a run checks what it measures. Where
    instructions are interpreted, which takes longer, an example and a random shape stand for all problems.
    """
    examples = set(examples_of(variant.operator))
    first = telling(variant.id)
    today = tuned_values(variant, {item for case in first for item in case.config.items()})

    def shows(case: Case) -> set[object]:
        return {*(today & case.config.items()), *served(case), case.problem in examples}

    def defined(case: Case) -> set[object]:
        """Return the macros with their values, except tuned parameters."""
        return {macro for macro in case.request().macros if macro[0] not in variant.tune}

    seen = set().union(*map(shows, first))
    kept = first + covering(pairs, lambda case: shows(case) - seen, price)
    if len(kept) < MODULES:
        macros = set().union(*map(defined, kept))
        kept += covering(pairs, lambda case: defined(case) - macros, price)[: MODULES - len(kept)]
    if not variant.compute_capability:
        built = {case.request() for case in kept}
        covered = set().union(*map(kinds, kept))
        kept += covering([case for case in pairs if case.request() in built], lambda c: kinds(c) - covered, price)
    if variant is LAST[variant.path]:
        kept += [case for case in more_of_the_module(variant) if case not in kept]
    return [case for case in kept if case != first[0]]


def check(variant: Variant, cases: list[Case], seed: int) -> None:
    """Demand that each case runs here, is right, and was counted where the backend traces it."""
    session = Session(open_backend("cpu"), seed)
    assert [reason for case in cases if (reason := session.unsupported_reason(case))] == []
    for case in cases:
        checked = session.check(case)
        assert checked.verdict.right, f"{case.name}: {checked.verdict.reason}"
        assert (checked.traffic is not None) == session.is_traced(case)
        if checked.traffic:
            copied = any(step.tensor_maps for step in case.launches(session.sm_count))  # TMA requests nothing
            assert checked.traffic.complete and (copied or checked.traffic.total("requests", space="global") > 0)
            assert all(line.line and line.requests <= line.upper_requests for line in checked.traffic.lines)
    session.release()


@pytest.mark.parametrize("variant", LAST.values(), ids=lambda v: v.id)
def test_right_on_its_most_telling_example(variant: Variant) -> None:
    check(variant, telling(variant.id)[:1], seed=0)


OTHERS = [variant for variant in CUDA if variant is not LAST[variant.path]]


@pytest.mark.parametrize("variant", OTHERS, ids=lambda v: v.id)
def test_another_variant_of_a_file_is_right_on_its_most_telling_example(variant: Variant) -> None:
    check(variant, telling(variant.id)[:1], seed=0)


@pytest.mark.parametrize("variant", CUDA, ids=lambda v: v.id)
def test_right_on_examples_and_random_shapes(variant: Variant) -> None:
    """The seed differs by variant, so that together they see many shapes, yet a failure repeats.

    Of a variant with few examples nothing may be left that its most telling ones have not shown.
    """
    seed = zlib.crc32(variant.id.encode()) % 1000
    check(variant, spread(variant, targets.cases_to_check(CATALOG, variant.id, 2, seed)), seed)


USERS_GPUS = ("sm_61", "sm_75", "sm_86", "sm_89", "sm_90", "sm_120")
"""Pascal, Turing, Ampere, Ada, Hopper and Blackwell as they stand on desks."""


@needs_nvrtc
@pytest.mark.parametrize("arch", USERS_GPUS)
def test_variants_compile_for_the_gpus_that_users_have(arch: str) -> None:
    """The first config of a sample of the variants, another one each day; with OPBENCH_LONG of all."""
    have = parse_capability(arch)
    assert have is not None
    requests = {}
    for variant in (v for v in CUDA if not missing_capability(have, v.compute_capability)):
        examples = examples_of(variant.operator)
        cases = (Case(variant, variant.configs[0], example) for example in examples)
        if first := next((case for case in cases if case.unmet_requirement() is None), None):
            requests[first.request()] = variant.id
    assert len(requests) > 150
    if not os.environ.get("OPBENCH_LONG"):
        chosen = daily_sample(sorted(requests, key=requests.__getitem__), 8, arch)
        requests = {request: requests[request] for request in chosen}
    named = {request: nvrtc.architecture(have, request) for request in requests}
    compiled = {}
    for full in sorted(set(named.values())):
        compiled |= compile_all([request for request in named if named[request] == full], full)
    assert {requests[r]: str(e) for r, e in compiled.items() if isinstance(e, Exception)} == {}


WITH_INSTRUCTIONS = [
    variant
    for variant in CUDA
    if any("asm" in source.text for source in variant.sources)
    and float(variant.compute_capability.removesuffix("a") or 0) <= 8.0
]


SPILLED_BYTES = {
    "conv2d/nhwc_wgmma_f16": 8,
    "conv2d_wgrad/nhwc_mma_3xtf32_split": 4,
    "linear_wgrad/mma_3xtf32": 4,
    "linear_wgrad/mma_3xtf32_split": 4,
}
"""By a variant of headers that may: two registers in tiles of 256 filters, once a tile, behind the last product; one
register in a 64x64 tile whose rows are not aligned.
"""


def require_clean_compilation(variant: Variant, requests: set[BuildRequest], arch: str) -> None:
    """Demand that each module compiles without a warning, and spills no registers where it is made of headers."""
    found = compile_all(requests, arch)
    assert [str(e) for e in found.values() if isinstance(e, Exception)] == []
    assert not any("(C75" in line for made in found.values() for line in getattr(made, "warnings", ()))
    if len(variant.sources) > 1 and variant.compute_capability:
        made = [one for one in found.values() if isinstance(one, nvrtc.CompiledModule)]
        assert max(sum(one.spill_bytes.values()) for one in made) <= SPILLED_BYTES.get(variant.id, 0)


def cheapest(variant: Variant) -> str:
    """Return the option with which NVRTC finds the errors of a variant in the least time.

    Without instructions of its own a variant is plain C++, in which only the front end finds errors. ptxas finds those
    of instructions.
    """
    return LITTLE_OPTIMISED if any("asm" in source.text for source in variant.sources) else SYNTAX_ONLY


@pytest.fixture(scope="session")
def selected(request: pytest.FixtureRequest) -> set[str]:
    """The names of the tests that this session runs, with their parameters."""
    return {item.name for item in request.session.items}


@needs_nvrtc
@pytest.mark.parametrize("variant", LAST.values(), ids=lambda v: v.id)
def test_the_last_variant_of_a_file_compiles_for_hopper(variant: Variant, selected: set[str]) -> None:
    """In its first config: `test_compiles_for_the_gpu_without_one` compiles every variant, and looks at the result."""
    if f"test_compiles_for_the_gpu_without_one[{variant.id}-sm_90a]" in selected:
        return  # it compiles the same module and asks more of it
    assert compile_errors([fitting(variant)[0].request()], "sm_90a", cheapest(variant)) == []


def of_each_mode(variant: Variant) -> list[Case]:
    """Return a case for each combination of modes that the variant supports, on the first example that allows it."""
    operator, found = CATALOG.operator(variant.operator), []
    supported = {mode: variant.supports.get(mode, (value,)) for mode, value in operator.modes().items()}
    for values in itertools.product(*supported.values()):
        modes = dict(zip(supported, values, strict=True))
        for example, config in itertools.product(examples_of(variant.operator), variant.configs):
            with contextlib.suppress(UsageError):  # sizes of this example that its modes do not allow
                case = Case(variant, config, operator.from_axes({**example.axes, **modes}))
                if case.unmet_requirement() is None:
                    found.append(case)
                    break
    return found


@needs_nvrtc
@pytest.mark.parametrize("variant", CUDA, ids=lambda variant: variant.id)
def test_each_combination_of_modes_has_valid_syntax(variant: Variant) -> None:
    """Examples have few of them, and an `#if` of another one may hide a name that is not declared."""
    cases = of_each_mode(variant)
    assert cases, "no example fits any combination of modes"
    assert compile_errors([case.request() for case in cases], "sm_90a", SYNTAX_ONLY) == []


@needs_nvrtc
@pytest.mark.parametrize(
    ("variant", "arch"),
    [*((v, "sm_90a") for v in CUDA), *((v, "sm_80") for v in WITH_INSTRUCTIONS)],
    ids=lambda value: getattr(value, "id", value),
)
def test_compiles_for_the_gpu_without_one(variant: Variant, arch: str) -> None:
    """Each value of each tuned parameter, on the first example that supports it: what g++ lets pass, NVRTC may not.

    The first config of each variant is compiled to the end. So is one more, another one each day, of the last variant
    of a file with instructions of its own, whose registers differ by config. The rest is compiled as `cheapest` says:
    the cpu backend limits shared memory as ptxas does, in `test_right_on_examples_and_random_shapes`. With
    OPBENCH_LONG all is compiled to the end.

    For sm_80 the first config of those with instructions: plain C++ is the same for every GPU.
    """
    examples = examples_of(variant.operator)
    firsts = []
    for config in variant.configs[: 1 if arch == "sm_80" else None]:
        cases = (Case(variant, config, problem) for problem in examples)
        firsts += [first] if (first := next((case for case in cases if case.unmet_requirement() is None), None)) else []
    requests = [case.request() for case in covering(firsts, lambda case: {None, *case.config.items()})]
    assert requests, "no example fits any config"
    option = cheapest(variant)
    if os.environ.get("OPBENCH_LONG"):
        whole = requests
    elif arch == "sm_90a":
        others = requests[1:] if option == LITTLE_OPTIMISED and variant is LAST[variant.path] else []
        whole = [requests[0], *daily_sample(others, min(1, len(others)), variant.id)]
    else:
        whole = []
    if whole:
        require_clean_compilation(variant, set(whole), arch)
    assert compile_errors([request for request in requests if request not in whole], arch, option) == []
