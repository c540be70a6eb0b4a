"""What a network's run says, in sentences and cells that the page and the terminal share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opbench import units
from opbench.gpu.limits.ceilings import Ceilings
from opbench.networks.records.network import (
    NodeRecord,
    Record,
    Times,
    ValueRecord,
    alone_time,
    batch,
    by_time,
    least_time,
    variant_of,
)
from opbench.report.run.sentences import code, counted, gpu_phrase, listed
from opbench.timing.measurement import Warn
from opbench.timing.stats import Interval, Ratio, interval_ratio

MOST_OF_THE_TIME = 0.5
"""The nodes named as those that cost most are the slowest that together make up this share."""
NAMED = 5
"""Wrongly recognised pictures that are named."""


def headline_name(record: Record) -> str:
    """Such as "alexnet, batch 1, bf16"."""
    sizes = ", ".join(f"{key} {value}" for key, value in {"batch": batch(record), **record["sizes"]}.items())
    return ", ".join(part for part in (str(record["network"]), sizes, str(record["precision"])) if part)


def span(measured: Times | None, divisor: float = 1.0) -> str:
    """A median with its interval, such as "118 µs [117–119 µs]"."""
    if not measured:
        return "–"
    middle, low, high = (each / divisor for each in (measured["median_s"], measured["low_s"], measured["high_s"]))
    return f"{units.time(middle)} [{units.interval(low, high)}]"


def size(nbytes: float | None) -> str:
    """Bytes with their prefix."""
    return units.si(nbytes, "B")


def shape_words(value: ValueRecord) -> str:
    """Such as "1×256×54×54 nchw f32"; a row of features has no layout."""
    shape = value.get("shape") or []
    said = "×".join(map(str, shape))
    layout = f" {value['layout']}" if len(shape) == 4 and value.get("layout") else ""
    return f"{said}{layout} {value.get('dtype', '')}".rstrip()


@dataclass(frozen=True)
class PeerTime:
    """One of PyTorch's ways of the same work in the same run."""

    name: str
    measured: Times | None
    ratio: Ratio | None
    """Its time divided by ours, so above 1 if ours is faster; None if the two are not on one clock."""
    peak_bytes: int | None
    norm_error: float | None
    error: str = ""
    host: Times | None = None
    """Of one call from Python."""

    @property
    def verdict(self) -> str:
        """Which side is faster, as far as both intervals tell."""
        if self.ratio is None:
            return "not comparable: its time includes launches from the host" if self.measured else "not measured"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "tie"
        return "opbench is faster" if self.ratio.value > 1 else "PyTorch is faster"

    @property
    def times(self) -> str:
        """The ratio with its interval."""
        if self.ratio is None:
            return "–"
        return f"{units.ratio(self.ratio.value)} [{units.ratio(self.ratio.low)}, {units.ratio(self.ratio.high)}]"


def peers(record: Record) -> list[PeerTime]:
    """Return PyTorch's ways as recorded, each against ours; in older records their times include launches."""
    own = record.get("total")
    found = []
    for name, told in (record.get("peers") or {}).items():
        measured = told if told.get("median_s") else None
        ratio = time_ratio(measured, own) if told.get("captured") else None
        error = str(told.get("error") or ("" if measured else "not measured"))
        peak, norm_error = told.get("peak_bytes"), told.get("norm_error")
        found.append(PeerTime(name, measured, ratio, peak, norm_error, error, told.get("host")))
    return found


def smallest_peer(record: Record) -> PeerTime | None:
    """Return the way of PyTorch that takes the least memory at its peak, without weights; None if none was measured."""
    return min((peer for peer in peers(record) if peer.peak_bytes), key=lambda peer: peer.peak_bytes or 0, default=None)


def fastest(everyone: Sequence[PeerTime]) -> PeerTime | None:
    """Return the fastest of those that were timed on the clock that timed ours; None if there is none."""
    timed = [(peer.measured["median_s"], peer) for peer in everyone if peer.ratio and peer.measured]
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


def speedup(best: PeerTime) -> str:
    """Return such as "speedup over the fastest PyTorch (torch.compile): 1.96× [1.95×, 1.97×]"."""
    told = f"speedup over the fastest PyTorch ({best.name}): {best.times}"
    if best.verdict == "tie":
        return f"{told}, a tie: the 95 % intervals overlap"
    return told if best.ratio and best.ratio.value > 1 else f"{told}, so opbench is slower"


def time_ratio(top: Times | None, bottom: Times | None) -> Ratio | None:
    """One time over another with its interval; None where one was not measured."""
    if not top or not bottom:
        return None
    intervals = [Interval(m["low_s"], m["high_s"], m["coverage"]) for m in (top, bottom)]
    return interval_ratio(top["median_s"], intervals[0], bottom["median_s"], intervals[1])


def headline(record: Record) -> list[str]:
    """The run in a few sentences, the most important first."""
    told = [
        _speedup(record),
        _time(record),
        _host(record),
        _not_compared(record),
        _unmeasured(record),
        _limits(record),
        _memory(record),
        _right(record),
        _recognised(record),
    ]
    return [sentence for sentence in told if sentence]


