"""Calls that are recognised: only such as are in every respect what was remembered, with nobody watching.

OPBENCH_TEST_DEVICE=cuda runs them on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

import pytest

torch = pytest.importorskip("torch", reason="make torch-tests installs it")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import opbench.torch as ours  # noqa: E402
from opbench.errors import UsageError  # noqa: E402
from opbench.networks.pytorch import call_guards  # noqa: E402
from opbench.networks.pytorch import layers as registered  # noqa: E402
from support.builders.torch_layers import DEVICE, Layer, layers, off  # noqa: E402
from support.checks.errors import refuses  # noqa: E402
from support.fakes.unlaunched import EmulatedRunner, UnlaunchedRunner, unlaunched  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def ranked() -> Iterator[None]:
    """Variants as opbench ranks them, in full precision; nothing is known yet."""
    ours.use(missing="ranked", precision="f32")
    yield
    ours.use()


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each call that was not recognised: whether it went to the kernels nevertheless."""
    seen: list[bool] = []
    eager = registered.is_plain_eager_call

    def noted(tensors: Sequence[torch.Tensor | None]) -> bool:
        seen.append(eager(tensors))
        return seen[-1]

    monkeypatch.setattr(registered, "is_plain_eager_call", noted)
    return seen


def matrix() -> torch.Tensor:
    """Small, and the same each time."""
    return torch.linspace(-1, 1, 12, device=DEVICE).reshape(3, 4)


@pytest.mark.parametrize("layer", layers(), ids=lambda layer: layer.name)
def test_the_second_call_of_a_form_is_recognised_and_gives_the_same(layer: Layer, long_ways: list[bool]) -> None:
    results = []
    for _ in range(2):
        tensors = layer.cast(torch.float32)
        out = layer.mine(*tensors)
        (out * torch.linspace(0, 1, out.numel(), device=DEVICE).reshape(out.shape)).sum().backward()
        results.append([out, *(t.grad for t in tensors)])
    assert long_ways == [True], "the first alone"
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.equal(layer.mine(*tensors), out)
        assert torch.equal(layer.mine(*layer.cast(torch.float32, grad=False)), out)
    assert len(long_ways) == 2, "what was differentiated is recognised without gradients, what wants none is new"


def test_gradients_come_where_the_first_call_had_them_disabled(long_ways: list[bool]) -> None:
    x = matrix().requires_grad_()
    with torch.no_grad():
        assert not ours.softmax(x).requires_grad and not ours.softmax(x).requires_grad
    assert long_ways == [True]
    for _ in range(2):
        assert ours.softmax(x).requires_grad
    with torch.inference_mode():
        assert not ours.softmax(x).requires_grad
    assert long_ways == [True] * 3


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.T.contiguous().T,
        lambda x: x[:2],
        lambda x: x.reshape(4, 3),
        lambda x: x.repeat(1, 2)[:, ::2],
        lambda x: x.bfloat16(),
        lambda x: x.requires_grad_(),
        torch.nn.Parameter,
        lambda x: x.double(),
        lambda x: torch._neg_view(-x),
        lambda x: torch.complex(x, -x).conj().imag,
    ],
    ids=["strides", "rows", "shape", "every second", "type", "gradient", "parameter", "f64", "negative", "conjugate"],
)
def test_another_form_is_not_taken_for_one_that_is_known(
    change: Callable[[torch.Tensor], torch.Tensor], long_ways: list[bool]
) -> None:
    ours.softmax(matrix())
    other = change(matrix())
    if other.dtype == torch.float64:
        with refuses("other-dtype", "softmax", value="torch.float64"):
            ours.softmax(other)
    else:
        tolerance = 1e-2 if other.dtype == torch.bfloat16 else 1e-6
        assert off(ours.softmax(other), functional.softmax(other.double(), -1)) < tolerance
    assert len(long_ways) == 2


