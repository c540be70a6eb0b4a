"""The replay of spaces that others measured: reading them, and the table of what searches reach in them."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tuning_spaces import SHARE, kernel_tuner_world, main, neighbour, reached, transferred

BLOCKS, TILES, UNROLLS = [32, 48, 64, 96, 128, 192, 256, 384, 512], list(range(1, 21)), [1, 2, 3, 4]


def cache(folder: Path, name: str, best_tile: int) -> Path:
    """Write a file as Kernel Tuner does: milliseconds, and the name of an error for a config that cannot run."""
    entries = {}
    for block, tile, unroll, staged in itertools.product(BLOCKS, TILES, UNROLLS, (0, 1)):
        config = {"block": block, "tile": tile, "unroll": unroll, "staged": staged, "width": 15}
        took = 5.0 * (1 + abs(tile - best_tile) / 8 + abs(block - 128) / 256 + 0.1 * unroll + 0.2 * staged)
        time = took if block * tile <= 8192 else "CompilationFailedConfig"
        samples = {"times": [took, took, 9 * took]} if time == took else {}
        key = ",".join(map(str, config.values()))
        entries[key] = {**config, "time": time, **samples, "compile_time": 800.0 + 100.0 * tile}
    tune = {"block": BLOCKS, "tile": TILES, "unroll": UNROLLS, "staged": [0, 1], "width": [15]}
    path = folder / f"{name}.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"tune_params": tune, "cache": entries}).encode()))
    return path


def test_a_cache_file_of_kernel_tuner_is_a_world(tmp_path: Path) -> None:
    world = kernel_tuner_world(cache(tmp_path, "stencil_A100", 6))
    assert world.name == "stencil_A100" and world.space.names == ["block", "tile", "unroll", "staged"]
    assert len(world.space) == 9 * 20 * 4 * 2
    config = {"block": 128, "tile": 6, "unroll": 1, "staged": 0}
    assert world.seconds(config) == pytest.approx(5.5e-3), "the median, not the mean, in seconds"
    assert world.compile_s(config) == pytest.approx(1.4) and not world.refused(config)
    assert world.refused({**config, "block": 512, "tile": 17}) == "CompilationFailedConfig"


def test_a_search_that_starts_from_a_neighbouring_space_is_near_the_best_at_once(tmp_path: Path) -> None:
    worlds = [kernel_tuner_world(cache(tmp_path, f"stencil_{tile}", tile)) for tile in (6, 6, 14)]
    assert neighbour(worlds[0], worlds) is worlds[1] and neighbour(worlds[2], worlds[2:]) is None
    first = transferred(worlds[0], worlds[1])
    assert len(first) == 8 and not transferred(worlds[0], None)
    alone, after = reached(worlds[0], "local", 0, 16), reached(worlds[0], "local", 0, 16, first)
    assert after.share < min(alone.share, SHARE) and after.off <= 0.01
    far = reached(worlds[0], "local", 0, 16, transferred(worlds[0], worlds[2]))
    assert after.share < far.share < 0.2, "a start far from the best costs time and does not trap the search"


def test_the_table_has_a_row_for_each_space(tmp_path: Path) -> None:
    cache(tmp_path, "stencil_A100", 6)
    options = [str(tmp_path), "--seeds", "2"]
    shown = CliRunner().invoke(main, options, catch_exceptions=False).output.splitlines()
    assert len(shown) == 3 and shown[2].startswith("| stencil A100 | 1,440 | ") and " of 2 | " in shown[2]
    alone = CliRunner().invoke(main, [*options, "--transfer"], catch_exceptions=False).output.splitlines()
    assert len(alone) == 2, "no other space has these tunables"
