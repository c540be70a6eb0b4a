"""The page of a network's run: prepares every text and number that the template prints, and writes it."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path

from opbench import units
from opbench.errors import EnvironmentFault
from opbench.gpu.limits.ceilings import Ceilings, datasheet
from opbench.networks.records.network import NodeRecord, Record, batch, by_time, node_sum, variant_of
from opbench.networks.report import words
from opbench.networks.report.drawing import graph_chart
from opbench.networks.report.figures import memory_chart, timeline_chart
from opbench.paths import write_atomically
from opbench.records import from_json
from opbench.report.charts.chart import Chart
from opbench.report.charts.svg import STYLE, to_png
from opbench.report.run.evidence import ceilings_table, flat_rows
from opbench.report.run.sentences import gpu_name
from opbench.report.template import render_template
from opbench.report.terminal import error
from opbench.results.header import Revision, short_revision

PAGE = "network.html"


def write_network(record: Record, folder: Path) -> list[Path]:
    """Write network.html and its charts as PNG into a folder; a pure function of the record.

    Returns the files written, the page first.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        found = (graph_chart(record), timeline_chart(record), memory_chart(record))
        page = render(record, *(_drawn(chart) for chart in found))
        pictures = {f"{chart.name}.png": to_png(chart.figure) for chart in found if chart}
    files = {PAGE: page.encode("utf-8"), **pictures}
    for name, content in files.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, content)
        except OSError as fault:
            raise EnvironmentFault(
                f"{folder / name}: cannot write: {fault.strerror or fault}; choose another folder with --out DIR; "
                "the record is kept: opbench report DIR"
            ) from None
    return [folder / name for name in files]


Drawn = dict[str, object] | None
PIXELS_PER_POINT = 1.6


def _drawn(chart: Chart | None) -> Drawn:
    """A chart for the page, with the width in pixels at which its text is as large as the page's small text."""
    if chart is None:
        return None
    return {**chart.drawn(chart.name), "width": round(72 * PIXELS_PER_POINT * chart.figure.get_figwidth())}


def render(record: Record, graph: Drawn, timeline: Drawn, memory: Drawn) -> str:
    """The page around its drawn charts."""
    known = Ceilings.from_json(record["ceilings"]) if record.get("ceilings") else None
    environment = record.get("environment") or {}
    largest = max((node.get("share") or 0.0 for node in record["nodes"]), default=0.0)
    numbers = {node["name"]: number for number, node in enumerate(record["nodes"], 1)}
    return render_template(
        "network.html.j2",
        title=words.headline_name(record),
        facts=_facts(record, environment),
        headline=words.headline(record),
        notices=words.notices(record),
        batch=batch(record),
        against=_against(record),
        versions=_versions(record),
        graph=graph,
        timeline=timeline,
        memory=memory,
        timed=node_sum(record) is not None,
        between=_between(record),
        nodes=[_row(node, numbers[node["name"]], record, largest) for node in by_time(record)],
        memory_facts=_memory(record),
        passes=record.get("passes") or [],
        ceilings=ceilings_table(known, datasheet(str(environment.get("gpu") or known.gpu)) if known else None),
        predicting=gpu_name(known) if known and not record.get("total") else "",
        commands=_commands(record),
        options=flat_rows(record.get("options") or {}),
        environment=flat_rows(environment),
    )


def _facts(record: Record, environment: Mapping[str, object]) -> list[str]:
    """The line above the title."""
    device = environment.get("gpu") or environment.get("device") or environment.get("processor") or ""
    version = f"opbench {record['opbench']}" if record.get("opbench") else ""
    commit = short_revision(from_json(Revision, record["revision"]) if record.get("revision") else None)
    told = f"commit {commit}" if commit else ""
    facts = ["network", f"backend {record['backend']}", device, record.get("started"), version, told]
    return [str(fact) for fact in facts if fact]


def _against(record: Record) -> list[dict[str, object]]:
    """Return ours first, then each of PyTorch's ways, fastest first."""
    total = record.get("total")
    found = words.peers(record)
    if not found or not total:
        return []
    outputs = ((record.get("check") or {}).get("outputs") or {}).values()
    worst = max((told["norm_error"] for told in outputs if told.get("norm_error") is not None), default=None)
    peak = record["memory"].get("peak_bytes")
    own = words.PeerTime("opbench", total, None, peak, worst, host=record.get("host"))
    ordered = sorted(found, key=lambda peer: peer.measured["median_s"] if peer.measured else math.inf)
    return [_peer(peer, batch(record), own=peer is own) for peer in (own, *ordered)]