class Passing(TorchDispatchMode):
    """Sees every call."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "opbench" in str(function):
            self.seen.append(str(function))
        return function(*args, **(kwargs or {}))

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []


@pytest.mark.parametrize("grad", [False, True])
def test_who_watches_sees_the_operator(grad: bool, long_ways: list[bool]) -> None:
    x = matrix().requires_grad_(grad)
    ours.softmax(x)
    assert long_ways == [True]
    with Passing() as mode:
        ours.softmax(x)
    assert mode.seen == ["opbench.softmax.default"]
    with torch.autograd.profiler.profile() as profile:
        ours.softmax(x)
    assert "opbench::softmax" in {event.name for event in profile.function_events}
    graph = make_fx(lambda t: ours.softmax(t))(x.detach())  # noqa: PLW0108 (PyTorch 2.11 reads its arguments)
    assert any(node.target is torch.ops.opbench.softmax.default for node in graph.graph.nodes)
    traced = torch.jit.trace(ours.softmax, x.detach(), check_trace=False)
    assert "opbench::softmax" in str(traced.graph)
    assert long_ways[1:] == [False] * 4
    ours.softmax(x)
    assert len(long_ways) == 5, "and afterwards it is recognised again"


@pytest.mark.filterwarnings("ignore:.*performance drop")
def test_transforms_see_the_operator_too(long_ways: list[bool]) -> None:
    x = matrix()
    ours.softmax(x), ours.softmax(x[0])
    long_ways.clear()
    assert off(torch.vmap(ours.softmax)(x), functional.softmax(x.double(), -1)) < 1e-6
    with pytest.raises(RuntimeError, match="functorch transforms"):  # PyTorch's word on every operator of a library's
        torch.func.grad(lambda t: ours.softmax(t).sum())(x)
    with torch.device("cpu"):
        ours.softmax(x)
    assert long_ways == [False] * 3


@pytest.mark.parametrize("first", [False, True], ids=["known before", "first under autocast"])
def test_autocast_is_seen(first: bool, long_ways: list[bool]) -> None:
    x, w = matrix(), matrix()
    if not first:
        ours.linear(x, w)
    for dtype in (torch.bfloat16, torch.float32):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16):
            assert ours.linear(x, w).dtype == dtype and ours.softmax(x.to(dtype)).dtype == torch.float32
            assert ours.l1_loss(x.to(dtype), w.to(dtype)).dtype == torch.float32
    assert ours.l1_loss(x.bfloat16(), w.bfloat16()).dtype == torch.bfloat16


def test_one_tensor_given_twice_is_not_two(long_ways: list[bool]) -> None:
    x, w = (matrix().requires_grad_() for _ in range(2))
    for _ in range(2):
        (gradient,) = torch.autograd.grad(ours.linear(x, x).sum(), x)
        assert off(gradient, 2 * x.sum(0, keepdim=True).expand(3, 4).double()) < 1e-5
    assert long_ways == [True]
    for _ in range(2):
        gradients = torch.autograd.grad(ours.linear(x, w).sum(), (x, w))
        assert off(gradients[0], w.sum(0, keepdim=True).expand(3, 4).double()) < 1e-5
    ours.linear(x, w, torch.zeros(3, device=DEVICE)), ours.linear(x, x)
    assert long_ways == [True] * 3


def test_what_is_chosen_anew_is_recognised_no_more(long_ways: list[bool]) -> None:
    x = matrix()
    ours.softmax(x)
    ours.use(missing="ranked")
    ours.softmax(x)
    assert long_ways == [True] * 2


def test_calls_without_pytorchs_guards_go_the_long_way(monkeypatch: pytest.MonkeyPatch, long_ways: list[bool]) -> None:
    monkeypatch.setattr(call_guards, "_trusted", None)
    monkeypatch.setattr(call_guards, "_guards", lambda *tensors, **more: (_ for _ in ()).throw(TypeError("changed")))
    x = matrix().requires_grad_()
    for _ in range(2):
        ours.softmax(x).sum().backward()
    assert long_ways == [True] * 2 and not call_guards.KNOWN_CALLS


def test_forms_that_are_too_many_go_the_long_way(long_ways: list[bool]) -> None:
    x = matrix()
    weights = [torch.ones(rows, 4, device=DEVICE) for rows in range(1, call_guards.MAX_FORMS + 3)]
    for _ in range(2):
        for w in weights:
            assert ours.linear(x, w).shape == (3, len(w))
    assert len(long_ways) == len(weights) + 2


@pytest.mark.skipif(DEVICE != "cpu", reason="takes tensors of the host for those of a GPU")
@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])
def test_statistics_that_kernels_write_follow_wherever_they_lie(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unlaunched(monkeypatch)
    written = []

    def launch_on(self: UnlaunchedRunner, addresses: list[int], stream: int) -> None:
        for place in addresses[-2:]:
            assert place % 16 == 0
            ctypes.memset(place, 0, 12)
            written.append(place)

    monkeypatch.setattr(UnlaunchedRunner, "_first_launch", launch_on)
    x = torch.randn(2, 3, 4, 4)
    for count in (1, 2):
        mean, variance = (torch.ones(3 + offset)[offset:] for _ in range(2))
        ours.batchnorm2d(x, mean, variance, training=True)
        assert not mean.any() and not variance.any() and len(written) == 2 * count


@pytest.mark.skipif(DEVICE != "cpu", reason="takes tensors of the host for those of a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("layer", layers(), ids=lambda layer: layer.name)
def test_calls_by_address_are_right_both_ways(
    layer: Layer, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, long_ways: list[bool]
) -> None:
    if dtype == torch.bfloat16 and layer.name.startswith("batchnorm"):
        layer = layer._replace(mine=lambda x, w, b: ours.batchnorm2d(x, None, None, w.float(), b.float(), True))
    unlaunched(monkeypatch, EmulatedRunner)
    looked: list[str] = []
    input_gradients = registered.LayerOperator.input_gradients

    def noted(self: registered.LayerOperator, *arguments: object) -> object:
        looked.append(self.name)
        return input_gradients(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(registered.LayerOperator, "input_gradients", noted)
    torch.manual_seed(5)
    for _ in range(3):
        mine = [torch.randn_like(t, dtype=dtype).requires_grad_() for t in layer.tensors]
        right = [t.detach().double().requires_grad_() for t in mine]
        out, other = layer.mine(*mine), layer.theirs(*right)
        weights = torch.randn_like(out)
        gradients = torch.autograd.grad(out, mine, weights)
        expected = torch.autograd.grad(other, right, weights.double())
        tolerance = 2e-5 if dtype == torch.float32 else 3e-2
        for one, exact in zip((out, *gradients), (other, *expected), strict=True):
            assert one.shape == exact.shape and one.dtype == dtype and off(one, exact) < tolerance
    by_kernels = "l1_loss" not in layer.name  # whose gradient is there, to be multiplied
    assert long_ways == [True] and len(looked) == by_kernels, "the first alone"


@pytest.mark.skipif(DEVICE != "cpu", reason="takes tensors of the host for those of a GPU")
@pytest.mark.parametrize(
    "change",
    [
        lambda g: g,
        lambda g: g.T.contiguous().T,
        lambda g: g[:1].expand(3, 5),
        lambda g: torch.cat([g.new_zeros(1), g.flatten()])[1:].view(3, 5),
        lambda g: torch._neg_view(-g),
        lambda g: torch.nn.Parameter(g).requires_grad_(),
    ],
    ids=["plain", "strides", "expanded", "misaligned", "negative", "wants a gradient"],
)
def test_gradients_may_lie_anywhere(
    change: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlaunched(monkeypatch, EmulatedRunner)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    for _ in range(2):
        for own in (lambda g: g, change):
            g = own(torch.randn(3, 5))
            found = torch.autograd.grad(ours.linear(x, w), (x, w), g)
            right = torch.autograd.grad(functional.linear(x.double(), w.double()), (x, w), g.double())
            assert all(off(one, other) < 1e-5 for one, other in zip(found, right, strict=True))
        (once,) = torch.autograd.grad(ours.linear(x, w), x, torch.randn(3, 5), create_graph=True)
        with pytest.raises((UsageError, RuntimeError), match=r"linear_dgrad.* has no gradient"):
            once.sum().backward()
