"""Memory traffic of a case for each source line: requests of warps, requested bytes, and sectors of 32 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from opbench.backend.findings import place_text
from opbench.errors import NotAllowed, UsageError, unknown_name
from opbench.records import JSON, from_json

SECTOR_BYTES = 32
SPACES = ("global", "shared", "local", "module", "bulk", "operand")
"""Indexed by the runtime's numbers. Accesses to "local" and "module" are not counted. "bulk" is global memory that the
TMA reads or writes, in lanes of 16 bytes; "operand" is shared memory that a warpgroup's wgmma reads."""
KINDS = ("load", "store", "atomic")
ORIGIN_COUNTED = "counted"
ORIGIN_PREDICTED = "predicted"


@dataclass(frozen=True)
class LineTraffic:
    """The accesses of one source position with the same space, kind and width."""

    kernel: str
    file: str
    line: int
    space: str
    kind: str
    width: int
    """Bytes that one lane requests."""
    column: int = field(default=0, kw_only=True)
    """Column in the line, from 1 on, which separates two accesses of a line; 0 if not known."""
    called_from: int = field(default=0, kw_only=True)
    """For a line of a header: the line of the kernel's own file that calls it; 0 if there is none."""
    requests: int = 0
    """Warp instructions; lanes that diverge at a branch count together again where the paths join."""
    lanes: int = 0
    """Active lanes, summed over the requests."""
    sectors: int = 0
    """32-byte sectors of global memory accessed."""
    ideal_sectors: int = 0
    """Sectors that the requested bytes would fill if they were contiguous."""
    wavefronts: int = 0
    """Passes over the 32 banks of shared memory."""
    ideal_wavefronts: int = 0
    """Wavefronts that the accesses need without bank conflicts."""
    collisions: int = 0
    """Lanes of atomic requests that share their address with another lane of the request."""
    upper_requests: int = 0
    """Requests if diverged lanes did not join again before the next barrier or warp operation."""
    upper_sectors: int = 0
    upper_wavefronts: int = 0
    requests_saved_8: int = 0
    """Requests saved if neighbouring accesses were merged to 8 bytes per lane."""
    sectors_saved_8: int = 0
    wavefronts_saved_8: int = 0
    ideal_wavefronts_saved_8: int = 0
    requests_saved_16: int = 0
    """Requests saved if neighbouring accesses were merged to 16 bytes per lane."""
    sectors_saved_16: int = 0
    wavefronts_saved_16: int = 0
    ideal_wavefronts_saved_16: int = 0

    @property
    def place(self) -> str:
        """Return the line number as text, such as "line 12"."""
        return place_text(self.file, self.line, self.called_from)

    @property
    def access_text(self) -> str:
        """Return the kind of access as text, such as "shared load 4 B"."""
        return f"{self.space} {self.kind} {self.width} B"

    @property
    def bytes(self) -> int:
        """Return the bytes that all active lanes request."""
        return self.lanes * self.width

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of the sectors that are transferred; 0 for shared memory."""
        return self.sectors * SECTOR_BYTES

    @property
    def in_sectors(self) -> bool:
        """Return whether the access transfers sectors: global memory, accessed directly or through the TMA."""
        return self.space in ("global", "bulk")

    @property
    def lanes_per_request(self) -> float:
        """Return the mean number of active lanes in a request, at most 32."""
        return ratio_or_zero(self.lanes, self.requests)

    @property
    def sectors_per_request(self) -> float:
        """Return the sectors per request: 1 if all lanes share one, 4 for coalesced 4-byte accesses, 32 at most."""
        return ratio_or_zero(self.sectors, self.requests)

    @property
    def ideal_sectors_per_request(self) -> float:
        """Return the sectors per request if the requested bytes were contiguous."""
        return ratio_or_zero(self.ideal_sectors, self.requests)

    @property
    def conflicts(self) -> int:
        """Return the additional wavefronts that bank conflicts cause."""
        return self.wavefronts - self.ideal_wavefronts

    @property
    def conflicts_per_request(self) -> float:
        """Return the additional wavefronts per request that bank conflicts cause."""
        return ratio_or_zero(self.conflicts, self.requests)

    def scaled(self, factor: float) -> LineTraffic:
        """Multiply all counts by a factor, for launches of which only some blocks were counted."""
        return replace(self, **{name: round(getattr(self, name) * factor) for name in COUNTS})

    def __add__(self, other: LineTraffic) -> LineTraffic:
        """Add the counts of two records; the sum has the first one's source position."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in COUNTS})


