"""Errors of gradients and of training, planted one by one: each is caught by the check that stands beside it.

Errors of kernels are the files of `tests/cheats/gradients/`, each with one wrong line; errors of references, rules and
graphs are planted into the running program. Every check passes what it checks when the error is taken out again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.errors import UsageError
from opbench.graph import gradients, training
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.kernels.case import Case
from opbench.kernels.gradient import Gradient
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays
from opbench.kernels.variant import Variant
from opbench.results.result import Verdict
from support.checks.gradients import (
    CATALOG,
    check_adam_moves_by_the_rate,
    check_adjoint,
    check_differences,
    check_differences_of_the_loss,
)
from support.checks.graphs import check_slopes, check_slopes_of_a_step, check_the_loss, check_the_optimizer_waits
from support.common import CHEATS, said

KERNELS = sorted((CHEATS / "gradients").glob("*.cu"))
CAUGHT_BY = {
    "value": "wrong-result: ",
    "whole numbers": "as the inputs are small whole numbers",
    "unwritten memory": "uninitialised-global",
}
"""How each check of a kernel says what it has found; whole numbers are looked at where normals came out right."""


# Errors of kernels ----------------------------------------------------------------------------------------------------


def repaired(path: Path, folder: Path) -> Path:
    """A copy whose line `// here` is the one that the file says is right."""
    (wrong,) = (line for line in path.read_text().splitlines() if "// here" in line)
    copy = folder / path.name
    copy.write_text(path.read_text().replace(wrong, said(path, "right")))
    return copy


def verdicts(variant: Variant) -> Iterator[Verdict]:
    """Yield the verdict of each example that the variant runs."""
    session = Session(open_backend("cpu"))
    try:
        for problem in CATALOG.operator(variant.operator).examples():
            case = Case(variant, variant.configs[0], problem)
            if session.unsupported_reason(case) is None:
                yield session.check(case).verdict
    finally:
        session.release()


@pytest.mark.parametrize("path", KERNELS, ids=lambda p: f"{p.stem}: {said(p, 'expect')}")
def test_an_error_in_a_kernel_is_caught_by_its_check(path: Path, tmp_path: Path) -> None:
    """What whole numbers catch has passed on normals, at every example."""
    wrong = [v.reason for v in verdicts(CATALOG.variant_file(path)) if not v.right]
    assert wrong, "no check has caught it"
    for reason in wrong:
        assert [check for check, words in CAUGHT_BY.items() if words in reason][-1:] == [said(path, "expect")], reason
    right = [v.right for v in verdicts(CATALOG.variant_file(repaired(path, tmp_path)))]
    assert right and all(right), "without its error it is right"


def symmetric(weight: np.ndarray) -> np.ndarray:
    """A filter that looks the same upside down."""
    return weight + weight[:, :, ::-1, ::-1]


def test_a_filter_not_rotated_shows_only_where_filters_are_not_symmetric() -> None:
    """Why inputs are random: a hand-made filter of ones or a blur would let it pass."""
    variant = CATALOG.variant_file(CHEATS / "gradients" / "convolves_with_a_filter_not_rotated.cu")
    problem = DGRAD
    session = Session(open_backend("cpu"))
    inputs = problem.make_inputs(1)
    for given, right in ((inputs, False), ({**inputs, "weight": symmetric(inputs["weight"])}, True)):
        ready = session.bind(Case(variant, variant.configs[0], problem), session.prepare(problem, given))
        assert session.run(ready, "normal").verdict.right == right
        session.backend.free(ready.workspace)
    session.release()


# Errors of references, rules and graphs -------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """An error, how it gets in, and the check that must catch it, in words of its own."""

    what: str
    plant: Plant
    check: Callable[[], None]
    says: str

    @property
    def id(self) -> str:
        """The error and the name of its check."""
        check = self.check.func if isinstance(self.check, functools.partial) else self.check
        return f"{self.what}: {check.__name__.removeprefix('check_')}"


def problem_of(operator: str, **axes: int | str) -> Operator:
    return CATALOG.operator(operator).from_axes(axes)


CONV = problem_of("conv2d", n=2, c=3, h=8, w=7, k=4, r=3, s=3, padding=1)
DGRAD = problem_of("conv2d_dgrad", n=2, c=3, h=8, w=7, k=4, r=3, s=3, padding=1)
POOL = problem_of("avgpool2d", n=1, c=3, h=7, w=9, window=3, stride=2, padding=1, divisor="inside")
NORM = problem_of("batchnorm2d_train", n=2, c=3, h=4, w=5)
DROPOUT = problem_of("dropout", n=1021, training="yes", counter="step")
ENTROPY = problem_of("softmax_cross_entropy", rows=5, cols=3)


def in_reference(operator: str, **given: Callable[[Operator, np.ndarray], np.ndarray]) -> Plant:
    """Inputs that the operator's reference sees changed."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        cls = CATALOG.operator(operator)
        original = cls.reference

        def reference(self: Operator, **tensors: np.ndarray) -> object:
            return original(self, **tensors | {name: change(self, tensors[name]) for name, change in given.items()})

        patch.setattr(cls, "reference", reference)

    return plant


