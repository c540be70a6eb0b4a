"""Sentences and table cells about a network's run, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.case_names import split_case
from opbench.networks.records.network import (
    NodeRecord,
    Record,
    Times,
    ValueRecord,
    images_per_run,
    lower_bound_s,
    nodes_by_time,
    sum_of_times_alone_s,
    variant_of,
)
from opbench.report.bars import Bar, scaled
from opbench.report.run.sentences import code, gpu_phrase
from opbench.timing.measurement import TimingWarning
from opbench.timing.stats import Interval, Ratio, interval_ratio

MOST_OF_THE_TIME = 0.5
"""The slowest nodes that together take this share of the time are named as the most expensive."""
MAX_NODES = 8
"""Most nodes that are named as the most expensive; of more, their operators are."""
MAX_NAMED = 5
"""Most wrongly recognised pictures that are named."""


def short_name(record: Record) -> str:
    """Return the name of a run without the network's sizes, such as "unet, batch 1, bf16"."""
    return ", ".join(part for part in (record.network, f"batch {images_per_run(record)}", record.precision) if part)


def headline_name(record: Record) -> str:
    """Return the name of a run for headlines, such as "alexnet, batch 1, bf16"."""
    sizes = ", ".join(f"{key} {value}" for key, value in {"batch": images_per_run(record), **record.sizes}.items())
    return ", ".join(part for part in (record.network, sizes, record.precision) if part)


def time_with_interval(measured: Times | None) -> str:
    """Format a median with its interval, such as "118 µs [117–119 µs]"."""
    median, interval = median_and_interval(measured)
    return f"{median} [{interval}]" if interval else median


def median_and_interval(measured: Times | None) -> tuple[str, str]:
    """Format a median and its 95 % interval as two table cells; "–" and "" for None."""
    if not measured:
        return "–", ""
    return units.time(measured.median_s), units.interval(measured.low_s, measured.high_s)


def size_text(nbytes: float | None) -> str:
    """Format a number of bytes, such as "1.5 MB"."""
    return units.si(nbytes, "B")


def shape_text(value: ValueRecord) -> str:
    """Format a value's shape, layout and dtype, such as "1×256×54×54 nchw f32"; rows have no layout."""
    shape = "×".join(map(str, value.shape))
    layout = f" {value.layout}" if len(value.shape) == 4 and value.layout else ""
    return f"{shape}{layout} {value.dtype}".rstrip()


@dataclass(frozen=True)
class PeerTime:
    """The time of a network in one mode of PyTorch, compared with opbench's."""

    name: str
    measured: Times | None
    ratio: Ratio | None
    """Its time divided by opbench's, so above 1 if opbench is faster; None if the two were not timed with one clock."""
    peak_bytes: int | None
    norm_error: float | None
    error: str = ""
    host: Times | None = None
    """Time of one call from Python; None if not measured."""

    @property
    def verdict(self) -> str:
        """Return which side is faster, or that they tie because the intervals overlap."""
        if self.ratio is None:
            return "not comparable: its time includes launches from the host" if self.measured else "not measured"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "tie"
        return "opbench is faster" if self.ratio.value > 1 else "PyTorch is faster"

    @property
    def times(self) -> str:
        """Return PyTorch's time divided by opbench's, with its interval, as text."""
        if self.ratio is None:
            return "–"
        return f"{units.ratio(self.ratio.value)} [{units.ratio(self.ratio.low)}, {units.ratio(self.ratio.high)}]"


def compared_peers(record: Record) -> list[PeerTime]:
    """Return PyTorch's times compared with opbench's; in older records PyTorch's include launches."""
    own_time = record.total
    peer_times = []
    for name, peer in record.peers.items():
        ratio = time_ratio(peer.times, own_time) if peer.captured else None
        error = peer.error or ("" if peer.times else "not measured")
        peer_times.append(PeerTime(name, peer.times, ratio, peer.peak_bytes, peer.norm_error, error, peer.host))
    return peer_times