COUNTS = tuple(f.name for f in fields(LineTraffic) if f.default == 0 and f.name not in ("column", "called_from"))
"""The fields of a line's traffic that are counts."""
SAVED_COUNTS = tuple(name for name in COUNTS if "_saved_" in name)
"""The counts that wider accesses would save."""


@dataclass(frozen=True)
class BranchTraffic:
    """A source line at which the threads of a warp took different paths."""

    kernel: str
    file: str
    line: int
    executions: int = 0
    """How often a warp, or its converged part, executed the line's branches."""
    divergent: int = 0
    """How often the lanes diverged there."""
    fewest_lanes: int = 0
    """Lanes on the path with fewer lanes, summed over the divergences: 1 each if one lane was elected."""
    called_from: int = field(default=0, kw_only=True)
    """For a line of a header: the line of the kernel's own file that calls it; 0 if there is none."""

    @property
    def mean_fewest_lanes(self) -> float:
        """Return the mean number of lanes on the path with fewer lanes."""
        return ratio_or_zero(self.fewest_lanes, self.divergent)

    @property
    def share(self) -> float:
        """Return the fraction of executions at which the warp diverged."""
        return ratio_or_zero(self.divergent, self.executions)

    def scaled(self, factor: float) -> BranchTraffic:
        """Multiply all counts by a factor, for launches of which only some blocks were counted."""
        executions, divergent, fewest = self.executions, self.divergent, self.fewest_lanes
        executions, divergent, fewest = (round(count * factor) for count in (executions, divergent, fewest))
        return replace(self, executions=executions, divergent=divergent, fewest_lanes=fewest)

    def __add__(self, other: BranchTraffic) -> BranchTraffic:
        """Add the counts of two records; the sum has the first one's source position."""
        return replace(
            self,
            executions=self.executions + other.executions,
            divergent=self.divergent + other.divergent,
            fewest_lanes=self.fewest_lanes + other.fewest_lanes,
        )


@dataclass(frozen=True)
class CacheTraffic:
    """Predicted cache misses of the counted requests, in sectors, for caches that are cold before the first launch."""

    l2_loads: int = 0
    """Sectors of loads that missed in L1 or bypassed L1."""
    l2_stores: int = 0
    l2_atomics: int = 0
    dram_loads: int = 0
    """Sectors of loads and atomic updates that missed in L2."""
    dram_stores: int = 0
    """Sectors that L2 wrote back on eviction; modified lines that remain in L2 at the end do not count."""
    carried: int = 0
    """Read hits in L2 on data from an earlier launch of the case."""

    def __add__(self, other: CacheTraffic) -> CacheTraffic:
        """Add the counts of two records."""
        return CacheTraffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(CacheTraffic)))


