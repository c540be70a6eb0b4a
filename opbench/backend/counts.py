"""Memory traffic of a case, per source line: requests of warps, what they ask for and what the hardware moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from opbench.backend.findings import place_words
from opbench.errors import UsageError, unknown
from opbench.records import JSON

SECTOR_BYTES = 32
SPACES = ("global", "shared", "local", "module", "bulk", "operand")
"""By the runtime's numbers. Nothing is counted of the third and fourth; "bulk" is global memory that the copy engine
reads or writes, a request each, in lanes of 16 bytes; "operand" is shared memory that a warpgroup's wgmma reads."""
KINDS = ("load", "store", "atomic")
COUNTED = "counted"
PREDICTED = "predicted"


@dataclass(frozen=True)
class LineTraffic:
    """The accesses of one place in a source that are of one space, kind and width."""

    kernel: str
    file: str
    line: int
    space: str
    kind: str
    width: int
    """Bytes that one lane asks for."""
    column: int = field(default=0, kw_only=True)
    """Where in the line, from 1 on: it tells two accesses of a line apart; 0 where that is not known."""
    called_from: int = field(default=0, kw_only=True)
    """Of a line of a header: the line of the kernel's own file that calls it; 0 where there is none."""
    requests: int = 0
    """Warp instructions, with lanes that part at a branch together again where the paths join."""
    lanes: int = 0
    """Active lanes, summed over the requests."""
    sectors: int = 0
    """32-byte pieces of global memory touched."""
    ideal_sectors: int = 0
    """As many as the bytes asked for fill when they lie together."""
    wavefronts: int = 0
    """Passes over the 32 banks of shared memory."""
    ideal_wavefronts: int = 0
    """As many as the accesses need when no two words share a bank."""
    collisions: int = 0
    """Lanes of atomic requests whose address another lane of the request has too."""
    upper_requests: int = 0
    """Requests if lanes that part never met again before the next barrier or warp operation."""
    upper_sectors: int = 0
    upper_wavefronts: int = 0
    requests_saved_8: int = 0
    """How many fewer requests there would be if neighbouring accesses were merged to 8 bytes a lane."""
    sectors_saved_8: int = 0
    wavefronts_saved_8: int = 0
    ideal_wavefronts_saved_8: int = 0
    requests_saved_16: int = 0
    """The same for 16 bytes."""
    sectors_saved_16: int = 0
    wavefronts_saved_16: int = 0
    ideal_wavefronts_saved_16: int = 0

    @property
    def place(self) -> str:
        """Such as "line 12"."""
        return place_words(self.file, self.line, self.called_from)

    @property
    def words(self) -> str:
        """Such as "shared load 4 B"."""
        return f"{self.space} {self.kind} {self.width} B"

    @property
    def bytes(self) -> int:
        """What the lanes ask for."""
        return self.lanes * self.width

    @property
    def moved_bytes(self) -> int:
        """What whole sectors amount to; 0 in shared memory."""
        return self.sectors * SECTOR_BYTES

    @property
    def in_sectors(self) -> bool:
        """Whether it reaches global memory, by whatever way."""
        return self.space in ("global", "bulk")

    @property
    def lanes_per_request(self) -> float:
        """Active lanes of 32."""
        return _ratio(self.lanes, self.requests)

    @property
    def sectors_per_request(self) -> float:
        """1 when all lanes share a sector, 4 for coalesced 4-byte accesses, 32 when each lane has its own."""
        return _ratio(self.sectors, self.requests)

    @property
    def ideal_sectors_per_request(self) -> float:
        """Sectors per request if the bytes asked for lay together."""
        return _ratio(self.ideal_sectors, self.requests)

    @property
    def conflicts(self) -> int:
        """Wavefronts that bank conflicts add."""
        return self.wavefronts - self.ideal_wavefronts

    @property
    def conflicts_per_request(self) -> float:
        """Wavefronts per request that bank conflicts add."""
        return _ratio(self.conflicts, self.requests)

    def scaled(self, factor: float) -> LineTraffic:
        """All counts times a factor, for launches of which only some blocks were counted."""
        return replace(self, **{name: round(getattr(self, name) * factor) for name in COUNTS})

    def __add__(self, other: LineTraffic) -> LineTraffic:
        """The counts of both; the place is the first one's."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in COUNTS})


COUNTS = tuple(f.name for f in fields(LineTraffic) if f.default == 0 and f.name not in ("column", "called_from"))
"""The fields of a line's traffic that add up."""
SAVED = tuple(name for name in COUNTS if "_saved_" in name)
"""Those that tell what wider accesses would save."""


