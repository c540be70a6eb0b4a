"""Find performance problems in a case's traffic: the line, the cost and the mechanism that removes it.

Costs are in passes: 128 bytes through the L1 cache, one wavefront of shared memory, one wait of a warp at a barrier, or
the second path of a divergent warp. Costs rank the problems of one case; they predict no time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from opbench import units
from opbench.backend.counts import BranchTraffic, KernelTraffic, LineTraffic, Traffic
from opbench.backend.findings import place_text
from opbench.insight.subject import Subject
from opbench.kernels.mechanism import (
    BANK_CONFLICT_FREE,
    BLOCK_REDUCTION,
    COALESCED,
    FEWER_BARRIERS,
    MECHANISMS,
    REGISTER_TILE,
    SHARED_MEMORY_TILE,
    SHARED_MEMORY_TRANSPOSE,
    UNIFORM_WARPS,
    VECTORISED_ACCESS,
)

WARP = 32
SECTORS_PER_PASS = 4
WIDEST_BYTES = 16
NARROW_BYTES = 4
UNCOALESCED_RATIO = 1.5
"""An access with more sectors than this multiple of the ideal is uncoalesced."""
STRIDED_RATIO = 4.5
"""Below this multiple of the ideal sectors, another index order does not help."""
DENSE_SHARE = 0.75
"""Below this multiple of the ideal sectors lanes share addresses, so wider accesses do not help."""
STREAMING_FLOPS = 2.0
"""Up to this many FLOPs per byte, loads and stores limit a kernel that reads each byte once."""
REREAD_RATIO = 2.0
"""A line is reported if it fetches this multiple of all bytes of the arrays and the workspace."""
CONFLICT_SHARE = 0.1
"""Smallest reported share of wavefronts that are bank conflicts."""
FEW_LANES = 24
DIVERGENT_SHARE = 0.25
"""Smallest reported share of divergent executions of a branch; fewer come from the edge of the problem."""
FEWEST_LANES = 2
"""With fewer lanes than this on the shorter path, a branch only elects a lane."""
MIN_REQUEST_SHARE = 0.1
"""Lines with a smaller share of the kernel's requests are not reported for narrow accesses or idle lanes."""
MIN_COST_SHARE = 0.01
"""A problem that costs a smaller share of all passes is not reported."""
SHARED_BOUND_LOADS = 8
"""From this many shared loads per global request, shared memory is the limit."""
BUSY_REQUESTS = 8
"""With fewer requests between two barriers than this, a warp mostly waits."""
SKIPPING_ADVICE = "let each lane fetch whole vectors and keep what it needs, or stage rows in shared memory"
SCALAR_PATH_ADVICE = "vector accesses are left out where rows do not divide by their width: pad the rows of the problem"

PROBLEMS: Mapping[str, str] = {
    "scalar path": "R7",
    "strided": "R7",
    "uncoalesced": "R7",
    "narrow": "R8",
    "re-read": "R6",
    "bank conflicts": "R10",
    "shared loads": "R12",
    "atomic collisions": "",
    "divergence": "R20",
    "barriers": "R14",
}
"""The kinds of problems, each with the advisor's rule for it; empty where there is none."""