def _peer(peer: words.PeerTime, images: int, *, own: bool) -> dict[str, object]:
    value, _, ends = peer.times.partition(" ")
    time, _, interval = words.span(peer.measured).partition(" [")
    return {
        "own": own,
        "name": peer.name,
        "time": time,
        "interval": interval.rstrip("]"),
        "image": units.time(peer.measured["median_s"] / images) if peer.measured else "–",
        "ratio": value,
        "ratio_ends": ends,
        "verdict": "" if own else peer.error or peer.verdict,
        "host": units.time(peer.host["median_s"]) if peer.host else "–",
        "peak": words.size(peer.peak_bytes),
        "error": error(peer.norm_error),
    }


def _versions(record: Record) -> str:
    named = [peer["versions"] for peer in (record.get("peers") or {}).values() if peer.get("versions")]
    told = record.get("peer_versions") or (named[0] if named else {})
    return ", ".join(f"{name} {version}" for name, version in told.items()) or "versions unknown"


def _between(record: Record) -> str:
    cost = record.get("between_s")
    return f"each alone, less the {units.time(cost)} that the events between two nodes cost" if cost else ""


def _row(node: NodeRecord, number: int, record: Record, largest: float) -> dict[str, object]:
    """A node's row as text, with the numbers to sort it by."""
    check = node.get("check") or {}
    variant, config = variant_of(node)
    share = node.get("share")
    sort = {
        "time": node.get("kernel_s"),
        "share": share,
        "least": node.get("bound_s"),
        "roof": node.get("roof_share"),
        "flops": node.get("flops"),
        "bytes": node.get("compulsory_bytes"),
        "error": check.get("worst_error"),
        "norm": check.get("norm_error"),
    }
    return {
        "number": number,
        "name": node["name"],
        "operator": node["operator"],
        "converts": node["name"] in (record.get("conversions") or ()),
        "case": node["case"],
        "kernels": ", ".join(node.get("kernels") or ()),
        "variant": variant,
        "config": config,
        "precision": node.get("precision") or "",
        "title": node.get("title") or "",
        "problem": node.get("problem") or "",
        "time": units.time(node.get("kernel_s")),
        "share": units.percent(share),
        "width": f"{100 * share / largest:.0f}" if share and largest else "",
        "least": units.time(node.get("bound_s")),
        "bound": node.get("bound") or "",
        "roof": units.percent(node.get("roof_share")),
        "flops": units.si(node.get("flops") or None, "FLOP"),
        "bytes": words.size(node.get("compulsory_bytes")),
        "source": words.source_words(node),
        "wrong": words.fault(node) if check.get("right") is False else "",
        "reason": check.get("reason") or "",
        "error": error(check.get("worst_error")),
        "allowed": error(check.get("allowed_error")),
        "norm": error(check.get("norm_error")),
        "allowed_norm": error(check.get("allowed_norm_error")),
        "sort": {
            key: "" if value is None or not math.isfinite(value) else f"{value:.6g}" for key, value in sort.items()
        },
    }


def _memory(record: Record) -> list[tuple[str, str]]:
    memory = record["memory"]
    told = {
        "activations at the peak": memory.get("peak_bytes"),
        "the most that is alive at once, which no plan can go below": memory.get("lower_bound_bytes"),
        "a buffer for each value": memory.get("naive_bytes"),
        "weights": memory.get("weights_bytes"),
        "prepared once of weights": memory.get("prepared_bytes") or None,
    }
    return [(label, words.size(nbytes)) for label, nbytes in told.items() if nbytes is not None]


def _commands(record: Record) -> list[tuple[str, str]]:
    """What to type to repeat the run, and to write this page again."""
    sizes = [word for key, value in record["sizes"].items() for word in (f"--{key}", str(value))]
    made = ["net", "run", str(record["network"]), *sizes, "--precision", str(record["precision"])]
    run = "opbench " + shlex.join(record.get("command") or [*made, "--backend", str(record["backend"])])
    return [("the run", run), ("this page again, from the run's folder", "opbench report .")]