def smallest_peer(record: Record) -> PeerTime | None:
    """Return PyTorch's mode with the smallest peak of memory, without weights; None without a measurement."""
    return min(
        (peer for peer in compared_peers(record) if peer.peak_bytes),
        key=lambda peer: peer.peak_bytes or 0,
        default=None,
    )


def fastest_peer(peer_times: Sequence[PeerTime]) -> PeerTime | None:
    """Return the fastest mode of PyTorch with a time on opbench's clock; None without one."""
    timed = [(peer.measured.median_s, peer) for peer in peer_times if peer.ratio and peer.measured]
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


def speedup(best: PeerTime) -> str:
    """Return a phrase such as "speedup over the fastest PyTorch (torch.compile): 1.96× [1.95×, 1.97×]"."""
    text = f"speedup over the fastest PyTorch ({best.name}): {best.times}"
    if best.verdict == "tie":
        return f"{text}, a tie: the 95 % intervals overlap"
    return text if best.ratio and best.ratio.value > 1 else f"{text}, so opbench is slower"


def time_ratio(top: Times | None, bottom: Times | None) -> Ratio | None:
    """Return one time divided by another, with its interval; None without one of them."""
    if not top or not bottom:
        return None
    intervals = [Interval(m.low_s, m.high_s, m.coverage) for m in (top, bottom)]
    return interval_ratio(top.median_s, intervals[0], bottom.median_s, intervals[1])


def headline(record: Record) -> list[str]:
    """Return the result of a run in a few sentences, the most important first."""
    sentences = [
        _speedup_sentence(record),
        _time_sentence(record),
        _host_sentence(record),
        _not_compared(record),
        _unmeasured_sentence(record),
        _limits_sentence(record),
        _memory_sentence(record),
        _correctness_sentence(record),
        _recognition_sentence(record),
    ]
    return [sentence for sentence in sentences if sentence]


def answer_sentences(record: Record) -> list[str]:
    """Return the first sentences of a page: how fast the network is, then whether it is right.

    Correctness comes first if something is wrong or nothing was timed.
    """
    correct = [sentence for sentence in (_correctness_sentence(record), _recognition_sentence(record)) if sentence]
    best, total = fastest_peer(compared_peers(record)), record.total
    speed = [sentence for sentence in (_time_sentence(record),) if sentence]
    if best and total:
        sentence = speedup(best)
        speed = [f"{_work_text(record)} takes {units.time(total.median_s)}. {sentence[:1].upper()}{sentence[1:]}."]
    return [*speed, *correct] if total and is_right(record) else [*correct, *speed]


def next_steps(record: Record) -> list[str]:
    """Return sentences on what to look at or to do next."""
    sentences = (_limits_sentence(record), _unmeasured_sentence(record), _not_compared(record))
    return [sentence for sentence in sentences if sentence]


def more_times(record: Record) -> list[str]:
    """Return sentences on times that `answer_sentences` omits."""
    times = [_time_sentence(record)] if _speedup_sentence(record) else []
    return [sentence for sentence in (*times, _host_sentence(record)) if sentence]


def bars_of(peer_times: Sequence[PeerTime]) -> list[Bar]:
    """Return one bar for opbench and one for each mode of PyTorch; none without PyTorch.

    The first of `peer_times` is opbench. The longest bar is 100 % wide.
    """
    timed = [
        (peer, peer.measured.median_s) for peer in peer_times if peer.measured and (peer.ratio or peer is peer_times[0])
    ]
    if len(timed) < 2:
        return []
    return scaled(
        [
            Bar(
                peer.name,
                units.time(time_s),
                time_s,
                units.ratio(peer.ratio.value) if peer.ratio else "",
                "own" if peer is peer_times[0] else "",
            )
            for peer, time_s in timed
        ]
    )


def memory_sentences(record: Record) -> list[str]:
    """Return sentences on the memory of a run compared with PyTorch's."""
    sentence = _memory_sentence(record)
    return [sentence] if sentence else []


