"""FlashInfer-Bench definitions with integer inputs: offsets, page tables, lengths and positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.errors import UsageError
from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from opbench.kernels.flashinfer_task import Definition, IndexLimit, task_text
from opbench.kernels.folders import Catalog
from opbench.kernels.task_import import import_flashinfer
from opbench.kernels.torch_task import TorchOperator
from opbench.records import from_json
from support.flashinfer_definitions import (
    DECODE,
    DECODE_KERNEL,
    RAGGED,
    ROPE,
    ROPE_KERNEL,
    SPARSE,
    write_definition,
)

SEEDS = 20
KERNELS = {"decode": (DECODE, DECODE_KERNEL), "rope": (ROPE, ROPE_KERNEL)}
WRONG = {
    "decode-page": ("decode", "indices[begin + token / 4]", "(begin + token / 4) % num_pages", "wrong-result"),
    "decode-last-page": ("decode", "(pages - 1) * 4 + last[sequence]", "pages * 4", "wrong-result"),
    "decode-empty": ("decode", ": -INFINITY;", ": 0.0f;", "wrong-result"),
    "rope-position": (
        "rope",
        "positions[i / 12 / num_qo_heads]",
        "i / 12 / num_qo_heads % max_seq_len",
        "wrong-result",
    ),
    "rope-high": ("rope", "high * cosine + low * sine", "high * cosine - low * sine", "wrong-result"),
    "rope-bounds": ("rope", "* 12) return;", "* 12 + 64) return;", "out-of-bounds"),
}
"""A kernel, a text in it, what replaces the text, and the code of the refusal."""
BOUND = "min(kv_last_page_len) >= 2"
RANDOM = "import torch\ndef run(q):\n    return torch.multinomial(q, 1)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Import the definitions; return the folder of their operators."""
    pytest.importorskip("torch")
    source, out = tmp_path_factory.mktemp("definitions"), tmp_path_factory.mktemp("imported") / "out"
    for definition in (DECODE, RAGGED, ROPE, SPARSE):
        write_definition(definition, source)
    reasons = {task.operator: task.reason for task in import_flashinfer(source, out, lambda task: None)}
    assert reasons == {f"torch_{definition['name']}": "" for definition in (DECODE, RAGGED, ROPE, SPARSE)}
    return out


def operator_of(definition: dict[str, Any], folder: Path) -> type[TorchOperator]:
    operator = Catalog([folder]).operator(f"torch_{definition['name']}")
    assert issubclass(operator, TorchOperator)
    return operator


def text_of(definition: dict[str, Any], limits: Mapping[str, IndexLimit], **changes: Any) -> str:
    return task_text(from_json(Definition, {**definition, **changes}), lambda text, candidates: limits)


def test_offsets_pages_and_lengths_are_valid_for_every_seed_and_example(folder: Path) -> None:
    decode = operator_of(DECODE, folder)
    assert set(decode.facts.axes) == {"batch_size", "num_pages", "num_kv_indices"}
    seen_empty = False
    for problem in decode.examples():
        axes = {name: int(size) for name, size in problem.axes.items()}
        for seed in range(SEEDS):
            inputs = problem.make_inputs(seed)
            lengths = np.diff(inputs["kv_indptr"])
            assert len(lengths) == axes["batch_size"] and lengths.min() >= 0
            assert (inputs["kv_indptr"][0], inputs["kv_indptr"][-1]) == (0, axes["num_kv_indices"])
            assert (inputs["kv_indices"].min() >= 0, inputs["kv_indices"].max()) == (True, axes["num_pages"] - 1)
            assert set(np.unique(inputs["kv_last_page_len"])) <= {1, 2, 3, 4}
            seen_empty |= bool((lengths == 0).any())
    assert seen_empty