@dataclass(frozen=True)
class Diagnosis:
    """One performance problem of one source line."""

    kind: str
    rule: str
    """The advisor's rule of `PROBLEMS`, such as "R7"; empty if no rule applies."""
    kernel: str
    file: str
    line: int
    called_from: int
    """For a line of a header: the calling line in the kernel's own file; otherwise 0."""
    cost: float
    """Avoidable passes, or avoidable requests if `unit` is "requests"."""
    share: float
    """Cost divided by all passes, or all requests, of the case."""
    evidence: str
    """The counted accesses, as a phrase."""
    advice: str
    """The change that removes the problem, as a phrase."""
    source: str
    """How the evidence was obtained: "counted" or "predicted"."""
    mechanism: str
    """The mechanism that removes the cost, a key of `opbench.kernels.mechanism.MECHANISMS`."""
    remedies: tuple[str, ...]
    """Variants of this operator that use the mechanism, the nearest on the ladder first."""
    unit: str = "passes"
    """What `cost` counts: "passes", or "requests" if wider accesses move the same bytes in as many passes."""

    @property
    def place(self) -> str:
        """Return the place, such as "line 12"; the kernel if no line is known."""
        return place_text(self.file, self.line, self.called_from) if self.line else self.kernel

    @property
    def saving(self) -> str:
        """Return the possible saving, such as "up to 12 % of all passes could be saved"."""
        return saving([self])

    @property
    def sentence(self) -> str:
        """Return the evidence and the advice as one sentence."""
        return f"{self.evidence} ({self.source}): {self.advice}"


def saving(problems: Sequence[Diagnosis]) -> str:
    """Return what removing some problems of one unit could save together, as a phrase."""
    return f"up to {units.percent(sum(p.share for p in problems))} of all {problems[0].unit} could be saved"


def group_by_advice(problems: Sequence[Diagnosis]) -> list[list[Diagnosis]]:
    """Group problems with the same kind, advice, unit and kernel, such as those of several lines; the costliest group
    first.
    """
    groups: dict[tuple[str, str, str, str], list[Diagnosis]] = {}
    for problem in problems:
        groups.setdefault((problem.kind, problem.advice, problem.unit, problem.kernel), []).append(problem)
    return sorted(groups.values(), key=lambda group: -sum(problem.cost for problem in group))


def group_headline(group: Sequence[Diagnosis], all_problems: Sequence[Diagnosis]) -> str:
    """Return one line on problems with the same advice: their source lines, their kind and their common saving.

    The line names the kernel if `all_problems` concern several kernels.
    """
    has_several_kernels = len({problem.kernel for problem in all_problems}) > 1
    locations = list(dict.fromkeys(problem.place for problem in group))
    if locations[1:] and all(problem.line and not problem.called_from for problem in group):
        numbers = sorted({problem.line for problem in group})
        location = f"lines {units.join_words([*map(str, numbers)])}"
    else:
        location = ", ".join(locations)
    location += f" in {group[0].kernel}" if has_several_kernels and group[0].line else ""
    return f"{location}: {group[0].kind}, {saving(group)}"


@dataclass(frozen=True)
class LaunchView:
    """The traffic of a case's launches with its source texts: the input of the rules in this module."""

    subject: Subject
    traffic: Traffic
    sources: Mapping[str, str]

    @property
    def passes(self) -> float:
        """Return the passes of all launches, to which the cost of a problem is related."""
        accesses = sum(entry.sectors / SECTORS_PER_PASS + entry.wavefronts for entry in self.traffic.lines)
        # Lanes of an atomic request that share an address are serialised.
        serialised_lanes = sum(entry.collisions for entry in self.traffic.lines)
        # A divergent warp executes one path after the other.
        divergent_paths = sum(branch.divergent for branch in self.traffic.branches)
        return (
            accesses
            + serialised_lanes
            + divergent_paths
            + sum(barrier_waits(kernel) for kernel in self.traffic.kernels)
        )

    def requests(self, kernel: str, space: str = "") -> int:
        """Return the requests of a kernel, in one memory space or in all."""
        return self.traffic.total("requests", kernel=kernel, space=space)

    def problem(
        self,
        kind: str,
        access: LineTraffic | BranchTraffic,
        cost: float,
        evidence: str,
        mechanism: str,
        advice: str = "",
    ) -> Diagnosis:
        """Return a problem of an access or branch.

        The advice is that of the mechanism unless it is given; it names the variants to look at.
        """
        variant_ids = self.subject.remedies(mechanism)
        return Diagnosis(
            kind=kind,
            rule=PROBLEMS[kind],
            kernel=access.kernel,
            file=access.file,
            line=access.line,
            called_from=access.called_from,
            cost=cost,
            share=cost / self.passes if self.passes else 0.0,
            evidence=evidence,
            advice=(advice or MECHANISMS[mechanism]) + _variant_references(variant_ids),
            source=self.traffic.source,
            mechanism=mechanism,
            remedies=tuple(variant_ids),
        )


