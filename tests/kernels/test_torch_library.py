"""PyTorch in library variants: tensors share memory, launches use CuPy's stream, and only `collect` copies results."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from opbench.kernels.tensors import to_storage
from opbench.kernels.torch_library import nchw_view, torch_launch, torch_tensor, torch_tensors
from support.common import CATALOG

torch = pytest.importorskip("torch", reason="the functions return its tensors; opbench[torch] brings it")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace CuPy's current stream by a handle that tests set; `used` lists the streams that PyTorch entered."""
    state = SimpleNamespace(handle=0, used=[])
    cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=state.handle))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, int16=np.int16))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: "default")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle: f"external {handle}")

    def enter(stream: str) -> contextlib.AbstractContextManager[None]:
        state.used.append(stream)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "stream", enter)
    return state


def test_a_tensor_shares_the_memory_of_its_array(streams: SimpleNamespace) -> None:
    numbers, bits = np.zeros(3, np.float32), to_storage(np.array([1.5, -2.0]), "bf16")
    torch_tensor(numbers, "f32")[1] = 4
    tensor = torch_tensor(bits, "bf16")
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [1.5, -2.0]
    tensor[0] = 3
    assert numbers.tolist() == [0, 4, 0] and bits.tolist() == to_storage(np.array([3.0, -2.0]), "bf16").tolist()


def test_every_input_and_output_has_a_tensor_of_its_type(streams: SimpleNamespace) -> None:
    problem = CATALOG.operator("layernorm")(rows=2, cols=3, dtype="bf16")
    buffers = dict(problem.make_inputs(0))
    buffers |= {
        t.name: np.zeros(t.shape, buffers["x"].dtype if t.dtype == "bf16" else "f4") for t in problem.output_tensors()
    }
    tensors = torch_tensors(problem, buffers)
    assert set(tensors) == {t.name for t in (*problem.input_tensors(), *problem.output_tensors())}
    assert tensors["x"].dtype == tensors["out"].dtype == torch.bfloat16 and tensors["mean"].dtype == torch.float32


def test_a_view_of_nhwc_has_the_axes_of_nchw() -> None:
    assert nchw_view(torch.zeros(2, 5, 6, 3), "nhwc").shape == (2, 3, 5, 6)
    assert nchw_view(torch.zeros(2, 3, 5, 6), "nchw").shape == (2, 3, 5, 6)


@pytest.mark.parametrize(("handle", "stream"), [(0, "default"), (7, "external 7")])
def test_a_launch_uses_the_stream_of_cupy_and_records_no_gradient(
    streams: SimpleNamespace, handle: int, stream: str
) -> None:
    streams.handle = handle
    weight = torch.ones(2, requires_grad=True)
    results: list[object] = []
    launch = torch_launch(lambda: results.append(weight * 2))
    launch()
    assert streams.used == [stream] and not hasattr(launch, "collect")
    assert not results[0].requires_grad  # type: ignore[attr-defined]


def test_only_collect_copies_what_pytorch_returned(streams: SimpleNamespace) -> None:
    x, out = torch.tensor([[1.0], [2.0]]), torch.zeros(2)
    launch = torch_launch(lambda: [x + 1], [out])
    launch()
    assert out.tolist() == [0, 0]
    launch.collect()  # type: ignore[attr-defined]
    assert out.tolist() == [2, 3] and len(streams.used) == 2
