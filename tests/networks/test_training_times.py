"""Which of PyTorch's ways of a step are timed when one of them fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from opbench.networks.train import torch_comparison

Times = dict[str, Any]


def timed_without(*failing: str) -> Any:
    """Return a replacement for the clock, in which a launch named in `failing` ends every measurement."""

    def time_launches(
        backend: object, launches: Mapping[str, object], called: Collection[str] = ()
    ) -> tuple[Times, Times]:
        for name in failing:
            if name in launches:
                raise MemoryError(f"{name}: out of memory")
        return dict.fromkeys(launches, 2.0), dict.fromkeys(launches, 1.0)

    return time_launches


WAYS: dict[str, Any] = {"eager": len, "graph": len}


@pytest.mark.parametrize(
    ("failing", "timed"),
    [((), {"opbench", "eager", "graph"}), (("eager",), {"opbench", "graph"}), (("eager", "graph"), {"opbench"})],
)
def test_a_way_without_memory_leaves_the_others_their_times(
    monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...], timed: set[str]
) -> None:
    monkeypatch.setattr(torch_comparison, "_time_launches", timed_without(*failing))
    cold, hot, faults = torch_comparison._time_working_modes(None, len, WAYS, ["eager"])  # type: ignore[arg-type]
    assert cold.keys() == hot.keys() == {torch_comparison.OPBENCH_NAME if name == "opbench" else name for name in timed}
    assert WAYS.keys() - timed <= faults.keys()
    assert all("out of memory" in text for text in faults.values())