def _time_sentence(record: Record) -> str:
    total = record.total
    if not total and record.backend != "cpu":
        return ""  # a wrong network has no time; another sentence names the fault
    if not total:
        sentence = (
            f"The {units.count_noun(len(record.nodes), 'node')} ran on a CPU, so nothing was timed: times need a GPU."
        )
        return " ".join(part for part in (sentence, _prediction_sentence(record)) if part)
    items = images_per_run(record)
    per_item = f", {units.time(total.median_s / items)} each" if items > 1 else ""
    kernel = f" (kernels alone {units.time(total.kernel_s)})" if total.kernel_s else ""
    options = record.options
    launch_mode = "as one CUDA graph" if options.graph else "launched node by node"
    branches = ", parallel branches on streams of their own" if options.parallel else ""
    time = f"{time_with_interval(total)}{kernel}{per_item}"
    return f"{_work_text(record)} takes {time}, {launch_mode}{branches}, from a {total.mode} start."


def item_noun(record: Record) -> str:
    """Return the word for one item of the batch."""
    return "sequence" if "tokens" in record.sizes else "image"


def _work_text(record: Record) -> str:
    items, noun = images_per_run(record), item_noun(record)
    return f"One {noun}" if items == 1 else f"A batch of {items} {noun}s"


def _prediction_sentence(record: Record) -> str:
    """Return a sentence on the lower bound of the run on a GPU with known peaks."""
    least_s, ceilings = lower_bound_s(record), record.ceilings or Peaks()
    if least_s is None:
        return ""
    source = "measured peaks" if ceilings.source == "measured" else "the datasheet's peaks"
    name = gpu_phrase(ceilings)
    if ceilings.launch_floor_s and ceilings.launch_floor_s > least_s:
        alone_words = f"their FLOPs and compulsory bytes alone {units.time(least_s)}"
        bound_text = (
            f"Lower bound on {name}: {units.time(ceilings.launch_floor_s)} (one launch); {alone_words}, by {source}."
        )
    else:
        bound_text = f"Lower bound on {name}: {units.time(least_s)} for their FLOPs and compulsory bytes, by {source}."
    alone_s = sum_of_times_alone_s(record)
    alone_text = f" Where they were measured, these variants took {units.time(alone_s)} one by one." if alone_s else ""
    return f"{bound_text}{alone_text}"


def _speedup_sentence(record: Record) -> str:
    """Return a sentence on the speedup over PyTorch; empty unless one clock timed both."""
    best, total = fastest_peer(compared_peers(record)), record.total
    if not best or not best.measured or not total:
        return ""
    text = speedup(best)
    graphs = record.options.graph
    launch_mode = "both as one CUDA graph" if graphs else "PyTorch as one CUDA graph, opbench launched node by node"
    times = f"{units.time(total.median_s)} and {units.time(best.measured.median_s)}"
    return f"{text[:1].upper()}{text[1:]}. GPU time, cold L2, {launch_mode}: {times}."


def _host_sentence(record: Record) -> str:
    """Return a sentence on the time of one call from Python."""
    opbench_host = record.host
    if not opbench_host:
        return ""
    peer_hosts = [(peer.host.median_s, peer.name) for peer in compared_peers(record) if peer.host]
    host_texts = [
        f"{name} {units.time(seconds)}" for seconds, name in [(opbench_host.median_s, "opbench"), *sorted(peer_hosts)]
    ]
    return f"One call from Python until the GPU is done, caches warm: {units.join_words(host_texts)}."


def _not_compared(record: Record) -> str:
    """Return sentences on PyTorch's modes without a speedup, with the reason."""
    compared = compared_peers(record)
    failed = [f"{peer.name} ({peer.error})" for peer in compared if peer.error]
    sentences = [f"Not compared: {'; '.join(failed)}."] if failed else []
    if any(peer.measured and not peer.ratio for peer in compared) and not fastest_peer(compared):
        sentences.append(
            "PyTorch's times in this older record include launches from the host and opbench's do not, so no speedup "
            "follows from them: run it again with `--compare torch`."
        )
    return " ".join(sentences)