def diagnose(subject: Subject, traffic: Traffic, sources: Mapping[str, str]) -> list[Diagnosis]:
    """Find all problems of the launches, the costliest first."""
    view = LaunchView(subject, traffic, sources)
    problems_by_access: dict[tuple[str, str, int, int, str], list[Diagnosis]] = {}
    for entry in traffic.lines:
        access_problems = problems_by_access.setdefault(
            (entry.kernel, entry.file, entry.line, entry.called_from, entry.access_text), []
        )
        access_problems += [problem for rule in RULES if entry.requests for problem in rule(view, entry)]
    diagnoses = [problem for problems in problems_by_access.values() for problem in _merge_by_line(problems)]
    diagnoses += [problem for kernel in traffic.kernels for problem in _find_barriers(view, kernel)]
    divergent_lines = {
        (problem.kernel, problem.file, problem.line) for problem in diagnoses if problem.kind == "divergence"
    }
    for branch in traffic.branches:
        if (branch.kernel, branch.file, branch.line) not in divergent_lines:
            diagnoses += _find_divergent_branch(view, branch)
    diagnoses = [problem for problem in diagnoses if problem.cost >= MIN_COST_SHARE * view.passes]
    return sorted(diagnoses, key=lambda problem: (-problem.cost, problem.file, problem.line, problem.kind))