@dataclass(frozen=True)
class BranchTraffic:
    """A line at whose branches lanes of a warp parted; branches that each warp took whole are none."""

    kernel: str
    file: str
    line: int
    executions: int = 0
    """How often a warp, or what was together of it, went through the line's branches."""
    divergent: int = 0
    """How often its lanes parted there."""
    fewest_lanes: int = 0
    """Lanes on the way that fewer of them took, summed over the partings: 1 each where one lane was elected."""
    called_from: int = field(default=0, kw_only=True)
    """As of `LineTraffic`."""

    @property
    def fewest_lanes_each(self) -> float:
        """Lanes on the smaller way at a parting, on average."""
        return _ratio(self.fewest_lanes, self.divergent)

    @property
    def share(self) -> float:
        """Partings over executions."""
        return _ratio(self.divergent, self.executions)

    def scaled(self, factor: float) -> BranchTraffic:
        """All counts times a factor, for launches of which only some blocks were counted."""
        executions, divergent, fewest = self.executions, self.divergent, self.fewest_lanes
        executions, divergent, fewest = (round(count * factor) for count in (executions, divergent, fewest))
        return replace(self, executions=executions, divergent=divergent, fewest_lanes=fewest)

    def __add__(self, other: BranchTraffic) -> BranchTraffic:
        """The counts of both; the place is the first one's."""
        return replace(
            self,
            executions=self.executions + other.executions,
            divergent=self.divergent + other.divergent,
            fewest_lanes=self.fewest_lanes + other.fewest_lanes,
        )


@dataclass(frozen=True)
class CacheTraffic:
    """What a GPU's caches would let through of the counted requests, in sectors; cold when the first launch begins."""

    l2_loads: int = 0
    """Missed in the L1 cache of their multiprocessor, or went around it."""
    l2_stores: int = 0
    l2_atomics: int = 0
    dram_loads: int = 0
    """Missed in L2, atomic updates among them."""
    dram_stores: int = 0
    """Written back because their place was needed; what lies in L2 at the end is not."""
    carried: int = 0
    """Reads that found in L2 what an earlier launch of the case had brought there."""

    def __add__(self, other: CacheTraffic) -> CacheTraffic:
        """Both together."""
        return CacheTraffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(CacheTraffic)))


@dataclass(frozen=True)
class KernelTraffic:
    """One kernel's launches and how much of them was counted."""

    kernel: str
    launches: int
    blocks: int
    counted_blocks: int
    threads: int
    """Per block."""
    barriers: int
    """Block-wide barriers passed by the counted blocks."""
    caches: CacheTraffic | None = None
    """Predicted; None where some blocks were not counted or no GPU's caches were modelled."""

    @property
    def barriers_per_block(self) -> float:
        """Block-wide barriers that a block passes, on average."""
        return _ratio(self.barriers, self.counted_blocks)

    @property
    def sampled(self) -> bool:
        """Whether some blocks were left out."""
        return self.counted_blocks < self.blocks

    @property
    def factor(self) -> float:
        """What a count has to be multiplied with to stand for all blocks."""
        return _ratio(self.blocks, self.counted_blocks)

    def __add__(self, other: KernelTraffic) -> KernelTraffic:
        """Two launches of the same kernel."""
        return replace(
            self,
            launches=self.launches + other.launches,
            blocks=self.blocks + other.blocks,
            counted_blocks=self.counted_blocks + other.counted_blocks,
            barriers=self.barriers + other.barriers,
            caches=self.caches + other.caches if self.caches and other.caches else None,
        )


