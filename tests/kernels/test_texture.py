"""Textures and surfaces: what a header may say of them, and what the hardware has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.errors import LaunchError, UsageError
from opbench.kernels.texture import Texture
from opbench.running.targets import own_variants
from support.common import CATALOG, RELU

PLAIN = {"name": "image", "tensor": "x", "type": "f32", "size": (8, 4)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": (8, 5)}, "[8, 5] texels of 4 bytes do not fit into the 128 bytes of 'x'"),
        ({"size": (1, 70000)}, "at most [131072, 65536] texels"),
        (
            {"size": (32,), "memory": "linear", "filter": "linear"},
            "memory = 'linear' allows only one dimension, filter = 'point'",
        ),
        ({"read": "normalized"}, "read = 'normalized' is not allowed for f32"),
        ({"type": "i32", "filter": "linear"}, "use filter = 'point', or a tensor of u8"),
        ({"address": "wrap"}, "address = 'wrap' needs normalized = true"),
    ],
)
def test_what_the_hardware_has_not_is_refused_in_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(LaunchError) as refused:
        Texture(**{**PLAIN, **changes}).check(128)  # type: ignore[arg-type]
    assert words in str(refused.value)
    Texture(**PLAIN).check(128)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('textures.image = { tensor = "x" }', "textures.image = {'tensor': 'x'} is not allowed; write a table such as"),
        ('textures.image = { tensor = "x", size = ["n"], filter = "blurred" }', "one of point, linear"),
        ('textures.image = { tensor = "x", size = ["n"], channels = 3 }', "one of 1, 2, 4"),
        ('textures.image = { tensor = "x", size = ["n"], normalized = 1 }', "one of false, true"),
        ('surfaces.image = { tensor = "x", size = ["n"], filter = "point" }', "unknown key 'filter'"),
        ('surfaces.image = { tensor = "x", size = ["n", 1, 1] }', "write a list of the width, or of width and height"),
    ],
)
def test_a_header_that_says_something_else_is_refused_with_its_line(tmp_path: Path, entry: str, words: str) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(RELU.replace("title =", f"{entry}\n// title ="))
    with pytest.raises(UsageError) as refused:
        own_variants(file, CATALOG)
    assert str(refused.value).startswith(f"{file}:3: ") and words in str(refused.value)
