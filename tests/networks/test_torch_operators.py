"""opbench's layers in PyTorch: results and gradients against float64, and every way in which PyTorch may call them.

`make torch-tests` installs PyTorch and runs these, in CI last of all. OPBENCH_TEST_DEVICE=cuda runs them on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make torch-tests installs it")

from torch.nn import functional  # noqa: E402

import opbench.torch as ours  # noqa: E402
from opbench.errors import UsageError  # noqa: E402
from opbench.networks.pytorch import choice, devices  # noqa: E402
from opbench.networks.pytorch import layers as registered  # noqa: E402
from opbench.results.book import Book, BookEntry, BookTime  # noqa: E402
from support.builders.torch_layers import DEVICE, LAST, Layer, drawn, layers, off  # noqa: E402
from support.checks.errors import Refusal, refuses  # noqa: E402

LAYERS = layers()
CONTIGUOUS = torch.contiguous_format, LAST
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""PyTorch's compiler imports what PyTorch deprecates."""


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

    def noted(operator: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object) -> object:
            seen.append((operator, arguments))
            return operator(*arguments)

        return called

    noting = {name: noted(operator) for name, operator in registered._overloads.items()}
    monkeypatch.setattr(registered, "_overloads", noting)
    monkeypatch.setattr(registered, "KNOWN_CALLS", {})
    monkeypatch.setattr(registered, "is_plain_eager_call", lambda tensors: False)
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


@pytest.mark.parametrize("name", ["linear, bias False", "softmax", "batchnorm2d in training, nchw", "maxpool2d, nhwc"])
def test_a_gradient_of_a_gradient_is_refused_in_words(name: str) -> None:
    layer = next(layer for layer in LAYERS if layer.name == name)
    for _ in range(2):
        tensors = layer.cast(torch.float32)
        (once,) = torch.autograd.grad(layer.mine(*tensors).pow(2).sum(), tensors[0], create_graph=True)
        with pytest.raises((UsageError, RuntimeError), match=r"(_backward|linear_dgrad).* has no gradient"):
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
    ("attempt", "refusal"),
    [
        (lambda x: ours.linear(x.double(), x.double()), Refusal("other-dtype", "linear", value="torch.float64")),
        (lambda x: ours.linear(x, x[:, :3]), Refusal("other-shape", "linear", value=(6, 4), allowed=(6, 3))),
        (lambda x: ours.linear(x, x.bfloat16()), Refusal("mixed-tensors", "linear")),
        (
            lambda x: ours.conv2d(x.view(1, 4, 3, 2), torch.ones(2, 2, 1, 1, device=DEVICE)),
            Refusal("grouped", "conv2d", value=4, allowed=2),
        ),
        (
            lambda x: ours.conv2d(x.view(1, 1, 6, 4), x.view(1, 1, 6, 4), stride=(1, 2)),
            Refusal("unsupported-option", "conv2d", value=("stride", (1, 2))),
        ),
        (
            lambda x: ours.conv2d(x.view(1, 1, 4, 6), x.view(1, 1, 6, 4)),
            Refusal("filter-too-large", "conv2d", value=(6, 4), allowed=(4, 6)),
        ),
        (lambda x: ours.maxpool2d(x, 2), Refusal("not-an-image", "maxpool2d", value=(6, 4))),
        (lambda x: ours.l1_loss(x, x[:2]), Refusal("other-shape", "l1_loss", value=(6, 4), allowed=(2, 4))),
        (
            lambda x: ours.batchnorm2d(x.view(1, 4, 3, 2), None, None, eps=1e-3),
            Refusal("not-allowed", "eps", value=1e-3),
        ),
        (lambda x: ours.use(missing="guess"), Refusal("unknown-name", "way", value="guess")),
    ],
)
def test_what_is_not_there_is_refused_in_words(attempt: object, refusal: Refusal) -> None:
    with refuses(refusal):
        attempt(torch.randn(6, 4, device=DEVICE))  # type: ignore[operator]


def small() -> torch.nn.Module:
    """A network with every kind of layer that is swapped, and a shortcut."""

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.other = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.nn.Conv2d(4, 4, 3, padding=1)
            self.norm, self.pool = torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(2)
            self.line = torch.nn.Linear(64, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.norm(self.conv(x)))
            y = self.pool(torch.relu(y + self.other(y)))
            return self.line(torch.flatten(y, 1))

    torch.manual_seed(4)
    return Small().to(DEVICE)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_model_gives_what_the_model_gives(training: bool, layout: str) -> None:
    x = torch.randn(2, 3, 8, 8, device=DEVICE)
    model, other = small().train(training), small().train(training)
    exact = small().train(training).double()
    made = ours.compile(other, x, layout=layout)
    right = exact(x.double())
    found = made(x)
    assert off(found, right) < 1e-5
    if not training:
        assert not any(node.operator == "batchnorm2d" for node in made.network.nodes), "it is folded"
        assert torch.equal(made(x), found)
        return
    found.pow(2).sum().backward()
    right.pow(2).sum().backward()
    for (name, mine), parameter in zip(other.named_parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None and parameter.grad is not None and off(mine.grad, parameter.grad) < 1e-4, name
    model(x)
    assert off(other.norm.running_var, model.norm.running_var) < 1e-5 and other.norm.num_batches_tracked == 1
    torch.optim.SGD(made.parameters(), 0.1).step()
    assert off(made(x), right) > 1e-3, "the parameters are the model's own"


def test_a_model_that_opbench_cannot_run_is_refused_by_node() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Mish())
    with refuses("unknown-operator", value="mish"):
        ours.compile(model.eval(), torch.randn(2, 4))
    with refuses("other-shape", value=(3, 4), allowed=(2, 4)):
        ours.compile(model[:1].eval(), torch.randn(2, 4))(torch.randn(3, 4))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # as the second one is: what was refused left nothing
