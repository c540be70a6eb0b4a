"""A summary of one case's traffic, and the differences between the summaries of two variants."""

from __future__ import annotations

from dataclasses import dataclass

from opbench import units
from opbench.backend.counts import Traffic

EQUAL_TOLERANCE = 0.01
"""Relative difference up to which counts are equal, because extrapolated counts are not exact."""


@dataclass(frozen=True)
class TrafficSummary:
    """Ratios and sums over all kernels of a case; None if the case has no such access."""

    sectors_per_load: float | None
    """32-byte sectors that a global load request of a warp touches."""
    ideal_sectors_per_load: float | None
    """Sectors per request if the requested bytes were contiguous."""
    sectors_per_store: float | None
    ideal_sectors_per_store: float | None
    moved_bytes: int
    """Sectors of global memory touched, in bytes."""
    asked_bytes: int
    """Bytes of global memory that the threads request."""
    shared_wavefronts: int
    bank_conflict_share: float | None
    """Share of shared-memory wavefronts that bank conflicts add."""
    atomic_collision_share: float | None
    """Share of the lanes of atomics whose address another lane of the warp also updates."""
    barriers_per_block: float | None
    """Block-wide barriers per block of the kernel with the most."""
    source: str
    """"counted", or "predicted" if extrapolated from some blocks."""

    def ratio_to(self, base: TrafficSummary) -> float | None:
        """Return this traffic divided by that of `base`; None if neither is known.

        Bytes moved are compared or, if these are equal, wavefronts of shared memory.
        """
        for own_amount, base_amount in (
            (self.moved_bytes, base.moved_bytes),
            (self.shared_wavefronts, base.shared_wavefronts),
        ):
            if own_amount and base_amount and abs(own_amount / base_amount - 1) > EQUAL_TOLERANCE:
                return own_amount / base_amount
        return 1.0 if self.moved_bytes and base.moved_bytes else None

    def differences(self, base: TrafficSummary) -> list[str]:
        """Return phrases that compare both, such as "sectors per load request 4.0 (ideal 4.0), not 32.0"."""
        texts = [_bytes_text(self.moved_bytes, base.moved_bytes)]
        for kind, own_sectors, ideal_sectors, base_sectors in (
            ("load", self.sectors_per_load, self.ideal_sectors_per_load, base.sectors_per_load),
            ("store", self.sectors_per_store, self.ideal_sectors_per_store, base.sectors_per_store),
        ):
            if (
                own_sectors is not None
                and base_sectors is not None
                and ideal_sectors is not None
                and abs(own_sectors / base_sectors - 1) > EQUAL_TOLERANCE
            ):
                texts.append(
                    f"sectors per {kind} request {own_sectors:.1f} (ideal {ideal_sectors:.1f}), not {base_sectors:.1f}"
                )
        if self.bank_conflict_share != base.bank_conflict_share:
            shares = [
                "no shared memory" if share is None else f"{units.percent(share)} of wavefronts"
                for share in (self.bank_conflict_share, base.bank_conflict_share)
            ]
            texts.append(f"bank conflicts: {shares[0]}, not {shares[1]}")
        return texts


def _bytes_text(own_bytes: int, base_bytes: int) -> str:
    """Return how two numbers of bytes compare, such as "moves 8.00× fewer bytes (1.09 MB, not 8.76 MB)"."""
    if own_bytes and base_bytes and abs(own_bytes / base_bytes - 1) <= EQUAL_TOLERANCE:
        return f"moves as many bytes ({units.si(own_bytes, 'B')})"
    times = f"{units.ratio(max(own_bytes / base_bytes, base_bytes / own_bytes))} " if own_bytes and base_bytes else ""
    return (
        f"moves {times}{'fewer' if own_bytes < base_bytes else 'more'} bytes ({units.si(own_bytes, 'B')}, not "
        f"{units.si(base_bytes, 'B')})"
    )


def summarise(traffic: Traffic) -> TrafficSummary | None:
    """Return the summary of a case's traffic; None for a launch that was abandoned halfway."""
    if not traffic.complete:
        return None
    total_traffic = traffic.scaled_to_all_blocks()

    def share(part: str, total_name: str, **selection: str) -> float | None:
        total = total_traffic.total(total_name, **selection)
        return total_traffic.total(part, **selection) / total if total else None

    return TrafficSummary(
        sectors_per_load=share("sectors", "requests", space="global", kind="load"),
        ideal_sectors_per_load=share("ideal_sectors", "requests", space="global", kind="load"),
        sectors_per_store=share("sectors", "requests", space="global", kind="store"),
        ideal_sectors_per_store=share("ideal_sectors", "requests", space="global", kind="store"),
        moved_bytes=total_traffic.total("moved_bytes", space="global"),
        asked_bytes=total_traffic.total("bytes", space="global"),
        shared_wavefronts=total_traffic.total("wavefronts", space="shared"),
        bank_conflict_share=share("conflicts", "wavefronts", space="shared"),
        atomic_collision_share=share("collisions", "lanes", kind="atomic"),
        barriers_per_block=max((kernel.barriers_per_block for kernel in total_traffic.kernels), default=None),
        source=total_traffic.source,
    )
