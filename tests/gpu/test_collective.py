"""NCCL's layer with a stand-in for the library: what is asked of it, in which order, on which memory and stream."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from opbench.errors import EnvironmentFault
from opbench.gpu.driver import collective
from opbench.gpu.driver.collective import (
    MAX_BLOCKS_VARIABLE,
    MULTICAST_VARIABLE,
    VISIBLE_DEVICES_VARIABLE,
    NcclGroup,
    find_nccl,
    rank_environments,
)
from support.checks.errors import needs_extra, refuses


class Library:
    """Keeps what it is asked for."""

    NCCL_FLOAT, NCCL_SUM = 7, 0

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def get_unique_id(self) -> bytes:
        return bytes(128)

    def NcclCommunicator(self, ndev: int, commId: bytes, rank: int) -> Library:
        if not isinstance(commId, bytes):
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(commId).__name__})")
        self.asked.append(("join", ndev, commId, rank))
        return self

    def allReduce(self, *arguments: int) -> None:
        self.asked.append(("sum", *arguments))

    def destroy(self) -> None:
        self.asked.append(("leave",))


def test_sums_go_to_the_backends_stream_in_place_range_by_range() -> None:
    library = Library()
    group = NcclGroup(2, bytes(128), 1, stream=77, nccl=library)
    ranges = [SimpleNamespace(pointer=4096, nbytes=400), SimpleNamespace(pointer=4496, nbytes=4)]
    launches = [group.all_reduce(part) for part in ranges]  # type: ignore[arg-type]
    assert library.asked == [("join", 2, bytes(128), 1)]
    for launch in launches:
        launch()
    assert library.asked[1:] == [("sum", 4096, 4096, 100, 7, 0, 77), ("sum", 4496, 4496, 1, 7, 0, 77)]
    group.close()
    group.close()
    assert library.asked[3:] == [("leave",)]


def test_a_library_that_cannot_join_says_how_to_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")

    monkeypatch.setattr(Library, "NcclCommunicator", refuse)
    with pytest.raises(EnvironmentFault, match=r"rank 1 of 2: NCCL_ERROR_SYSTEM_ERROR.*NCCL_DEBUG=INFO"):
        NcclGroup(2, bytes(128), 1, stream=0, nccl=Library())


class Gpus:
    """A driver that shows some."""

    count = 3

    def call(self, name: str, *arguments: object) -> None:
        assert name == "cuInit"

    def get(self, name: str, kind: object, *arguments: object) -> int:
        return self.count


def test_each_rank_sees_one_gpu_of_those_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "Driver", Gpus)
    monkeypatch.setattr(collective, "find_nccl", Library)
    monkeypatch.delenv(VISIBLE_DEVICES_VARIABLE, raising=False)
    monkeypatch.delenv(MULTICAST_VARIABLE, raising=False)
    monkeypatch.delenv(MAX_BLOCKS_VARIABLE, raising=False)
    kept = {MULTICAST_VARIABLE: "0", MAX_BLOCKS_VARIABLE: "12"}
    assert rank_environments(2) == [{VISIBLE_DEVICES_VARIABLE: "0", **kept}, {VISIBLE_DEVICES_VARIABLE: "1", **kept}]
    monkeypatch.setenv(VISIBLE_DEVICES_VARIABLE, "GPU-b, 5,7")
    monkeypatch.setenv(MULTICAST_VARIABLE, "2")
    monkeypatch.setenv(MAX_BLOCKS_VARIABLE, "16")
    own = {MULTICAST_VARIABLE: "2", MAX_BLOCKS_VARIABLE: "16"}
    assert rank_environments(3)[::2] == [
        {VISIBLE_DEVICES_VARIABLE: "GPU-b", **own},
        {VISIBLE_DEVICES_VARIABLE: "7", **own},
    ]
    with refuses("too-few-gpus", "--gpus", value=4, allowed=3, error=EnvironmentFault):
        rank_environments(4)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with needs_extra("nccl"):
        find_nccl()