@dataclass(frozen=True)
class Traffic:
    """Everything that was counted in one run of a case."""

    lines: tuple[LineTraffic, ...] = ()
    """Sorted by kernel, file, line and column."""
    kernels: tuple[KernelTraffic, ...] = ()
    source: str = COUNTED
    """"counted" on the cpu backend from the source's own accesses, "measured" by hardware, or "predicted"."""
    complete: bool = field(default=True)
    """False when a launch was abandoned halfway."""
    branches: tuple[BranchTraffic, ...] = ()
    """Those at which lanes parted, sorted by kernel, file and line."""

    def select(self, *, kernel: str = "", space: str = "", kind: str = "", line: int = 0) -> list[LineTraffic]:
        """The lines that match everything given."""
        wanted = {"kernel": kernel, "space": space, "kind": kind, "line": line}
        given = {name: value for name, value in wanted.items() if value}
        return [entry for entry in self.lines if all(getattr(entry, name) == value for name, value in given.items())]

    def total(self, name: str, **selection: Any) -> int:
        """The sum of one count or derived quantity over the lines that match, as in `total("sectors", kind="load")`."""
        return sum(getattr(entry, name) for entry in self.select(**selection))

    def kernel(self, name: str) -> KernelTraffic:
        """One kernel's launches."""
        for entry in self.kernels:
            if entry.kernel == name:
                return entry
        raise UsageError(unknown("kernel", name, [entry.kernel for entry in self.kernels]))

    def estimated(self) -> Traffic:
        """The counts of sampled kernels scaled to all their blocks; the same traffic where every block was counted."""
        factors = {entry.kernel: entry.factor for entry in self.kernels if entry.sampled}
        if not factors:
            return self
        lines = tuple(e.scaled(factors[e.kernel]) if e.kernel in factors else e for e in self.lines)
        branches = tuple(e.scaled(factors[e.kernel]) if e.kernel in factors else e for e in self.branches)
        return replace(self, lines=lines, branches=branches, source=PREDICTED)

    def renamed(self, name: Callable[[str], str]) -> Traffic:
        """The same with other names of the files."""
        lines = tuple(replace(entry, file=name(entry.file)) for entry in self.lines)
        return replace(self, lines=lines, branches=tuple(replace(e, file=name(e.file)) for e in self.branches))

    def __add__(self, other: Traffic) -> Traffic:
        """Both together; they must come from the same source."""
        if self.source != other.source:
            raise ValueError(f"traffic that was {self.source} does not add to traffic that was {other.source}")
        return gather(
            (*self.lines, *other.lines),
            (*self.kernels, *other.kernels),
            self.source,
            self.complete and other.complete,
            (*self.branches, *other.branches),
        )

    def to_json(self) -> dict[str, JSON]:
        """The traffic for the results file; counts of 0 are left out."""
        return {
            "source": self.source,
            "complete": self.complete,
            "kernels": [asdict(entry) for entry in self.kernels],
            "lines": [{k: v for k, v in asdict(entry).items() if v != 0} for entry in self.lines],
            "branches": [asdict(entry) for entry in self.branches],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Traffic:
        """What `to_json` wrote."""
        return Traffic(
            lines=tuple(LineTraffic(**{"line": 0, **entry}) for entry in data["lines"]),
            kernels=tuple(_kernel(entry) for entry in data["kernels"]),
            source=data["source"],
            complete=data["complete"],
            branches=tuple(BranchTraffic(**entry) for entry in data.get("branches", ())),
        )


def gather(
    lines: Iterable[LineTraffic],
    kernels: Iterable[KernelTraffic],
    source: str = COUNTED,
    complete: bool = True,
    branches: Iterable[BranchTraffic] = (),
) -> Traffic:
    """Traffic of many counts: those of one place, space, kind and width become one, as copies of an access do."""
    merged: dict[tuple[object, ...], LineTraffic] = {}
    for entry in lines:
        place = (entry.kernel, entry.file, entry.line, entry.column, entry.called_from)
        key = (*place, entry.space, entry.kind, entry.width)
        merged[key] = merged[key] + entry if key in merged else entry
    launched: dict[str, KernelTraffic] = {}
    for launch in kernels:
        launched[launch.kernel] = launched[launch.kernel] + launch if launch.kernel in launched else launch
    parted: dict[tuple[object, ...], BranchTraffic] = {}
    for branch in branches:
        at = (branch.kernel, branch.file, branch.line, branch.called_from)
        parted[at] = parted[at] + branch if at in parted else branch
    return Traffic(
        tuple(merged[key] for key in sorted(merged)),
        tuple(launched.values()),
        source,
        complete,
        tuple(parted[at] for at in sorted(parted)),
    )


def _kernel(entry: Mapping[str, Any]) -> KernelTraffic:
    caches = entry.get("caches")
    return KernelTraffic(**{**entry, "caches": CacheTraffic(**caches) if caches else None})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