def _unmeasured_sentence(record: Record) -> str:
    """Return a sentence on how many variants were chosen without a measurement.

    Empty without a clock, where no choice is about time.
    """
    guessed = [node for node in record.nodes if node.source == "default"] if record.total else []
    return unmeasured_hint(len(guessed), len(record.nodes))


def unmeasured_hint(guessed: int, nodes: int) -> str:
    """Return a sentence on variants that were chosen without a measurement, with the command that measures them."""
    if not guessed:
        return ""
    subject = f"{guessed} of {nodes} variants were" if guessed < nodes else "All variants were"
    advice = "`--tune` measures the candidates, `--results DIR` uses the times of a run"
    return f"{subject} chosen without measurements: {advice}."


def _costly_nodes(record: Record) -> list[str]:
    """Return the nodes that take most of the time, with their shares; for many nodes, the operators."""
    nodes = [(node.name, 1, node.share) for node in nodes_by_time(record) if node.share]
    costly = _first_to_reach(nodes, MOST_OF_THE_TIME)
    if len(costly) <= MAX_NODES:
        return [f"{code(name)} ({units.percent(share)})" for name, _, share in costly]
    operators: dict[str, list[float]] = {}
    for node in record.nodes:
        operators.setdefault(node.operator, []).append(node.share or 0.0)
    sums = [(name, len(shares), sum(shares)) for name, shares in operators.items()]
    costly = _first_to_reach(sorted(sums, key=lambda item: -item[2]), MOST_OF_THE_TIME)
    return [
        f"{units.count_noun(count, 'node')} of {code(name)} ({units.percent(share)})" for name, count, share in costly
    ]


def _first_to_reach(items: Sequence[tuple[str, int, float]], share: float) -> list[tuple[str, int, float]]:
    """Return the first items whose shares add up to `share`."""
    first_items: list[tuple[str, int, float]] = []
    while len(first_items) < len(items) and sum(item[2] for item in first_items) < share:
        first_items.append(items[len(first_items)])
    return first_items


def _limits_sentence(record: Record) -> str:
    """Return a sentence on the lower bound of the run and on the slowest nodes."""
    least_s, total = lower_bound_s(record), record.total
    sentences = []
    if least_s and total:
        share = least_s / (total.kernel_s or total.median_s)
        whole = f"the {units.time(total.kernel_s)} of the kernels alone" if total.kernel_s else "the time"
        sentences.append(
            f"The lower bound by the measured peaks is {units.time(least_s)}, {units.percent(share)} of {whole}."
        )
    if costly := _costly_nodes(record):
        sentences.append(f"Most of the time is in {units.join_words(costly)}.")
    return " ".join(sentences)


def _memory_sentence(record: Record) -> str:
    memory = record.memory
    peak, naive, lower_bound_bytes = memory.peak_bytes, memory.naive_bytes, memory.lower_bound_bytes
    if not peak:
        return ""
    text = "Activations and workspaces" if memory.workspaces else "Activations"
    limit = record.options.memory_bytes
    sentence = f"{text} take {size_text(peak)} at the peak" + (f" ({size_text(limit)} allowed)" if limit else "")
    if naive:
        sentence += f", {units.percent(peak / naive)} of what a buffer for each would take ({size_text(naive)})"
    if lower_bound_bytes:
        sentence += (
            ", the least that any plan can do"
            if peak <= lower_bound_bytes
            else f"; no plan can do with less than {size_text(lower_bound_bytes)}"
        )
    if (peer := smallest_peer(record)) and peer.peak_bytes:
        share = units.percent(peak / peer.peak_bytes)
        sentence += f"; PyTorch takes at least {size_text(peer.peak_bytes)} ({peer.name}; ours is {share})"
    weights = memory.weights_bytes
    prepared = memory.prepared_bytes
    prepared_text = f", the results of setup launches {size_text(prepared)}" if prepared else ""
    return sentence + (f". Weights take {size_text(weights)}{prepared_text}." if weights else ".")


