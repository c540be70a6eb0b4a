"""Long references on the GPU: the same numbers as on the host, or None where the GPU cannot."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.gpu.driver import why_missing
from opbench.graph import graph
from opbench.graph.zoo import NETWORKS
from opbench.kernels import arrays, operator
from support.common import CATALOG
from support.fakes.device_arrays import no_cupy, stand_in


def test_a_long_reference_goes_to_the_gpu_and_a_short_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(arrays, "cupy_module", lambda: stand_in(1 << 40, calls))
    problem = CATALOG.operator("conv2d").examples()[0]
    inputs = problem.make_inputs(1)
    host = problem.reference_outputs(inputs)["out"]
    assert calls == []
    monkeypatch.setattr(operator, "LONG_FLOPS", 0)
    np.testing.assert_array_equal(problem.reference_outputs(inputs)["out"], host)
    assert calls == ["to", "to", "from", "freed"]


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_every_reference_can_be_computed_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(arrays, "cupy_module", lambda: stand_in(1 << 40, calls))
    for problem in CATALOG.operator(name).examples():
        inputs = problem.make_inputs(1)
        host = problem.reference_outputs(inputs)
        with monkeypatch.context() as patch:
            patch.setattr(operator, "LONG_FLOPS", 0)
            there = problem.reference_outputs(inputs)
        assert calls[-2:] == ["from", "freed"], f"{name}{problem} was computed on the host after all"
        for output, array in host.items():
            np.testing.assert_array_equal(there[output], array)


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_cupy_itself_computes_every_reference(name: str) -> None:
    pytest.importorskip("cupy", reason="what is tested is what it takes")
    for problem in CATALOG.operator(name).examples()[:6]:
        inputs = {key: array.astype(np.float64) for key, array in problem.make_inputs(1).items() if array.dtype == "f4"}
        if len(inputs) < len(problem.input_tensors()):
            continue  # stored in 16 bits
        there = arrays.compute_on_gpu(problem.computed, inputs)
        assert there is not None, f"{name}{problem} was left to the host"
        for output, array in problem.computed(**inputs).items():
            np.testing.assert_allclose(there[output], array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_the_outputs_of_a_network_can_be_computed_there(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"size": 32, "base": 4}
    language = {"tokens": 16, "layers": 2, "heads": 2, "width": 32, "vocabulary": 50}
    sizes = {"unet": small, "resnet18": small, "resnet50": small, "gpt2": language}
    sizes |= {"mobilenetv3": {"size": 32, "width": 25}, "diffusion": {"size": 4, "base": 32}}
    net = NETWORKS[network](**sizes.get(network, {}))
    inputs = net.make_inputs(1)
    host = net.reference(inputs)
    calls: list[str] = []
    monkeypatch.setattr(arrays, "cupy_module", lambda: stand_in(1 << 40, calls))
    monkeypatch.setattr(graph, "LONG_FLOPS", 0)
    there = net.reference_outputs(inputs)
    assert calls[-2:] == ["from", "freed"] and list(there) == list(net.outputs)
    for name, array in there.items():
        np.testing.assert_array_equal(array, host[name])


def test_without_cupy_the_host_computes_the_outputs_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    net = NETWORKS["lenet"]()
    inputs = {name: np.random.default_rng(1).random(net.values[name].shape, np.float32) for name in net.inputs}
    monkeypatch.setattr(arrays, "cupy_module", no_cupy)
    monkeypatch.setattr(graph, "LONG_FLOPS", 0)
    (output,) = net.outputs
    np.testing.assert_array_equal(net.reference_outputs(inputs)[output], net.reference(inputs)[output])


def test_what_the_gpu_has_no_room_for_or_cannot_do_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    given = {"x": np.ones(100)}
    monkeypatch.setattr(arrays, "cupy_module", lambda: stand_in(800 * arrays.MEMORY_FACTOR - 1, calls))
    assert arrays.compute_on_gpu(lambda x: x, given) is None and calls == ["freed"]
    monkeypatch.setattr(arrays, "cupy_module", lambda: stand_in(1 << 40, calls))
    assert arrays.compute_on_gpu(lambda x: x.no_such_method(), given) is None
    assert arrays.compute_on_gpu(lambda x: {"a": x, "b": -x}, given)["b"][0] == -1
    monkeypatch.setattr(arrays, "cupy_module", no_cupy)
    assert arrays.compute_on_gpu(lambda x: x, given) is None
