"""Table rows and sentences that compare a training step with PyTorch's."""

from __future__ import annotations

import math

from opbench import units
from opbench.networks.records.training import FirstStepRecord, StepPeer, TrainingRecord
from opbench.networks.report import phrases
from opbench.records import JSON
from opbench.report.bars import Bar

OPBENCH_NAME = "opbench"


def opbench_state(record: TrainingRecord) -> int:
    """Return the bytes of parameters, gradients, moments and statistics, without the data set."""
    return record.memory.state_bytes - record.memory.data_bytes


def opbench_bytes(record: TrainingRecord) -> int:
    """Return the memory of opbench's step in bytes, counted as PyTorch's peak: activations, a batch, and state."""
    return record.memory.activations_bytes + opbench_state(record)


def step_peers(record: TrainingRecord) -> list[phrases.PeerTime]:
    """Return PyTorch's times of the same step, back to back, compared with opbench's."""
    torch_steps = record.comparison.ways if record.comparison else {}
    return [_peer_time(record, name, step) for name, step in torch_steps.items()]


def first_step_text(step: FirstStepRecord) -> str:
    """Return whether PyTorch computes the same first step, with the relative differences and the allowed ones."""
    if not step.errors:
        return f"{step.text}."
    names = {"loss": "loss", "gradients": f"gradient of {step.worst_gradient}", "parameters": "parameter change"}
    parts = [f"{names[key]} {error:.1g} (≤ {step.allowed[key]:.2g})" for key, error in step.errors.items()]
    opening = (
        "The first step agrees with PyTorch's in float64"
        if step.right
        else "The first step differs from PyTorch's, so PyTorch's times say nothing here"
    )
    differences = units.join_words(parts)
    text = f"{opening}: relative differences (and allowed ones) are {differences}, over {step.compared} weights."
    if step.right and max(step.allowed.values()) > 1:
        text += " A limit above 1 proves little: PyTorch's own step in this precision differs half as much."
    return text


def peer_text(record: TrainingRecord) -> list[str]:
    """Return sentences on whether PyTorch computes the same step, and on how much memory it needs."""
    if not (comparison := record.comparison):
        return []
    sentences = [first_step_text(comparison.first_step)]
    peer_times = step_peers(record)
    if peaks := [peer.peak_bytes for peer in peer_times if peer.peak_bytes]:
        own_bytes, least_bytes = opbench_bytes(record), min(peaks)
        share = units.percent(own_bytes / least_bytes)
        sentences.append(
            f"A step needs {phrases.size_text(own_bytes)} of memory, {share} of PyTorch's smallest mode "
            f"({phrases.size_text(least_bytes)})."
        )
    return sentences


def peer_bars(record: TrainingRecord) -> list[Bar]:
    """Return one bar for opbench's step and one for each mode of PyTorch, the fastest first."""
    if not (peer_times := step_peers(record)):
        return []
    ordered = sorted(peer_times, key=lambda peer_time: peer_time.measured.median_s if peer_time.measured else math.inf)
    return phrases.bars_of([phrases.PeerTime(OPBENCH_NAME, record.times.hot, None, None, None), *ordered])


def speed_text(record: TrainingRecord) -> list[str]:
    """Return a sentence on which side's step is faster; none without a comparison."""
    best, hot = phrases.fastest_peer(step_peers(record)), record.times.hot
    if not best or not hot:
        return []
    own, torch = phrases.time_with_interval(hot), phrases.time_with_interval(best.measured)
    return [f"A step takes {own} back to back, {torch} in PyTorch: {phrases.speedup(best)}."]


def peer_rows(record: TrainingRecord) -> list[dict[str, JSON]]:
    """Return the table rows of opbench's step and of PyTorch's modes, the fastest first, failed ones last."""
    comparison = record.comparison
    if not comparison or not comparison.ways:
        return []
    times = record.times
    own, torch_steps = StepPeer(cold=times.cold, hot=times.hot, peak_bytes=opbench_bytes(record)), comparison.ways
    ordered = sorted(torch_steps, key=lambda name: hot.median_s if (hot := torch_steps[name].hot) else math.inf)
    return [_row(record, OPBENCH_NAME, own), *(_row(record, name, torch_steps[name]) for name in ordered)]


def _mode_name(name: str) -> str:
    """Return the name of a mode of PyTorch as the pages of networks write it."""
    return f"PyTorch eager, {name}" if name.startswith("channels_last") else name


def _peer_time(record: TrainingRecord, name: str, step: StepPeer) -> phrases.PeerTime:
    """Return PyTorch's time of steps back to back in one mode, compared with opbench's."""
    ratio = phrases.time_ratio(step.hot, record.times.hot)
    return phrases.PeerTime(_mode_name(name), step.hot, ratio, step.peak_bytes, None, step.error)


def _row(record: TrainingRecord, name: str, step: StepPeer) -> dict[str, JSON]:
    hot, own = step.hot, name == OPBENCH_NAME
    peer = _peer_time(record, name, step)
    ratio, _, ratio_interval = ("–", "", "") if own else peer.times.partition(" ")
    return {
        "own": own,
        "name": _mode_name(name),
        "hot": phrases.median_and_interval(hot),
        "cold": phrases.median_and_interval(step.cold),
        "images": f"{record.batch / hot.median_s:,.0f}" if hot else "–",
        "ratio": ratio,
        "ratio_ends": ratio_interval,
        "verdict": "" if own else peer.error or peer.verdict,
        "peak": phrases.size_text(peer.peak_bytes),
    }