def _correctness_sentence(record: Record) -> str:
    """Return a sentence on whether nodes and outputs agree with the reference."""
    wrong_nodes = [n.name for n in record.nodes if n.is_wrong]
    checked = sum(bool(n.check) for n in record.nodes)
    outputs = record.check.outputs if record.check else {}
    wrong_outputs = [name for name, output in outputs.items() if not output.right]
    if wrong_nodes or wrong_outputs:
        output = [f"node {code(name)}" for name in wrong_nodes] + [f"output {code(name)}" for name in wrong_outputs]
        missing = record.check and record.check.missing
        return f"Wrong: {units.join_words(output)}.{' The network was not run as a whole.' if missing else ''}"
    if record.check and record.check.timed:
        return f"Wrong: {record.check.timed}. The network has no time."
    if not checked and not outputs:
        return "No result was checked."
    worst = max((output.norm_error or 0.0 for output in outputs.values()), default=None)
    error = f", the outputs within {worst:.1e} of it in norm" if worst is not None else ""
    return f"All {units.count_noun(checked, 'node')} agree with the float64 reference{error}."


def _recognition_sentence(record: Record) -> str:
    """Return a sentence on the images that the network classified correctly."""
    classes = record.classes
    if not classes:
        return ""
    pairs = list(zip(classes.found, classes.labels, strict=True))
    mistakes = [f"a {label} is recognised as a {found}" for found, label in pairs if found != label]
    if len(pairs) == 1:
        return f"{mistakes[0].capitalize()}." if mistakes else f"Recognised as a {pairs[0][0]}, which is right."
    correct = f"{len(pairs) - len(mistakes)} of {len(pairs)} pictures are recognised"
    mistake_list = f": {', '.join(mistakes[:MAX_NAMED])}" if mistakes else ""
    return f"{correct}{mistake_list}{', …' if len(mistakes) > MAX_NAMED else ''}."


def notices(record: Record) -> list[str]:
    """Return notices on the quality of measurements, each kind once: "not held (PyTorch eager): it waits …"."""
    times_by_name = {"opbench": record.total, **{name: peer.times for name, peer in record.peers.items()}}
    nodes_by_warning: dict[TimingWarning, list[str]] = {}
    for names, measured in times_by_name.items():
        for warning in measured.warnings if measured else ():
            nodes_by_warning.setdefault(warning, []).append(names)
    return [
        f"{warning.replace('_', ' ')} ({'; '.join(names)}): {warning.advice}."
        for warning, names in nodes_by_warning.items()
    ]


def is_right(record: Record) -> bool:
    """Return whether all checks passed; True without checks."""
    return not any(node.is_wrong for node in record.nodes) and (record.check is None or record.check.right)


def fault_word(node: NodeRecord) -> str:
    """Return "wrong" for a node with wrong results, "failed" for one that did not finish."""
    return (node.check.status if node.check else "") or "wrong"


def node_sentence(node: NodeRecord) -> str:
    """Return the tooltip of a node in the timeline: name, time, bounds and variant."""
    parts = [f"{node.name}: {node.operator}/{''.join(variant_of(node))}{node.problem}"]
    if node.kernel_s is not None:
        parts.append(f"{units.time(node.kernel_s)}, {units.percent(node.share)} of the time")
    if node.bound_s is not None:
        parts.append(f"lower bound {units.time(node.bound_s)} ({node.bound})")
    if once := node.launches_once:
        parts.append(f"{units.count_noun(once, 'kernel')} ran once, when the weights were written")
    if node.check and node.is_wrong:
        parts.append(f"{fault_word(node)}: {node.check.reason}")
    return "; ".join(parts)


def source_text_of(node: NodeRecord) -> str:
    """Return the reason why a node's variant was chosen, with the number of ties."""
    alone_s = node.alone_s
    parts = [(node.source or "–") + (f", {units.time(alone_s)} alone" if alone_s else "")]
    if ties := node.tied_with:
        names = [split_case(case).variant_and_config for case in ties]
        parts.append(f"tied with {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
    elif node.lead:
        parts.append(f"the next best takes {units.ratio(node.lead)}")
    return "; ".join(parts)