@dataclass(frozen=True)
class KernelTraffic:
    """The number of launches, blocks, threads and barriers of one kernel, and how many blocks were counted."""

    kernel: str
    launches: int
    blocks: int
    counted_blocks: int
    threads: int
    """Threads of one block."""
    barriers: int
    """Block-wide barriers passed by the counted blocks."""
    caches: CacheTraffic | None = None
    """Predicted; None if some blocks were not counted or no caches were modelled."""

    @property
    def barriers_per_block(self) -> float:
        """Return the mean number of block-wide barriers that a block passes."""
        return ratio_or_zero(self.barriers, self.counted_blocks)

    @property
    def sampled(self) -> bool:
        """Return whether only some of the blocks were counted."""
        return self.counted_blocks < self.blocks

    @property
    def factor(self) -> float:
        """Return the factor that converts a count of the sampled blocks to an estimate for all blocks."""
        return ratio_or_zero(self.blocks, self.counted_blocks)

    def __add__(self, other: KernelTraffic) -> KernelTraffic:
        """Add two launches of the same kernel."""
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
    """All counts of one traced run of a case."""

    lines: tuple[LineTraffic, ...] = ()
    """Sorted by kernel, file, line and column."""
    kernels: tuple[KernelTraffic, ...] = ()
    source: str = ORIGIN_COUNTED
    """"counted" on the cpu backend from the source's own accesses, "measured" by hardware, or "predicted"."""
    complete: bool = field(default=True)
    """False if a launch was abandoned."""
    branches: tuple[BranchTraffic, ...] = ()
    """The divergent branches, sorted by kernel, file and line."""

    def select(self, *, kernel: str = "", space: str = "", kind: str = "", line: int = 0) -> list[LineTraffic]:
        """Return the lines that match all the given values."""
        conditions = {"kernel": kernel, "space": space, "kind": kind, "line": line}
        given_conditions = {name: value for name, value in conditions.items() if value}
        return [
            entry
            for entry in self.lines
            if all(getattr(entry, name) == value for name, value in given_conditions.items())
        ]

    def total(self, name: str, **selection: Any) -> int:
        """Return the sum of a count or derived value over matching lines, as in `total("sectors", kind="load")`."""
        return sum(getattr(entry, name) for entry in self.select(**selection))

    def kernel(self, name: str) -> KernelTraffic:
        """Return the record of one kernel's launches."""
        for entry in self.kernels:
            if entry.kernel == name:
                return entry
        raise UsageError(unknown_name("kernel", name, [entry.kernel for entry in self.kernels]))

    def scaled_to_all_blocks(self) -> Traffic:
        """Scale the counts of sampled kernels to all their blocks; return self if every block was counted."""
        factors = {entry.kernel: entry.factor for entry in self.kernels if entry.sampled}
        if not factors:
            return self
        lines = tuple(e.scaled(factors[e.kernel]) if e.kernel in factors else e for e in self.lines)
        branches = tuple(e.scaled(factors[e.kernel]) if e.kernel in factors else e for e in self.branches)
        return replace(self, lines=lines, branches=branches, source=ORIGIN_PREDICTED)

    def renamed(self, convert: Callable[[str], str]) -> Traffic:
        """Return the same traffic with each file name replaced by `convert(file)`."""
        lines = tuple(replace(entry, file=convert(entry.file)) for entry in self.lines)
        return replace(self, lines=lines, branches=tuple(replace(e, file=convert(e.file)) for e in self.branches))

    def __add__(self, other: Traffic) -> Traffic:
        """Add the traffic of both; they must come from the same source."""
        if self.source != other.source:
            raise NotAllowed(
                f"{other.source} traffic cannot be added to {self.source} traffic; add only traffic that is "
                f"{self.source}, too",
                kind="mixed-sources",
                value=other.source,
                allowed=self.source,
            )
        return gather(
            (*self.lines, *other.lines),
            (*self.kernels, *other.kernels),
            self.source,
            self.complete and other.complete,
            (*self.branches, *other.branches),
        )

    def to_json(self) -> dict[str, JSON]:
        """Return the traffic as JSON values for the results file, without counts of 0."""
        return {
            "source": self.source,
            "complete": self.complete,
            "kernels": [asdict(entry) for entry in self.kernels],
            "lines": [{k: v for k, v in asdict(entry).items() if v != 0} for entry in self.lines],
            "branches": [asdict(entry) for entry in self.branches],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Traffic:
        """Return the traffic from the JSON values of `to_json`; raises TypeError or ValueError for others."""
        return from_json(Traffic, {**data, "lines": [{"line": 0, **entry} for entry in data.get("lines", ())]})


def gather(
    lines: Iterable[LineTraffic],
    kernels: Iterable[KernelTraffic],
    source: str = ORIGIN_COUNTED,
    complete: bool = True,
    branches: Iterable[BranchTraffic] = (),
) -> Traffic:
    """Combine counts from several records: add those with the same source position, space, kind and width."""
    merged: dict[tuple[object, ...], LineTraffic] = {}
    for entry in lines:
        position = (entry.kernel, entry.file, entry.line, entry.column, entry.called_from)
        key = (*position, entry.space, entry.kind, entry.width)
        merged[key] = merged[key] + entry if key in merged else entry
    kernels_by_name: dict[str, KernelTraffic] = {}
    for launch in kernels:
        kernels_by_name[launch.kernel] = (
            kernels_by_name[launch.kernel] + launch if launch.kernel in kernels_by_name else launch
        )
    merged_branches: dict[tuple[object, ...], BranchTraffic] = {}
    for branch in branches:
        branch_position = (branch.kernel, branch.file, branch.line, branch.called_from)
        merged_branches[branch_position] = (
            merged_branches[branch_position] + branch if branch_position in merged_branches else branch
        )
    return Traffic(
        tuple(merged[key] for key in sorted(merged)),
        tuple(kernels_by_name.values()),
        source,
        complete,
        tuple(merged_branches[branch_position] for branch_position in sorted(merged_branches)),
    )


def ratio_or_zero(part: float, whole: float) -> float:
    """Return part / whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0