def _time(record: Record) -> str:
    total = record.get("total")
    if not total and record["backend"] != "cpu":
        return ""  # something is wrong, which another sentence says
    if not total:
        said = f"The {counted(len(record['nodes']), 'node')} ran on a CPU, so nothing was timed: times need a GPU."
        return " ".join(part for part in (said, _prediction(record)) if part)
    images = batch(record)
    an_image = f", {units.time(total['median_s'] / images)} an image" if images > 1 else ""
    kernel = f" (kernels alone {units.time(total['kernel_s'])})" if total.get("kernel_s") else ""
    options = record.get("options") or {}
    how = "as one CUDA graph" if options.get("graph") else "launched node by node"
    branches = ", parallel branches on streams of their own" if options.get("parallel") else ""
    what = "One image" if images == 1 else f"A batch of {images} images"
    return f"{what} takes {span(total)}{kernel}{an_image}, {how}{branches}, from a {total['mode']} start."


def _prediction(record: Record) -> str:
    """Return the lower bound of a GPU whose peaks are known."""
    least, known = least_time(record), Ceilings.from_json(record.get("ceilings") or {})
    if least is None:
        return ""
    by = "measured peaks" if known.source == "measured" else "the datasheet's peaks"
    name = gpu_phrase(known)
    if known.launch_floor_s and known.launch_floor_s > least:
        alone_words = f"their FLOPs and compulsory bytes alone {units.time(least)}"
        need = f"Lower bound on {name}: {units.time(known.launch_floor_s)} (one launch); {alone_words}, by {by}."
    else:
        need = f"Lower bound on {name}: {units.time(least)} for their FLOPs and compulsory bytes, by {by}."
    alone = alone_time(record)
    took = f" Where they were measured, these variants took {units.time(alone)} one by one." if alone else ""
    return f"{need}{took}"


def _speedup(record: Record) -> str:
    """Both sides on one clock; empty if no way of PyTorch was timed so."""
    best, total = fastest(peers(record)), record.get("total")
    if not best or not best.measured or not total:
        return ""
    told = speedup(best)
    graphs = (record.get("options") or {}).get("graph", True)
    how = "both as one CUDA graph" if graphs else "PyTorch as one CUDA graph, opbench launched node by node"
    times = f"{units.time(total['median_s'])} and {units.time(best.measured['median_s'])}"
    return f"{told[:1].upper()}{told[1:]}. GPU time, cold L2, {how}: {times}."


def _host(record: Record) -> str:
    """Time of one call from Python, on the host's clock."""
    own = record.get("host")
    if not own:
        return ""
    others = [(peer.host["median_s"], peer.name) for peer in peers(record) if peer.host]
    every = [f"{name} {units.time(seconds)}" for seconds, name in [(own["median_s"], "opbench"), *sorted(others)]]
    return f"One call from Python until the GPU is done, caches warm: {listed(every)}."


def _not_compared(record: Record) -> str:
    """Which of PyTorch's ways are in no speedup, and why."""
    told = peers(record)
    failed = [f"{peer.name} ({peer.error})" for peer in told if peer.error]
    said = [f"Not compared: {'; '.join(failed)}."] if failed else []
    if any(peer.measured and not peer.ratio for peer in told) and not fastest(told):
        said.append(
            "PyTorch's times in this older record include launches from the host and opbench's do not, so no speedup "
            "follows from them: run it again with `--compare torch`."
        )
    return " ".join(said)


def _unmeasured(record: Record) -> str:
    """How many variants nobody measured before choosing; empty without a clock, where no choice is about time."""
    guessed = [node for node in record["nodes"] if node.get("source") == "default"] if record.get("total") else []
    return unmeasured(len(guessed), len(record["nodes"]))


def unmeasured(guessed: int, nodes: int) -> str:
    """The same of so many nodes, and how to have them measured."""
    if not guessed:
        return ""
    which = f"{guessed} of {nodes} variants were" if guessed < nodes else "All variants were"
    return f"{which} chosen without measurements: `--tune` measures what could serve, `--results DIR` takes a run's."


def _limits(record: Record) -> str:
    """How far the whole is from its lower bound, and which nodes cost most."""
    least, total = least_time(record), record.get("total")
    said = []
    if least and total:
        share = least / (total.get("kernel_s") or total["median_s"])
        said.append(
            f"The lower bound by the measured peaks is {units.time(least)}, {units.percent(share)} of the time."
        )
    costly: list[str] = []
    reached = 0.0
    for node in by_time(record):
        part = node.get("share")
        if reached >= MOST_OF_THE_TIME or not part:
            break
        reached += part
        costly.append(f"{code(node['name'])} ({units.percent(part)})")
    if costly:
        said.append(f"Most of the time is in {listed(costly)}.")
    return " ".join(said)


