"""Latent attention is attention with one key head, whose keys and values share their first elements."""

from __future__ import annotations

import numpy as np
import pytest

from support.common import CATALOG


@pytest.mark.parametrize("ragged", ["no", "yes"])
def test_it_equals_decoding_with_one_key_head(ragged: str) -> None:
    sizes = {"sequences": 3, "heads": 5, "keys": 41, "page_size": 6, "ragged": ragged, "dtype": "f32"}
    # With nope_depth = rank the scores of both operators have the same scale.
    latent = CATALOG.operator("attention_mla_decode").from_axes(sizes | {"rank": 24, "rope_depth": 8, "nope_depth": 24})
    plain = CATALOG.operator("attention_decode").from_axes(sizes | {"kv_heads": 1, "depth": 32})
    inputs = latent.make_inputs(3)
    q = np.concatenate((inputs["q_nope"], inputs["q_pe"]), axis=2)
    k = np.concatenate((inputs["ckv"], inputs["kpe"]), axis=2)[:, :, None]
    v = np.concatenate((inputs["ckv"], np.zeros_like(inputs["kpe"])), axis=2)[:, :, None]
    tables = {name: inputs[name] for name in ("page_table", "lengths")}
    out = plain.reference_outputs({"q": q, "k": k, "v": v, **tables})["out"]
    np.testing.assert_allclose(latent.reference_outputs(inputs)["out"], out[:, :, :24], rtol=1e-12)
    assert (tables["lengths"].min() < 41) == (ragged == "yes")