def in_results(operator: str, change: Callable[[Operator, Arrays, Arrays], Mapping[str, np.ndarray]]) -> Plant:
    """Results that the operator's reference gives changed, from its inputs and the right ones."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        cls = CATALOG.operator(operator)
        original = cls.reference

        def reference(self: Operator, **tensors: np.ndarray) -> object:
            result = original(self, **tensors)
            found = result if isinstance(result, dict) else {next(iter(self.outputs)): result}
            return {**found, **change(self, tensors, found)}

        patch.setattr(cls, "reference", reference)

    return plant


def without_its_first_column(problem: Operator, image: np.ndarray) -> np.ndarray:
    image = image.copy()
    image[..., 0] = 0.0
    return image


def sums_for_means(problem: Operator, given: Arrays, right: Arrays) -> Arrays:
    """dx of a batch norm with 1/M left out."""
    shape = (-1, 1, 1)
    xhat = (given["x"] - given["mean"].reshape(shape)) * given["rstd"].reshape(shape)
    rest = given["dout"] - right["dshift"].reshape(shape) - xhat * right["dscale"].reshape(shape)
    return {"dx": rest * (given["scale"] * given["rstd"]).reshape(shape)}


def corrections_of_the_step_before(problem: Operator, given: Arrays, right: Arrays) -> Arrays:
    corrections = 1 / (1 - given["hyper"][:2] ** max(1, int(given["step"][0])))
    return {"rates": np.concatenate([right["rates"][:1], corrections, right["rates"][3:]])}


def at_zero_too(problem: Operator, given: Arrays, right: Arrays) -> Arrays:
    return {"dx": np.where(given["out"] >= 0.0, given["dout"], 0.0)}


def later_is_larger(problem: Operator, x: np.ndarray) -> np.ndarray:
    """Of equal elements the last is the maximum."""
    return x + 1e-12 * np.arange(x.size).reshape(x.shape)


def whole_windows(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a mean divides by the size of a window, wherever it lies."""

    def positions(problem: Operator, size: int, outputs: int, like: np.ndarray) -> np.ndarray:
        return np.full(outputs, float(problem.scope["window"]))

    patch.setattr(CATALOG.operator("avgpool2d_backward"), "_positions", positions)


def another_mask(patch: pytest.MonkeyPatch) -> None:
    """The rule of dropout draws by another key."""

    def rule(self: Operator, wanted: frozenset[str]) -> list[Gradient]:
        return [Gradient("dropout", {**self.axes, "seed": 2}, {"x": "d.out", "step": "step"}, {"out": "d.x"})]

    patch.setattr(CATALOG.operator("dropout"), "gradients", rule)


def mask_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    """The backward pass reads the counter that the step has begun with."""
    original = training.append_backward

    def differentiated(graph: Graph, *rest: object) -> tuple[Graph, dict[str, str]]:
        whole, found = original(graph, *rest)  # type: ignore[arg-type]
        nodes = [
            replace(node, inputs={**node.inputs, "step": "step"}) if node.name == "drop.dropout" else node
            for node in whole.nodes
        ]
        assert nodes != list(whole.nodes)
        return replace(whole, nodes=tuple(nodes)), found

    patch.setattr(training, "append_backward", differentiated)


def last_reader_only(patch: pytest.MonkeyPatch) -> None:
    """Where a value has several readers, the gradient of one takes the place of the other's."""

    def add_part(self: gradients._Backward, name: str, gradient: str) -> None:
        origin = self._origin(name)
        self.reader_gradients[origin] = [self._reshaped_gradient(gradient, origin)]

    patch.setattr(gradients._Backward, "_add_reader_gradient", add_part)


def once_per_node(patch: pytest.MonkeyPatch) -> None:
    """A node that reads a value by two tensors gives it the gradient of the first."""
    add_part, pass_back = gradients._Backward._add_reader_gradient, gradients._Backward.add_gradients_of
    given: set[str] = set()

    def one_node(self: gradients._Backward, node: object) -> None:
        given.clear()
        pass_back(self, node)  # type: ignore[arg-type]

    def first(self: gradients._Backward, name: str, gradient: str) -> None:
        if self._origin(name) not in given:
            add_part(self, name, gradient)
        given.add(self._origin(name))

    patch.setattr(gradients._Backward, "add_gradients_of", one_node)
    patch.setattr(gradients._Backward, "_add_reader_gradient", first)