def _memory(record: Record) -> str:
    memory = record["memory"]
    peak, naive, least = memory.get("peak_bytes"), memory.get("naive_bytes"), memory.get("lower_bound_bytes")
    if not peak:
        return ""
    what = "Activations and workspaces" if memory.get("workspaces") else "Activations"
    limit = record["options"].get("memory_bytes")
    said = f"{what} take {size(peak)} at the peak" + (f" ({size(limit)} allowed)" if limit else "")
    if naive:
        said += f", {units.percent(peak / naive)} of what a buffer for each would take ({size(naive)})"
    if least:
        said += (
            ", the least that any plan can do" if peak <= least else f"; no plan can do with less than {size(least)}"
        )
    if (peer := smallest_peer(record)) and peer.peak_bytes:
        ours = units.percent(peak / peer.peak_bytes)
        said += f"; PyTorch takes at least {size(peer.peak_bytes)} ({peer.name}; ours is {ours})"
    weights = memory.get("weights_bytes")
    prepared = memory.get("prepared_bytes")
    more = f", what is prepared of them once {size(prepared)}" if prepared else ""
    return said + (f". Weights take {size(weights)}{more}." if weights else ".")


def _right(record: Record) -> str:
    """Whether every node and output agrees with the reference."""
    wrong = [n["name"] for n in record["nodes"] if (n.get("check") or {}).get("right") is False]
    checked = sum(bool(n.get("check")) for n in record["nodes"])
    outputs = (record.get("check") or {}).get("outputs") or {}
    off = [name for name, told in outputs.items() if not told.get("right")]
    if wrong or off:
        told = [f"node {code(name)}" for name in wrong] + [f"output {code(name)}" for name in off]
        missing = (record.get("check") or {}).get("missing")
        return f"Wrong: {listed(told)}.{' The network was not run as a whole.' if missing else ''}"
    if timed := (record.get("check") or {}).get("timed"):
        return f"Wrong: {timed}. The network has no time."
    if not checked and not outputs:
        return "No result was checked."
    worst = max((told.get("norm_error") or 0.0 for told in outputs.values()), default=None)
    error = f", the outputs within {worst:.1e} of it in norm" if worst is not None else ""
    return f"All {counted(checked, 'node')} agree with the float64 reference{error}."


def _recognised(record: Record) -> str:
    """How many pictures whose classes are known were recognised, and which were not."""
    told = record.get("classes")
    if not told:
        return ""
    pairs = list(zip(told["found"], told["labels"], strict=True))
    missed = [f"a {label} is recognised as a {found}" for found, label in pairs if found != label]
    if len(pairs) == 1:
        return f"{missed[0].capitalize()}." if missed else f"Recognised as a {pairs[0][0]}, which is right."
    known = f"{len(pairs) - len(missed)} of {len(pairs)} pictures are recognised"
    return f"{known}{': ' if missed else ''}{', '.join(missed[:NAMED])}{', …' if len(missed) > NAMED else ''}."


def notices(record: Record) -> list[str]:
    """What looked odd in ours or in PyTorch's measurements, each kind once: "not held (PyTorch eager): it waits …"."""
    everyone: dict[str, Times | None] = {"opbench": record.get("total"), **(record.get("peers") or {})}
    found: dict[str, list[str]] = {}
    for who, measured in everyone.items():
        for name in (measured or {}).get("warnings") or ():
            found.setdefault(name, []).append(who)
    return [f"{name.replace('_', ' ')} ({'; '.join(who)}): {Warn(name).advice}." for name, who in found.items()]


def is_right(record: Record) -> bool:
    """Whether nothing that was checked is wrong."""
    nodes = all((node.get("check") or {}).get("right") is not False for node in record["nodes"])
    return nodes and (record.get("check") or {}).get("right") is not False


def fault(node: NodeRecord) -> str:
    """What a node that is not right is: "wrong", or "failed" where it came to no end."""
    return str((node.get("check") or {}).get("status") or "wrong")


def node_sentence(node: NodeRecord) -> str:
    """All there is about a node, for who points at it."""
    said = [f"{node['name']}: {node['operator']}/{''.join(variant_of(node))}{node['problem']}"]
    if node.get("kernel_s") is not None:
        said.append(f"{units.time(node['kernel_s'])}, {units.percent(node.get('share'))} of the time")
    if node.get("bound_s") is not None:
        said.append(f"lower bound {units.time(node['bound_s'])} ({node.get('bound')})")
    if once := node.get("launches_once"):
        said.append(f"{counted(once, 'kernel')} ran once, when the weights were written")
    check = node.get("check") or {}
    if check.get("right") is False:
        said.append(f"{fault(node)}: {check.get('reason') or ''}")
    return "; ".join(said)


def source_words(node: NodeRecord) -> str:
    """Why this variant was chosen, and whether others were as good."""
    alone = node.get("alone_s")
    said = [str(node.get("source") or "–") + (f", {units.time(alone)} alone" if alone else "")]
    if ties := node.get("tied_with"):
        names = [str(case).partition("(")[0].partition("/")[2] for case in ties]
        said.append(f"tied with {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
    elif node.get("lead"):
        said.append(f"the next best takes {units.ratio(node['lead'])}")
    return "; ".join(said)