def test_it_is_captured_in_a_cuda_graph() -> None:
    x = torch.randn(16, 32, device=DEVICE)
    w = torch.randn(64, 32, device=DEVICE)
    ours.linear(x, w, relu=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ours.linear(x, w, relu=True)
    x.copy_(torch.randn(16, 32))
    graph.replay()
    assert off(y, functional.linear(x.double(), w.double()).relu()) < 2e-5
    other = torch.cuda.CUDAGraph()
    with refuses("first-call-in-capture", "linear"), torch.cuda.graph(other):
        ours.linear(x[:3], w)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_each_stream_has_its_own_order() -> None:
    x, w = torch.randn(2048, 2048, device=DEVICE), torch.randn(2048, 2048, device=DEVICE) / 45
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x
        for _ in range(5):
            y = ours.linear(y, w)
    torch.cuda.current_stream().wait_stream(side)
    right = x.double()
    for _ in range(5):
        right = right @ w.double().T
    assert off(y, right) < 1e-4


def test_a_book_decides_between_ours_and_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "(m=3,n=5,k=4)"
    case = f"linear/naive{problem}"
    place = devices.OpenedDevice(0, devices.opened_device_of(devices.CPU).backend, "NVIDIA H200", "9.0", None)
    monkeypatch.setattr(choice, "opened_device_of", lambda index: place)
    monkeypatch.setattr(choice, "runner", lambda case, place: case)
    monkeypatch.setattr(choice, "is_capturing", lambda index: False)
    named = next(c.name for c in choice.candidates(choice.problem_of("linear", problem), place) if "naive" in c.name)
    assert case[:12] in named

    def chosen(ours_s: float, theirs_s: float | None) -> object:
        def time(name: str, seconds: float) -> BookTime:
            return BookTime(name, seconds, 0.99 * seconds, 1.01 * seconds, "", "0.1.0", "2026-01-01", "a run")

        library = time(f"linear/torch{problem}", theirs_s) if theirs_s else None
        entry = BookEntry("linear", problem, "f32", place.gpu, "9.0", time(named, ours_s), (), library)
        ours.use(Book("cold", (entry,)), missing="torch", precision="f32")
        return choice.choice_for("linear", problem, 0).runner

    try:
        assert chosen(1e-6, 2e-6).name == named and chosen(1e-6, None).name == named  # type: ignore[attr-defined]
        assert chosen(2e-6, 1e-6) is None, "PyTorch is faster"
        assert choice.choice_for("linear", "(m=9,n=5,k=4)", 0).runner is None, "what is not in the book is PyTorch's"
        ours.use(missing="ranked", prefer=["linear/small_tile"])
        assert "small_tile" in choice.choice_for("linear", problem, 0).runner.name  # type: ignore[union-attr,attr-defined]
    finally:
        ours.use(missing="ranked", precision="f32")


OWN = """
from __future__ import annotations
from collections.abc import Sequence
from dataclasses import dataclass
import numpy as np
from opbench import Gradient, Operator

@dataclass(frozen=True, kw_only=True)
class Scaled(Operator):
    \"\"\"out = factor * x.\"\"\"
    rows: int
    cols: int
    factor: int = 3
    inputs = {"x": "rows cols"}
    outputs = {"out": "rows cols"}
    RULE

    def reference(self, x: np.ndarray) -> np.ndarray:
        return self.factor * x

    @classmethod
    def examples(cls) -> Sequence[Scaled]:
        return [cls(rows=2, cols=3)]
"""
RULE = """def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        return [Gradient("scaled", self.axes, {"x": "d.out"}, {"out": "d.x"})]"""
KERNEL = """// /// opbench
// title = "one thread an element"
// launch = [{ kernel = "scaled", grid = ["cdiv(rows * cols, 64)"], block = ["64"] }]
// ///
//
// Why.
extern "C" __global__ void scaled(const float* x, float* out, int rows, int cols, int factor) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < rows * cols) out[i] = factor * x[i];
}
"""


@pytest.mark.parametrize("rule", [True, False])
def test_an_operator_of_ones_own_and_arrays_of_other_libraries(rule: bool, tmp_path: Path) -> None:
    folder = tmp_path / ("with" if rule else "without") / "scaled"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OWN.replace("RULE", RULE if rule else ""))
    (folder / "plain.cu").write_text(KERNEL)
    try:
        ours.use(missing="ranked", variants=[folder.parent])
        scaled = ours.operator("scaled")
        x = torch.randn(4, 5, device=DEVICE, requires_grad=True)
        out = scaled(x, factor=7)
        assert torch.equal(out, 7 * x)
        if rule:
            out.sum().backward()
            assert torch.equal(x.grad, torch.full_like(x, 7))
        else:
            with refuses("no-gradient", value="x"):
                out.sum().backward()
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        if DEVICE == "cpu":
            assert np.array_equal(np.from_dlpack(scaled(array)), 3 * array)
        with refuses("other-shape", "x", value=(5,), allowed="rows cols"):
            scaled(x[0])
    finally:
        ours.use(missing="ranked", precision="f32")