def test_each_sequence_has_as_many_keys_as_queries_or_more(folder: Path) -> None:
    ragged = operator_of(RAGGED, folder)
    for problem in ragged.examples():
        assert max(int(size) for size in problem.axes.values()) <= 65
        for seed in range(SEEDS):
            inputs = problem.make_inputs(seed)
            queries, keys = np.diff(inputs["qo_indptr"]), np.diff(inputs["kv_indptr"])
            assert queries.min() >= 0 and (keys >= queries).all()
            assert (inputs["qo_indptr"][-1], inputs["kv_indptr"][-1]) == (
                problem.axes["total_q"],
                problem.axes["total_kv"],
            )


def test_padding_is_among_the_indices_that_a_reference_skips(folder: Path) -> None:
    sparse = operator_of(SPARSE, folder)
    problem = sparse.from_axes({"num_tokens": 40, "num_pages": 3})
    indices = np.unique([problem.make_inputs(seed)["sparse_indices"] for seed in range(SEEDS)])
    assert indices.tolist() == list(range(-1, 12))


def test_results_are_computed_in_float64_even_where_the_reference_rounds(folder: Path) -> None:
    rope = operator_of(ROPE, folder)
    problem = rope.from_axes({"num_tokens": 3, "num_qo_heads": 2, "max_seq_len": 5})
    inputs = problem.widened(problem.make_inputs(0))
    row = inputs["cos_sin_cache"][inputs["positions"].astype(int)][:, None]
    cos, sin, low, high = row[..., :4], row[..., 4:], inputs["q"][..., :4], inputs["q"][..., 4:8]
    expected = np.concatenate([low * cos - high * sin, high * cos + low * sin, inputs["q"][..., 8:]], -1)
    assert np.allclose(problem.reference(**inputs)["out"], expected, rtol=1e-14, atol=1e-14)
    assert rope.facts.float32_error < 1e-5


@pytest.mark.parametrize("name", [*KERNELS, *WRONG])
def test_a_right_kernel_is_accepted_and_a_wrong_one_refused(name: str, folder: Path, tmp_path: Path) -> None:
    base, old, new, code = WRONG.get(name, (name, "", "", ""))
    definition, text = KERNELS[base]
    assert old in text
    (path := tmp_path / "kernel.cu").write_text(text.replace(old, new, 1) if old else text)
    task = folder / f"torch_{definition['name']}" / "_task.py:run"
    document = judge([path], JudgeOptions(task=task, backend="cpu", drawn=1))
    assert (document.overall, document.code) == ("refused" if code else "accepted", code), document.reason


def test_a_scale_has_the_value_of_its_description() -> None:
    first_prime = 11  # the size of batch_size while limits are searched
    text = text_of(DECODE, {"kv_indices": IndexLimit(first_prime)})
    assert f"{1 / math.sqrt(8)!r}," in text


@pytest.mark.parametrize(
    ("changes", "subject", "value"),
    [
        ({"constraints": ["num_kv_indices == kv_indptr[-1].item()"]}, "kv_indices", "int32"),
        ({"constraints": [*DECODE["constraints"], BOUND]}, DECODE["name"], BOUND),
        ({"inputs": {**DECODE["inputs"], "flag": {"shape": None, "dtype": "bool"}}}, "flag", "bool"),
        ({"inputs": {**DECODE["inputs"], "mask": {"shape": ["num_pages"], "dtype": "int8"}}}, "mask", "int8"),
        ({"reference": RANDOM}, DECODE["name"], ["multinomial"]),
    ],
    ids=["no-limit", "constraint", "scalar", "type", "random"],
)  # fmt: skip
def test_inputs_that_cannot_be_derived_are_refused(changes: dict[str, Any], subject: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        text_of(DECODE, {"kv_indices": IndexLimit(None)}, **changes)
    assert (caught.value.subject, caught.value.value) == (subject, value)


def test_an_index_that_the_reference_does_not_limit_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reference = "def run(q, cos_sin_cache, positions):\n    return q * positions[:, None, None]\n"
    source = write_definition(ROPE, tmp_path / "definitions", reference=reference)
    (task,) = import_flashinfer(source, tmp_path / "out", lambda task: None)
    assert "positions" in task.reason and "largest valid" in task.reason