def writes_before_reads(patch: pytest.MonkeyPatch) -> None:
    """Who writes a state anew waits for producers alone, and not for those who read the old one."""
    needs = Graph._predecessors

    def producers(self: Graph) -> dict[str, list[str]]:
        found = needs(self)
        outputs = {node.name: {self.base(v) for v in node.outputs.values()} for node in self.nodes}
        for node in self.nodes:
            if any(self.values[v].updates for v in node.outputs.values()):
                read = {self.base(v) for v in node.inputs.values()}
                found[node.name] = [before for before in found[node.name] if outputs[before] & read]
        return found

    patch.setattr(Graph, "_predecessors", producers)


def check_slopes_of_a_square() -> None:
    """One node that reads a value twice."""
    net = Builder("square")
    x = net.input("x", 7)
    check_slopes(net.graph(net.elementwise("mul", x, x)), ["x"])


def check_a_variant(operator: str, variant: str) -> None:
    """A reference that is wrong is at odds with variants, which were not derived from it."""
    for verdict in verdicts(CATALOG.variant(operator, variant)):
        assert verdict.right, verdict.reason


PLANTED = [
    Planted(
        "filter not rotated",
        in_reference("conv2d_dgrad", weight=lambda problem, weight: weight[:, :, ::-1, ::-1]),
        functools.partial(check_adjoint, CONV),
        "image: .* as of an adjoint",
    ),
    Planted(
        "filter not rotated",
        in_reference("conv2d_dgrad", weight=lambda problem, weight: weight[:, :, ::-1, ::-1]),
        functools.partial(check_differences, CONV),
        "is not the slope",
    ),
    Planted(
        "border tap dropped",
        in_reference("conv2d_wgrad", image=without_its_first_column),
        functools.partial(check_adjoint, CONV),
        "weight: .* as of an adjoint",
    ),
    Planted(
        "tie of a maximum to the last",
        in_reference("maxpool2d_backward", x=later_is_larger),
        functools.partial(check_a_variant, "maxpool2d_backward", "gather"),
        "wrong-result: dx",
    ),
    Planted(
        "ReLU's mask >= instead of >",
        in_results("relu_backward", at_zero_too),
        functools.partial(check_a_variant, "relu_backward", "scalar"),
        "wrong-result: dx",
    ),
    Planted(
        "1/M of batch norm forgotten",
        in_results("batchnorm2d_backward", sums_for_means),
        functools.partial(check_differences, NORM),
        "is not the slope",
    ),
    Planted(
        "cut-off windows divided by whole ones",
        whole_windows,
        functools.partial(check_adjoint, POOL),
        "as of an adjoint",
    ),
    Planted(
        "another mask in dropout's gradient",
        another_mask,
        functools.partial(check_differences, DROPOUT),
        "is not the slope",
    ),
    Planted(
        "dropout's mask of the step before",
        mask_of_the_step_before,
        functools.partial(check_slopes_of_a_step, "dropping"),
        "the graph has a cycle: .*drop",
    ),
    Planted(
        "loss's gradient divided by the rows twice",
        in_results(
            "softmax_cross_entropy", lambda problem, given, right: {"dlogits": right["dlogits"] / problem.scope["rows"]}
        ),
        functools.partial(check_differences_of_the_loss, ENTROPY),
        "is not the slope",
    ),
    Planted(
        "loss and gradient divided by the rows twice",
        in_results(
            "softmax_cross_entropy",
            lambda problem, given, right: {n: a / problem.scope["rows"] for n, a in right.items()},
        ),
        check_the_loss,
        "of the network as it infers",
    ),
    Planted(
        "second reader's gradient lost",
        last_reader_only,
        functools.partial(check_slopes_of_a_step, "branching"),
        "conv1.* is not the slope",
    ),
    Planted("gradient of a value read twice by one node", once_per_node, check_slopes_of_a_square, "is not the slope"),
    Planted(
        "bias corrected one step late",
        in_results("tick", corrections_of_the_step_before),
        check_adam_moves_by_the_rate,
        "step 2 of Adam",
    ),
    Planted(
        "optimizer before the last reader of the old weights",
        writes_before_reads,
        check_the_optimizer_waits,
        "the optimizer does not wait for .*fc",
    ),
]


@pytest.mark.parametrize("planted", [pytest.param(p, id=p.id) for p in PLANTED])
def test_an_error_is_caught_by_its_check(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by nothing that a failing program would raise, too: in the check's own words."""
    planted.check()
    with monkeypatch.context() as patch:
        planted.plant(patch)
        with pytest.raises((AssertionError, UsageError), match=planted.says):
            planted.check()


def test_none_of_the_errors_is_lost_with_a_file() -> None:
    assert len(KERNELS) >= 12 and len({p.what for p in PLANTED}) >= 12
