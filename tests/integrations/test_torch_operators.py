"""opbench's layers in PyTorch: results and gradients against float64, and every way in which PyTorch may call them.

CI has no PyTorch: `make torch-tests` installs it and runs these. OPBENCH_TEST_DEVICE=cuda runs them on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="make torch-tests installs it")

from torch.nn import functional  # noqa: E402
from torch_layers import DEVICE, LAST, Layer, drawn, layers, off  # noqa: E402

import opbench.torch as ours  # noqa: E402
from opbench.errors import UsageError  # noqa: E402
from opbench.integrations.pytorch import functions  # noqa: E402
from opbench.integrations.pytorch import layers as registered  # noqa: E402

LAYERS = layers()
CONTIGUOUS = torch.contiguous_format, LAST
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True, scope="module")
def ranked() -> Iterator[None]:
    """Variants as opbench ranks them, in full precision; nothing is measured."""
    ours.use(missing="ranked", precision="f32")
    yield
    ours.use()


def both(layer: Layer, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The result and all gradients, ours in a type and PyTorch's in float64 from the same numbers."""
    mine = layer.cast(dtype)
    theirs = [t.detach().double().requires_grad_() for t in mine]
    out, right = layer.mine(*mine), layer.theirs(*theirs)
    weights = torch.randn(right.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    (out.float() * weights).sum().backward()
    (right * weights.double()).sum().backward()
    return [out, *(t.grad for t in mine)], [right, *(t.grad for t in theirs)]  # type: ignore[list-item]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_results_and_gradients_are_those_of_float64(layer: Layer, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and layer.name.startswith("batchnorm"):
        parts = layer.tensors[1:]
        layer = layer._replace(
            mine=lambda x, w, b: layer_of(x, w.float(), b.float()),
            tensors=[layer.tensors[0], *parts],
        )
    found, right = both(layer, dtype)
    for mine, theirs in zip(found, right, strict=True):
        assert mine.shape == theirs.shape and off(mine, theirs) < TOLERANCE[dtype], layer.name


def layer_of(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A batch norm in training, whose parameters are float32 whatever images are stored in."""
    return ours.batchnorm2d(x, None, None, w, b, training=True)


@pytest.mark.parametrize("layer", layers(dense=False), ids=lambda layer: layer.name)
def test_what_does_not_lie_densely_is_right_too(layer: Layer) -> None:
    mine = layer.tensors
    assert not mine[0].is_contiguous() and not mine[0].is_contiguous(memory_format=CONTIGUOUS[mine[0].dim() == 4])
    right = layer.theirs(*[t.double() for t in mine])
    assert off(layer.mine(*mine), right) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if "axis" not in layer.name], ids=lambda layer: layer.name)
def test_opcheck(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own four: schema, registration of gradients, fake kernels, and AOT dispatch with free shapes."""
    seen = []

    def noted(name: str, *arguments: object) -> object:
        seen.append((operator := registered._overloads[name], arguments))
        return operator(*arguments)

    monkeypatch.setattr(functions, "call", noted)
    layer.mine(*layer.cast(torch.float32))
    ((operator, arguments),) = seen
    fresh = tuple(a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments)
    assert set(torch.library.opcheck(operator, fresh).values()) == {"SUCCESS"}


def test_opcheck_of_any_problem() -> None:
    out, dout = torch.rand(3, 4, device=DEVICE), torch.randn(3, 4, device=DEVICE)
    compute = torch.ops.opbench.compute.default
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    assert set(torch.library.opcheck(compute, ("softmax", "(rows=3,cols=4)", [x])).values()) == {"SUCCESS"}
    backward = ("softmax_backward", "(rows=3,cols=4)", [out, dout])
    assert set(torch.library.opcheck(compute, backward).values()) == {"SUCCESS"}


def network(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every layer one after the other."""
    y = ours.conv2d(x, w, b, 1, 1, relu=True)
    y = ours.batchnorm2d(y, None, None, None, None, training=True)
    y = ours.maxpool2d(y, 2)
    y = ours.softmax(ours.linear(y.flatten(1), v))
    return ours.l1_loss(y, torch.zeros_like(y))


def numbers(last: bool = False) -> list[torch.Tensor]:
    """Its inputs."""
    torch.manual_seed(2)
    shapes = [(2, 3, 8, 8), (4, 3, 3, 3), (4,), (5, 64)]
    return [drawn(*s, last=last and len(s) == 4).to(DEVICE).requires_grad_() for s in shapes]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_whole_it_gives_the_same(backend: str, last: bool) -> None:
    torch.compiler.reset()
    mine, compiled = numbers(last), numbers(last)
    expected = network(*mine)
    expected.backward()
    function = torch.compile(network, fullgraph=True, backend=backend)
    out = function(*compiled)
    out.backward()
    assert torch.equal(out, expected)
    for one, other in zip(mine, compiled, strict=True):
        assert torch.equal(one.grad, other.grad) and one.grad.stride() == other.grad.stride()  # type: ignore[arg-type,union-attr]


def test_other_shapes_compile_too() -> None:
    torch.compiler.reset()
    function = torch.compile(lambda x, w: ours.linear(x, w).relu(), fullgraph=True, backend="aot_eager")
    w = torch.randn(3, 4, device=DEVICE)
    for rows in (2, 5, 9):
        x = torch.randn(rows, 4, device=DEVICE)
        assert off(function(x, w), functional.linear(x.double(), w.double()).relu()) < 2e-5


def test_a_channels_last_image_is_not_copied() -> None:
    x, w, _, _ = numbers(last=True)
    out = ours.conv2d(x.detach(), w.detach(), None, 1, 1)
    assert out.is_contiguous(memory_format=LAST) and not out.is_contiguous()
    plan = registered.LAYERS["conv2d"].plan((x.detach(), w.detach(), None, 1, 1, False))
    assert plan and plan.copies == [] and plan.call.axes["layout"] == "nhwc"


def test_autocast_works_in_its_type() -> None:
    x, w, b, v = numbers()
    with torch.autocast(DEVICE, torch.bfloat16):
        out = ours.conv2d(x, w, b, 1, 1)
        rows = ours.softmax(ours.linear(out.flatten(1), v.repeat(1, 4)))
    assert out.dtype == torch.bfloat16 and rows.dtype == torch.float32
    rows.sum().backward()
    assert w.grad is not None and w.grad.dtype == torch.float32


def test_an_empty_batch_has_empty_results_and_gradients_of_zero() -> None:
    _, w, b, v = numbers()
    x = torch.zeros(0, 3, 8, 8, device=DEVICE, requires_grad=True)
    out = ours.linear(ours.maxpool2d(ours.conv2d(x, w, b, 1, 1, relu=True), 2).flatten(1), v)
    assert out.shape == (0, 5)
    out.sum().backward()
    for tensor in (w, b, v, x):
        assert tensor.grad is not None and tensor.grad.shape == tensor.shape and not tensor.grad.any()


def test_a_gradient_of_a_gradient_is_refused_in_words() -> None:
    x, w = torch.randn(3, 4, device=DEVICE, requires_grad=True), torch.randn(5, 4, device=DEVICE, requires_grad=True)
    (once,) = torch.autograd.grad(ours.linear(x, w).pow(2).sum(), x, create_graph=True)
    with pytest.raises((UsageError, RuntimeError), match=r"linear_dgrad.* has no gradient"):
        once.sum().backward()


def test_running_statistics_follow_as_pytorchs_do() -> None:
    x = torch.randn(4, 3, 5, 5, device=DEVICE) * 2 + 1
    layer, other = (torch.nn.BatchNorm2d(3, momentum=0.25).to(DEVICE) for _ in range(2))
    for _ in range(3):
        layer(x)
        ours.batchnorm2d(x, other.running_mean, other.running_var, other.weight, other.bias, True, 0.25)
    assert off(other.running_mean, layer.running_mean) < 1e-5 and off(other.running_var, layer.running_var) < 1e-5
    layer.eval()
    with torch.no_grad():
        mine = ours.batchnorm2d(x, other.running_mean, other.running_var, other.weight, other.bias, relu=True)
        assert off(mine, layer(x).relu()) < 1e-5


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda x: ours.linear(x.double(), x.double()), r"linear: torch.float64 is not there; f32, bf16, f16 are"),
        (lambda x: ours.linear(x, x[:, :3]), r"x \[6, 4\] with weight \[6, 3\]"),
        (lambda x: ours.linear(x, x.bfloat16()), "all of one type and device are needed"),
        (lambda x: ours.conv2d(x.view(1, 4, 3, 2), torch.ones(2, 2, 1, 1, device=DEVICE)), "groups are not there"),
        (lambda x: ours.conv2d(x.view(1, 1, 6, 4), x.view(1, 1, 6, 4), stride=(1, 2)), "one number for all sides"),
        (lambda x: ours.conv2d(x.view(1, 1, 4, 6), x.view(1, 1, 6, 4)), "a filter of 6x4 does not fit into 4x6"),
        (lambda x: ours.maxpool2d(x, 2), "four axes are needed"),
        (lambda x: ours.l1_loss(x, x[:2]), "one shape is needed"),
        (lambda x: ours.batchnorm2d(x.view(1, 4, 3, 2), None, None, eps=1e-3), "eps=0.001 is not there"),
        (lambda x: ours.use(missing="guess"), "unknown way 'guess'"),
    ],
)
def test_what_is_not_there_is_refused_in_words(attempt: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        attempt(torch.randn(6, 4, device=DEVICE))  # type: ignore[operator]