def _merge_by_line(problems: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Merge problems of one kind on one line: keep the text of the costliest, and add the costs."""
    diagnoses: dict[str, Diagnosis] = {}
    for problem in sorted(problems, key=lambda problem: -problem.cost):
        merged = diagnoses.get(problem.kind)
        diagnoses[problem.kind] = (
            replace(merged, cost=merged.cost + problem.cost, share=merged.share + problem.share) if merged else problem
        )
    return list(diagnoses.values())


def _variant_references(variant_ids: Sequence[str]) -> str:
    """Return the variants as a suffix, such as " (see softmax/online, softmax/block_per_row and 2 more)"; ""
    for none.
    """
    if not variant_ids:
        return ""
    more = f" and {len(variant_ids) - 2} more" if len(variant_ids) > 2 else ""
    return f" (see {', '.join(variant_ids[:2])}{more})"


def barrier_waits(kernel: KernelTraffic) -> float:
    """Return the number of waits of warps at block-wide barriers, over all blocks."""
    return kernel.barriers_per_block * kernel.blocks * -(-kernel.threads // WARP)


def access_text(entry: LineTraffic) -> str:
    """Describe an access, such as "4-byte shared load"."""
    return f"{entry.width}-byte {entry.space} {entry.kind}"


def _is_wasteful(entry: LineTraffic) -> bool:
    """Return whether a global access touches clearly more sectors than its bytes need.

    One more sector per request is a matter of alignment.
    """
    return (
        entry.space == "global"
        and entry.kind != "atomic"
        and entry.sectors > UNCOALESCED_RATIO * entry.ideal_sectors
        and entry.sectors - entry.ideal_sectors > entry.requests
    )


def _is_contiguous(entry: LineTraffic) -> bool:
    """Return whether lanes access different bytes that are contiguous."""
    return entry.sectors >= DENSE_SHARE * entry.ideal_sectors and not _is_wasteful(entry)


def _are_sectors_distinct(entry: LineTraffic) -> bool:
    """Return whether each lane accesses a different sector."""
    return _is_wasteful(entry) and entry.sectors >= 0.9 * entry.lanes


def _find_uncoalesced(view: LaunchView, entry: LineTraffic) -> Iterator[Diagnosis]:
    """Yield a problem if a global access touches clearly more sectors than its bytes need."""
    if not _is_wasteful(entry):
        return
    evidence = (
        f"each {access_text(entry)} request touches {entry.sectors_per_request:.1f} sectors on average "
        f"where {entry.ideal_sectors_per_request:.1f} would hold its bytes"
    )
    cost = (entry.sectors - entry.ideal_sectors) / SECTORS_PER_PASS
    # A line may have a strided access and a broadcast, which halves its average, so all lines of the kernel count.
    wrong_index = any(
        _are_sectors_distinct(other) for other in view.traffic.select(kernel=entry.kernel, space="global")
    )
    if entry.sectors < STRIDED_RATIO * entry.ideal_sectors and entry.width < WIDEST_BYTES and not wrong_index:
        evidence += ", as lanes skip elements or rows are short"
        if view.subject.uses(VECTORISED_ACCESS):
            diagnosis = view.problem("scalar path", entry, cost, evidence, VECTORISED_ACCESS)
            yield replace(diagnosis, advice=SCALAR_PATH_ADVICE, remedies=())
            return
        choices = (VECTORISED_ACCESS, SHARED_MEMORY_TRANSPOSE, SHARED_MEMORY_TILE)
        mechanism = next((choice for choice in choices if view.subject.remedies(choice)), VECTORISED_ACCESS)
        yield view.problem("strided", entry, cost, evidence, mechanism, SKIPPING_ADVICE)
        return
    partner = _transpose_counterpart(view, entry)
    if partner is not None:
        other = "store" if entry.kind == "load" else "load"
        partner_text = f"the {other} of {partner.place}" if partner.line != entry.line else f"this line's {other}"
        evidence += f", while {partner_text} is coalesced: another index order would only swap the two"
        yield view.problem("uncoalesced", entry, cost, evidence, SHARED_MEMORY_TRANSPOSE)
        return
    lanes_text = ", one for each lane" if _are_sectors_distinct(entry) else ""
    yield view.problem("uncoalesced", entry, cost, evidence + lanes_text, COALESCED)


def _transpose_counterpart(view: LaunchView, entry: LineTraffic) -> LineTraffic | None:
    """Return the coalesced access in the other direction if the kernel does nothing but these two: a transposition."""
    opposite_kind = "store" if entry.kind == "load" else "load"
    total_bytes = view.traffic.total("bytes", kernel=entry.kernel, space="global")
    for candidate in view.traffic.select(kernel=entry.kernel, space="global", kind=opposite_kind):
        is_similar = entry.bytes <= 2 * candidate.bytes <= 4 * entry.bytes
        if _is_contiguous(candidate) and is_similar and entry.bytes + candidate.bytes >= 0.9 * total_bytes:
            return candidate
    return None


def _find_narrow_accesses(view: LaunchView, entry: LineTraffic) -> Iterator[Diagnosis]:
    """Yield a problem for 4-byte accesses that stream or stage into shared memory; elsewhere reuse matters more."""
    if entry.space != "global" or entry.kind == "atomic" or entry.width > NARROW_BYTES or not _is_contiguous(entry):
        return
    requested_bytes = view.traffic.total("bytes", space="global")
    compulsory_bytes = view.subject.compulsory_bytes
    streaming = requested_bytes <= 1.3 * compulsory_bytes and view.subject.flops <= STREAMING_FLOPS * compulsory_bytes
    opposite_kind = "store" if entry.kind == "load" else "load"
    line_accesses = view.traffic.select(line=entry.line, kernel=entry.kernel, space="shared", kind=opposite_kind)
    staged = any(e.file == entry.file for e in line_accesses)
    is_frequent = entry.requests >= MIN_REQUEST_SHARE * view.requests(entry.kernel, "global")
    if not (streaming or staged) or entry.lanes_per_request < FEW_LANES or not is_frequent:
        return
    evidence = f"all lanes {entry.kind} neighbouring elements {entry.width} bytes at a time"
    cost = entry.requests * (1 - entry.width / WIDEST_BYTES)
    diagnosis = view.problem("narrow", entry, cost, evidence, VECTORISED_ACCESS)
    yield replace(diagnosis, unit="requests", share=cost / view.traffic.total("requests"))


def _find_rereads(view: LaunchView, entry: LineTraffic) -> Iterator[Diagnosis]:
    """Yield a problem if a load fetches the bytes of all arrays several times."""
    if entry.space != "global" or entry.kind != "load":
        return
    fetched_bytes, array_bytes = min(entry.bytes, entry.moved_bytes), view.subject.array_bytes
    if not array_bytes or fetched_bytes < REREAD_RATIO * array_bytes:
        return
    evidence = (
        f"the line fetches {units.si(fetched_bytes, 'B')}, {units.ratio(fetched_bytes / array_bytes)} the bytes "
        "of all arrays; "
        "caches may catch the rest, at the price of requests"
    )
    uses_shared_memory = view.requests(entry.kernel, "shared") > 0
    mechanism = REGISTER_TILE if uses_shared_memory else SHARED_MEMORY_TILE
    cost = (fetched_bytes - array_bytes) / (WARP * 4)
    yield view.problem("re-read", entry, cost, evidence, mechanism)


def _find_bank_conflicts(view: LaunchView, entry: LineTraffic) -> Iterator[Diagnosis]:
    """Yield a problem if bank conflicts are a notable part of an access to shared memory."""
    if entry.space != "shared" or entry.conflicts < CONFLICT_SHARE * entry.wavefronts or not entry.conflicts:
        return
    wavefronts = entry.wavefronts / entry.requests
    evidence = (
        f"each {access_text(entry)} request takes {wavefronts:.1f} wavefronts where "
        f"{wavefronts - entry.conflicts_per_request:.1f} would do: {entry.conflicts_per_request:.1f} bank conflicts"
    )
    yield view.problem("bank conflicts", entry, entry.conflicts, evidence, BANK_CONFLICT_FREE)


def _find_shared_bound(view: LaunchView, entry: LineTraffic) -> Iterator[Diagnosis]:
    """Yield a problem if narrow loads from shared memory are many times as frequent as global requests."""
    if (
        entry.space != "shared"
        or entry.kind != "load"
        or entry.width >= WIDEST_BYTES
        or entry.lanes_per_request < FEW_LANES
    ):
        return
    loads = view.traffic.total("requests", kernel=entry.kernel, space="shared", kind="load")
    global_requests = view.requests(entry.kernel, "global")
    all_requests = view.requests(entry.kernel)
    if (
        not global_requests
        or loads < SHARED_BOUND_LOADS * global_requests
        or entry.requests < MIN_REQUEST_SHARE * all_requests
    ):
        return
    mechanism = VECTORISED_ACCESS if view.subject.uses(REGISTER_TILE) else REGISTER_TILE
    evidence = f"{loads / global_requests:.0f} shared loads for each global request, here of {entry.width} bytes a lane"
    cost = entry.requests * (1 - entry.width / WIDEST_BYTES)
    yield view.problem("shared loads", entry, cost, evidence, mechanism)


def _find_atomic_collisions(view: LaunchView, entry: LineTraffic) -> Iterator[Diagnosis]:
    """Yield a problem if many lanes of an atomic update the same address."""
    if entry.kind != "atomic" or 4 * entry.collisions < entry.lanes:
        return
    evidence = f"{units.percent(entry.collisions / entry.lanes)} of the lanes update an address that another lane has"
    yield view.problem("atomic collisions", entry, entry.collisions, evidence, BLOCK_REDUCTION)


def _find_divergence(view: LaunchView, entry: LineTraffic) -> Iterator[Diagnosis]:
    """Yield a problem if few lanes take part in an access while other accesses to the same memory space have many."""
    min_requests = MIN_REQUEST_SHARE * view.requests(entry.kernel)
    # One lane that writes the warp's result was elected; this is no divergence.
    if entry.lanes_per_request >= FEW_LANES or entry.lanes <= entry.requests or entry.requests < min_requests:
        return
    same_space = view.traffic.select(kernel=entry.kernel, space=entry.space)
    most_lanes = max(e.lanes_per_request for e in same_space if e.requests >= min_requests / 5)
    if entry.lanes_per_request >= 0.75 * most_lanes:
        return
    evidence = f"{entry.lanes_per_request:.1f} of {WARP} lanes take part in a {access_text(entry)} of this line"
    passes = min(float(entry.requests), entry.sectors / SECTORS_PER_PASS + entry.wavefronts)
    cost = passes * (1 - entry.lanes_per_request / WARP)
    yield view.problem("divergence", entry, cost, evidence, UNIFORM_WARPS)


def _find_divergent_branch(view: LaunchView, branch: BranchTraffic) -> Iterator[Diagnosis]:
    """Yield a problem for a branch that often diverges; each time costs a pass through the path with fewer lanes."""
    # One lane that writes the warp's result was elected; the end of an array or a block's last step diverges only once.
    is_rare = branch.share < DIVERGENT_SHARE or branch.divergent < MIN_REQUEST_SHARE * view.requests(branch.kernel)
    if is_rare or branch.fewest_lanes < FEWEST_LANES * branch.divergent:
        return
    evidence = (
        f"{units.percent(branch.share)} of the {branch.executions} executions of this branch by a warp split its "
        f"lanes; on average, {branch.mean_fewest_lanes:.1f} lanes take the path with fewer lanes"
    )
    yield view.problem("divergence", branch, float(branch.divergent), evidence, UNIFORM_WARPS)


def _find_barriers(view: LaunchView, kernel: KernelTraffic) -> Iterator[Diagnosis]:
    """Yield a problem if a kernel has many barriers and few requests between two of them."""
    wait_count, requests = barrier_waits(kernel), view.requests(kernel.kernel)
    if kernel.barriers_per_block < 4 or kernel.threads <= WARP or requests >= BUSY_REQUESTS * wait_count:
        return
    evidence = (
        f"{kernel.barriers_per_block:.0f} block-wide barriers a block, {requests / wait_count:.1f} requests "
        "of a warp between two of them"
    )
    yield view.problem("barriers", _barrier_line(view, kernel.kernel), wait_count, evidence, FEWER_BARRIERS)


def _barrier_line(view: LaunchView, kernel: str) -> LineTraffic:
    """Return the line of the most deeply indented barrier among a kernel's lines; line 0 if there is none."""
    accesses = view.traffic.select(kernel=kernel)
    for path in dict.fromkeys(entry.file for entry in accesses):
        lines = [entry.line for entry in accesses if entry.file == path]
        text = view.sources.get(path) or view.subject.text(path)
        barriers = [
            (len(text) - len(text.lstrip()), -number)
            for number, text in enumerate(text.splitlines(), start=1)
            if min(lines) <= number <= max(lines) and re.search(r"\b__syncthreads\s*\(|\.sync\(\)", text)
        ]
        if barriers:
            return LineTraffic(kernel, path, -max(barriers)[1], "shared", "load", 0)
    return LineTraffic(kernel, "", 0, "shared", "load", 0)


Rule = Callable[[LaunchView, LineTraffic], Iterator[Diagnosis]]
RULES: tuple[Rule, ...] = (
    _find_uncoalesced,
    _find_narrow_accesses,
    _find_rereads,
    _find_bank_conflicts,
    _find_shared_bound,
    _find_atomic_collisions,
    _find_divergence,
)
