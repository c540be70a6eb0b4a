"""Records of what each choice of a plan saves: a version without the choice, checked and timed next to the plan."""

from __future__ import annotations

from dataclasses import dataclass

from opbench.timing.host import HostTime
from opbench.timing.measurement import Measurement
from opbench.timing.stats import Difference, Interval, interval_difference


@dataclass(frozen=True)
class Counts:
    """The number of nodes, launches, bytes and FLOPs of one run of a network, equal on every device."""

    nodes: int
    launches: int
    """Kernel launches and fills of one run, without setup launches; a call of a library counts as one."""
    compulsory_bytes: int
    flops: int
    memory_bytes: int
    """Bytes of activations and workspaces at the peak."""
    bound_s: float | None = None
    """Sum of the nodes' lower bounds by the measured peaks; None if one is unknown."""


@dataclass(frozen=True)
class AlternativeRecord:
    """The measurements of a network that ran with one choice of its plan undone, such as a fusion."""

    choice: str
    """The choice that is undone, such as "fuse_relu"."""
    instead: str
    """The form of the network that runs instead, in words."""
    additive: bool = True
    """Whether the choice is a step of the waterfall between PyTorch's time and opbench's. A choice is none if PyTorch
    lacks it too, such as a variant."""
    counts: Counts | None = None
    """None if it could not be planned."""
    changed: tuple[str, ...] = ()
    """The nodes that are new or have another variant."""
    unmeasured: int = 0
    """Number of changed nodes whose variant was chosen without a measurement."""
    norm_error: float | None = None
    """Largest error of an output, relative to the float64 reference, in norm."""
    allowed: float | None = None
    times: Measurement | None = None
    """None without a clock, or if it failed."""
    plan: Measurement | None = None
    """Times of the full plan, in turns with those of the alternative."""
    host: HostTime | None = None
    """Time of one call from Python; only if the alternative changes the launches."""
    plan_host: HostTime | None = None
    """The same of the full plan, in turns."""
    error: str = ""
    """Why it was not checked or not timed."""

    @property
    def difference(self) -> Difference | None:
        """Return how much longer the alternative takes than the plan, in seconds with an interval;

        None without times.
        """
        if not self.times or not self.plan:
            return None
        intervals = [Interval(times.low_s, times.high_s, times.coverage) for times in (self.times, self.plan)]
        return interval_difference(self.times.median_s, intervals[0], self.plan.median_s, intervals[1])


@dataclass(frozen=True)
class AttributionRecord:
    """All alternatives of a network, in the order of the choices."""

    counts: Counts
    """Counts of the network under its full plan."""
    alternatives: tuple[AlternativeRecord, ...]
