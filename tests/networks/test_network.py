"""A network's page: every node, edge and number of its record is on it, whatever the record lacks."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from opbench import paths
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.zoo import NETWORKS
from opbench.networks.records.network import groups_by_time, value_lifetimes, variant_of
from opbench.networks.report import phrases, read_network, store_network_record
from opbench.networks.report.layout import layered_layout
from opbench.networks.report.overview import network_folders, networks_overview
from opbench.networks.report.page import write_network
from opbench.networks.report.phrases import (
    PeerTime,
    answer_sentences,
    bars_of,
    compared_peers,
    fastest_peer,
    headline,
    is_right,
    smallest_peer,
)
from opbench.networks.report.terminal import print_network
from opbench.networks.report.work_next import work_nodes
from opbench.records import from_json
from opbench.timing.host import HostTime
from support.builders.network_runs import record, typed
from support.checks.chromium import needs_chromium, opened
from support.checks.errors import Refusal, refuses

UNET = ("unet", {"batch": 2, "size": 64, "base": 8})


def branches() -> Graph:
    """Three branches of unequal length and a long connection around two convolutions."""
    net = Builder("branches")
    x = net.input("image", 1, 8, 20, 20)
    parts = [
        net.conv2d(x, 8, 1, name="one"),
        net.conv2d(net.conv2d(x, 8, 1, name="two"), 8, 3, padding=1, name="three"),
        net.maxpool2d(x, 3, 1, 1, name="pool"),
    ]
    joined = net.concat(net.concat(parts[0], parts[1], name="join"), parts[2], name="joined")
    out = net.conv2d(net.relu(net.conv2d(joined, 24, 1, name="head"), name="relu"), 24, 1, name="last")
    return net.graph(net.concat(out, joined, name="sum"))


def made(name: str = "lenet", **sizes: int) -> Graph:
    return branches() if name == "branches" else NETWORKS[name](**sizes)


def written(tmp_path: Path, values: dict[str, Any]) -> str:
    return write_network(typed(values), tmp_path)[0].read_text()


@pytest.mark.parametrize(("name", "sizes"), [("lenet", {}), ("alexnet", {"batch": 4}), UNET, ("branches", {})])
def test_the_page_shows_every_node_with_its_numbers(tmp_path: Path, name: str, sizes: dict[str, int]) -> None:
    values = record(made(name, **sizes))
    page = written(tmp_path, values)
    for node in values["nodes"]:
        assert page.count(f">{node['name']}<") >= 3, "in the graph, the timeline and the table"
        assert node["case"].replace("<", "&lt;") in page
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert {p.name for p in tmp_path.glob("*.png")} == {f"network-{n}.png" for n in ("graph", "timeline", "memory")}


@pytest.mark.parametrize("name", ["alexnet", "unet", "branches"])
def test_boxes_and_edges_of_a_drawing_keep_apart(name: str) -> None:
    graph = made(name, **(UNET[1] if name == "unet" else {}))
    names = [node.name for node in graph.nodes]
    edges = [
        (producer.name, node.name)
        for node in graph.nodes
        for value in node.inputs.values()
        if value not in graph.weights and (producer := graph.producer(value))
    ]
    layout = layered_layout(names, edges)
    size = layout.sizes
    for a, b in itertools.combinations(layout.boxes.values(), 2):
        assert abs(a.x - b.x) >= size.width or abs(a.y - b.y) >= size.height + size.gap - 1e-9
    for (a, b), route in layout.routes.items():
        for (x1, y1), (x2, y2) in itertools.pairwise(route):
            assert x1 == x2 or y1 == y2, "edges run straight up, down or across"
            for other, box in layout.boxes.items():
                if other in (a, b):
                    continue
                apart_x = max(x1, x2) <= box.x - size.width / 2 or min(x1, x2) >= box.x + size.width / 2
                apart_y = max(y1, y2) <= box.y - size.height / 2 or min(y1, y2) >= box.y + size.height / 2
                assert apart_x or apart_y, f"{a} to {b} runs through {other}"
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in route)


def test_a_network_with_long_skips_is_folded_where_they_stay_short() -> None:
    names = [f"n{i}" for i in range(21)]
    chain = list(itertools.pairwise(names))
    skips = [(names[i], names[20 - i]) for i in (1, 4, 7)]
    layout = layered_layout(names, [*chain, *skips])
    assert {box.column for box in layout.boxes.values()} == {0, 1}
    assert all(abs(layout.boxes[a].row - layout.boxes[b].row) <= 2 for a, b in skips)
    assert {box.column for box in layered_layout(names, chain).boxes.values()} == {0}


def test_without_a_clock_there_are_verdicts_and_no_times(tmp_path: Path) -> None:
    page = written(tmp_path, record(made(), timed=False))
    assert "times need a GPU" in page and "of the time</" not in page and "Compared with PyTorch" not in page
    assert not (tmp_path / "network-timeline.png").exists()


def test_without_a_clock_a_gpu_whose_ceilings_are_known_has_a_least_time(tmp_path: Path) -> None:
    values = record(made(), timed=False)
    assert "Lower bound" not in written(tmp_path, values)
    values["ceilings"] = {"gpu": "NVIDIA L4", "source": "datasheet", "dram_bytes_per_s": 3e11}
    for node in values["nodes"]:
        node |= {"bound_s": 2e-6, "bound": "memory", "alone_s": 3e-6}
    page = written(tmp_path, values)
    assert "Lower bound on an L4: 22.0 µs" in page and "by the datasheet" in page and "took 33.0 µs one by one" in page
    assert page.count("lower bound on L4") == 1 and page.count("2.00 µs") >= len(values["nodes"])
    values["ceilings"]["launch_floor_s"] = 30e-6
    page = written(tmp_path, values)
    assert "Lower bound on an L4: 30.0 µs (one launch)" in page and "alone 22.0 µs" in page


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([7], "Recognised as a 7, which is right."),
        ([1], "A 7 is recognised as a 1."),
        ([7, 2], "2 of 2 pictures are recognised."),
        ([1, 2], "1 of 2 pictures are recognised: a 7 is recognised as a 1."),
        ([0] * 9, "0 of 9 pictures are recognised: " + ", ".join(["a 7 is recognised as a 0"] * 5) + ", …."),
    ],
)
def test_pictures_of_known_classes_are_counted(found: list[int], words: str) -> None:
    labels = [7, 2] if len(found) == 2 else [7] * len(found)
    assert headline(typed(record(made(), classes={"found": found, "labels": labels})))[-1] == words


def test_a_wrong_node_is_named_first_hand() -> None:
    values = record(made())
    assert is_right(typed(values)) and headline(typed(values))[-1].startswith("All 11 nodes agree")
    values["nodes"][3]["check"] |= {"right": False, "reason": "17 of 40 elements"}
    assert not is_right(typed(values)) and headline(typed(values))[-1] == "Wrong: node `conv2`."


def test_the_fair_speedup_comes_first_and_calls_from_python_after_the_times(tmp_path: Path) -> None:
    values = record(made())
    first, second, third, *_ = headline(typed(values))
    best = values["peers"]["torch.compile, channels_last"]
    ratio = best["median_s"] / values["total"]["median_s"]
    assert first.startswith(f"Speedup over the fastest PyTorch (torch.compile, channels_last): {ratio:.2f}× [")
    assert "GPU time, cold L2, both as one CUDA graph: " in first and second.startswith("One image takes ")
    assert third.startswith("One call from Python until the GPU is done, caches warm: opbench ")
    assert third.index("torch.compile, channels_last") < third.index("PyTorch eager "), "fastest first"
    page = written(tmp_path, values)
    assert "GPU time, cold L2 <small>" in page and "call from Python <small>" in page
    values["options"]["graph"] = False
    assert "PyTorch as one CUDA graph, opbench launched node by node" in headline(typed(values))[0]


def test_of_many_expensive_nodes_the_operators_are_named() -> None:
    few, many = (
        typed(record(made(name, **sizes)))
        for name, sizes in (
            ("lenet", {}),
            ("gpt2", {"tokens": 16, "layers": 12, "heads": 2, "width": 32, "vocabulary": 50}),
        )
    )
    costly = [re.findall(r"Most of the time is in (.+)\.", phrases.next_steps(run)[0])[0] for run in (few, many)]
    assert set(re.findall(r"`(\S+)`", costly[0])) <= {node.name for node in few.nodes}
    counts = {name: int(count) for count, name in re.findall(r"(\d+) nodes? of `(\S+)`", costly[1])}
    assert counts
    for operator, count in counts.items():
        assert count == sum(node.operator == operator for node in many.nodes)


def test_a_page_begins_with_the_time_or_with_what_is_wrong() -> None:
    made_record = record(made())
    assert (
        answer_sentences(typed(made_record))[0].startswith("One image takes ")
        and "Speedup over" in answer_sentences(typed(made_record))[0]
    )
    bars = bars_of(
        [PeerTime("opbench", typed(made_record).total, None, None, None), *compared_peers(typed(made_record))]
    )
    assert bars[0].tone == "own" and all(bar.note for bar in bars[1:]) and "100.0" in {bar.width for bar in bars}
    made_record["nodes"][2]["check"]["right"] = False
    assert answer_sentences(typed(made_record))[0].startswith("Wrong: node `")
    untimed = record(made()) | {"total": None}
    assert answer_sentences(typed(untimed))[0].startswith("All 11 nodes agree")


def test_a_slower_opbench_is_called_slower() -> None:
    values = record(made())
    half = {key: values["total"][key] / 2 for key in ("median_s", "low_s", "high_s")}
    values["peers"]["PyTorch eager"] |= half
    assert headline(typed(values))[0].startswith("Speedup over the fastest PyTorch (PyTorch eager): 0.50× [")
    assert "so opbench is slower" in headline(typed(values))[0]


def test_peers_are_compared_with_intervals(tmp_path: Path) -> None:
    values = record(made())
    same = {**values["total"], "norm_error": 0.0, "captured": True}
    called = {**values["peers"]["PyTorch eager"]["host"]}
    values["peers"] = {"PyTorch eager": same, "torch.compile": {"error": "no compiler", "host": called}}
    eager, compiled = compared_peers(typed(values))
    assert (
        eager.verdict == "tie" and compiled.verdict == "not measured" and compiled.host == from_json(HostTime, called)
    )
    page = written(tmp_path, values)
    assert "no compiler" in page and "a tie: the 95 % intervals overlap" in page
    assert "Not compared: torch.compile (no compiler)." in headline(typed(values))


def test_an_older_record_whose_peers_include_launches_has_no_speedup(tmp_path: Path) -> None:
    values = record(made())
    del values["host"]
    for peer in values["peers"].values():
        del peer["captured"], peer["host"]
    assert all(peer.ratio is None and peer.measured for peer in compared_peers(typed(values)))
    text = " ".join(headline(typed(values)))
    assert "Speedup" not in text and "call from Python" not in text
    assert "include launches from the host" in text and "--compare torch" in text
    assert "not comparable: its time includes launches from the host" in written(tmp_path, values)


def test_committed_records_are_read_and_have_a_speedup() -> None:
    for folder in network_folders(paths.shipped_folder("reports") / "h200" / "networks"):
        record_read = read_network(folder)
        best = fastest_peer(compared_peers(record_read))
        assert best and best.ratio and len(headline(record_read)) >= 4


# The table in README.md -------------------------------------------------------------------------------------------


def test_the_table_has_every_network_that_has_the_fair_peer(tmp_path: Path) -> None:
    slower = record(made("alexnet"))
    slower["peers"]["PyTorch eager"] |= {key: slower["total"][key] / 2 for key in ("median_s", "low_s", "high_s")}
    older = record(made("branches"))
    for peer in older["peers"].values():
        del peer["captured"]
    for name, values in {"lenet": record(made()), "alexnet": slower, "older": older}.items():
        store_network_record(typed(values), tmp_path / "h100" / name)
    head, _, *rows = str(networks_overview(network_folders(tmp_path / "h100"), tmp_path)).splitlines()
    assert head.split(" | ")[3] == "speedup" and len(rows) == 2
    assert rows[0].startswith("| [alexnet 1 f32](h100/alexnet) | **") and head.startswith(
        "| network, batch, precision (H200) |"
    )
    assert "(PyTorch eager) | 0.500× |" in rows[0] or "(PyTorch eager) | 0.50× |" in rows[0], "the slower one, too"
    assert "(torch.compile, channels_last) | " in rows[1] and rows[1].endswith("| 50 % |")
    assert all(row.count(" | ") == head.count(" | ") for row in rows)
    assert not networks_overview([tmp_path / "h100" / "older"], tmp_path).rows


def test_memory_is_compared_with_the_smallest_way_of_pytorch(tmp_path: Path) -> None:
    """The fastest way is often the smallest one, too: a larger one is no fair measure."""
    values = record(made())
    compiled = values["peers"]["torch.compile, channels_last"]
    compiled["peak_bytes"] = values["memory"]["peak_bytes"]
    peer = smallest_peer(typed(values))
    assert peer is not None and peer.name == "torch.compile, channels_last"
    store_network_record(typed(values), tmp_path / "lenet")
    assert networks_overview([tmp_path / "lenet"], tmp_path).rows[0].cells[-1] == "100 %"
    assert any("torch.compile, channels_last; ours is 100 %" in line for line in headline(typed(values)))


def test_what_looked_odd_stands_once_with_all_whom_it_concerns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = record(made())
    values["peers"]["torch.compile"] = {**values["total"], "warnings": ["not_held"]}
    values["peers"]["PyTorch eager"]["warnings"] = ["not_held", "noisy"]
    notices = [line for line in phrases.notices(typed(values)) if line.startswith(("not held", "noisy"))]
    assert [line.partition(":")[0] for line in notices] == [
        "not held (PyTorch eager; torch.compile)", "noisy (PyTorch eager)",
    ]  # fmt: skip
    assert all(f'<p class="notice">{line}' in written(tmp_path, values) for line in notices)
    print_network(typed(values), Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert all(f"! {line}" in lines for line in notices), "each on a line of its own"


def test_a_narrow_terminal_has_each_config_below_its_variant(capsys: pytest.CaptureFixture[str]) -> None:
    found = typed(record(made()))
    configs = {n.name: variant_of(n)[1] for n in found.nodes if variant_of(n)[1]}
    print_network(found, Console(width=200, force_terminal=True, color_system=None))
    wide = capsys.readouterr().out
    print_network(found, Console(width=60, force_terminal=True, color_system=None))
    narrow = capsys.readouterr().out.splitlines()
    assert configs
    for name, config in configs.items():
        assert config in wide
        place = next(i for i, line in enumerate(narrow) if line.startswith(f"  {name} "))
        assert config not in narrow[place] and narrow[place + 1].strip() == config.strip("[]")


def test_a_view_lives_as_long_as_what_lies_in_its_memory() -> None:
    values = record(made())
    place = {life.value: life for life in value_lifetimes(typed(values))}
    names = [node["name"] for node in values["nodes"]]
    assert (names[place["pool2"].first], names[place["pool2"].last]) == ("pool2", "fc3")


def test_a_workspace_lives_with_its_node(tmp_path: Path) -> None:
    values = record(made())
    values["memory"]["workspaces"] = {"fc3": {"offset": 64, "bytes": 4096}}
    (life,) = (life for life in value_lifetimes(typed(values)) if life.value == "workspace of fc3")
    assert life.first == life.last == [node["name"] for node in values["nodes"]].index("fc3")
    assert "workspace of fc3: 4.10 kB at 64.0 B, from fc3 to fc3" in written(tmp_path, values)
    assert any(said.startswith("Activations and workspaces take") for said in headline(typed(values)))
    values["options"]["memory_bytes"] = 950_000_000
    assert any(re.search(r"take [\d.]+ .?B at the peak \(950 MB allowed\), ", said) for said in headline(typed(values)))


def test_the_record_is_read_back_and_mistakes_are_named(tmp_path: Path) -> None:
    values = record(made())
    store_network_record(typed(values), tmp_path)
    assert read_network(tmp_path) == typed(values)
    for text, refusal in (
        ('{"format": 2}', Refusal("other-version", "format", value=2, allowed=1)),
        ("{", Refusal("not-json", "network.json")),
        ('{"format": 1}', Refusal("missing-key", "network")),
        ("[]", Refusal("other-version", "format", value="list")),
        (
            json.dumps({**values, "nodes": [{"name": 3}]}),
            Refusal("not-allowed", "nodes[0].name", value=3, allowed="str"),
        ),
        (json.dumps({**values, "peers": {"x": 3}}), Refusal("not-allowed", "peers.x", value=3, allowed="object")),
    ):
        (tmp_path / "network.json").write_text(text)
        with refuses(refusal):
            read_network(tmp_path)


def test_the_terminal_has_a_line_for_all_nodes_of_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    values = record(made())
    first, second = values["nodes"][:2]
    values["nodes"].append({**first, "name": "again"})
    values["nodes"].append({**second, "name": "wrong", "check": {**second["check"], "right": False}})
    groups = groups_by_time(typed(values))
    assert sum(len(group.nodes) for group in groups) == len(values["nodes"]) == len(groups) + 1
    (pair,) = (group for group in groups if len(group.nodes) == 2)
    assert {node.name for node in pair.nodes} == {first["name"], "again"}, "a wrong node has a line of its own"
    assert pair.kernel_s == pytest.approx(2 * first["kernel_s"]) and pair.name.endswith(" and 1 more")
    print_network(typed(values), Console(width=200))
    lines = capsys.readouterr().out.splitlines()
    for group, line in zip(groups, lines[2:], strict=False):
        assert line.startswith(f"  {group.name} ")
    assert lines[0] == "lenet, batch 1, f32" and "as one CUDA graph" in "".join(lines)


def test_nodes_of_a_case_are_one_place_to_work_whatever_their_answers() -> None:
    values = record(made())
    slowest = work_nodes(typed(values))[0].nodes[0]
    (original,) = (node for node in values["nodes"] if node["name"] == slowest.name)
    values["nodes"].append({**original, "name": "wrong", "check": {**original["check"], "right": False}})
    values["nodes"].append({**original, "name": "at its bound", "bound_s": original["kernel_s"]})
    first, *others = work_nodes(typed(values))
    assert {node.name for node in first.nodes} == {slowest.name, "wrong"}
    assert first.recoverable_s == pytest.approx(first.kernel_s - first.bound_s)
    assert slowest.case not in {other.nodes[0].case for other in others}


@needs_chromium
def test_the_page_opens_in_chromium_without_an_error(tmp_path: Path) -> None:
    written(tmp_path, record(made(*UNET[:1], **UNET[1])))
    assert opened(tmp_path, (tmp_path / "network.html").as_uri()).count("<h2") >= 6
