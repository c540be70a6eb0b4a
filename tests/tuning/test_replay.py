"""The replay of a search that tried everything: what its record says of the space, and what strategies find in it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from opbench.results.tuning import FILE
from opbench.tuning.search import Search
from support.fakes.tuning import seconds, tune_fake
from tuning_replay import recorded, shares


def test_a_record_of_everything_is_a_world_in_which_the_best_is_found_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Search.run
    monkeypatch.setattr(Search, "run", lambda search, budget_s: run(search, 1e9))
    tune_fake(tmp_path, monkeypatch.setattr, budget_s=60)
    world = recorded(tmp_path / "out")
    best = {"BLOCK": 256, "ITEMS": 8}
    assert len(world.space) == 32 * 17 + 16
    assert not world.refused(best) and world.seconds(best) == pytest.approx(seconds(best), rel=0.05)
    assert world.refused({"BLOCK": 1024, "ITEMS": 8}) and world.refused({"BLOCK": 256, "ITEMS": 17})
    monkeypatch.undo()
    assert shares(world, "random", seeds=2, share=2.0, compilers=4)["within 3%"] == 1.0
    lines = (tmp_path / "out" / FILE).read_text().splitlines(keepends=True)
    (tmp_path / FILE).write_text("".join(line for line in lines[:9]))
    with pytest.raises(click.ClickException, match="of 560 configs tried; all are needed"):
        recorded(tmp_path)
