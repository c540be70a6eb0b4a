"""Texts about micro-batches and several GPUs on the page of a training."""

from __future__ import annotations

from opbench import units
from opbench.networks.records.training import TrainingRecord


def ranks_and_micro_batches(record: TrainingRecord) -> tuple[int, int]:
    """Return the number of ranks, and of the micro-batches that each trains before an update."""
    recipe = record.recipe
    return int(recipe.get("ranks", "1")), int(recipe.get("accumulate", "1"))


def batch_text(record: TrainingRecord) -> str:
    """Return the ranks, micro-batches and batch size of a step as text, if there are several."""
    ranks, accumulate = ranks_and_micro_batches(record)
    return " x ".join(str(count) for count in (ranks, accumulate, record.batch) if count > 1) or "1"


def ranks_text(record: TrainingRecord) -> str:
    """Return a phrase with the number of ranks, such as " on 4 GPUs"; "" for one rank."""
    ranks, _ = ranks_and_micro_batches(record)
    return f" over {ranks} {'GPUs' if record.backend == 'cuda' else 'ranks'}" if ranks > 1 else ""


def exchange_text(record: TrainingRecord) -> list[str]:
    """Return sentences on the cost of exchanges between GPUs, if it was measured."""
    times = record.exchange
    if times is None:
        return []
    slowest_s = max(times.ranks_without_s)
    exposed_s = times.step_s - slowest_s
    hidden_share = min(1.0, max(0.0, 1 - exposed_s / times.alone_s)) if times.alone_s else 1.0
    own_time = units.time(slowest_s)
    if (fastest_s := min(times.ranks_without_s)) < slowest_s:
        own_time = units.interval(fastest_s, slowest_s)
    return [
        f"A step takes {units.time(times.step_s)} back to back; without the exchange the GPUs take {own_time} each. "
        f"The exchange alone takes {units.time(times.alone_s)} in {len(times.parts)} parts: "
        f"{100 * hidden_share:.0f} % of it is hidden behind the backward pass."
    ]


def exchange_totals(record: TrainingRecord, group: str) -> tuple[int, float]:
    """Return the number of exchanges in a group of a step, and their time in seconds."""
    if group != "exchange" or record.exchange is None:
        return int(group == "exchange" and ranks_and_micro_batches(record)[0] > 1), 0.0
    return len(record.exchange.parts), record.exchange.alone_s
