"""Each choice of a network undone alone: what changes, what is checked, what is timed, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import opbench
from opbench import units
from opbench.checking.backends import open_backend
from opbench.checking.binding import allocate, bind
from opbench.emulator import CpuBackend
from opbench.errors import UsageError
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.saving import save
from opbench.graph.values import Node
from opbench.graph.zoo import lenet
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.networks.plan import alternatives, attribution, running
from opbench.networks.plan.executor import Context
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.running import run_network
from opbench.networks.records.attribution import AlternativeRecord, AttributionRecord, Counts
from opbench.networks.records.network import Record, read_network, recoverable_s
from opbench.networks.report.attribution import COMBINED_STEP, attribution_rows, attribution_sentences, waterfall
from opbench.networks.report.page import write_network
from opbench.networks.report.terminal import print_network
from opbench.networks.report.work_next import work_nodes
from opbench.running.targets import own_variants
from opbench.timing.clock import Sample
from opbench.timing.sampling import TimingOptions
from opbench.timing.stats import Interval, interval_difference
from support.builders.network_runs import record, typed
from support.builders.runs import measurement
from support.checks.errors import refuses
from support.common import CATALOG, CHEATS, ROOT
from support.fakes.quiet_clock import QuietClock

QUICK = TimingOptions(warmup_runs=2, warmup_s=0.0, min_samples=12, max_samples=12)


def small() -> Graph:
    """A convolution with batch norm and ReLU, and a sum that is clipped: three passes have something to do.

    Without fuse_relu, fuse_residual fuses the sum without its ReLU.
    """
    net = Builder("small")
    x = net.input("image", 1, 4, 8, 8)
    a = net.relu(net.batchnorm2d(net.conv2d(x, 4, 3, padding=1, name="first"), name="norm"), name="clip")
    b = net.conv2d(a, 4, 1, name="second")
    return net.graph(net.relu(net.elementwise("add", b, x, name="sum"), name="end"))


def attributed(tmp_path: Path, graph: Graph | None = None, **options: Any) -> Record:
    save(graph or small(), tmp_path / "small.json")
    out = tmp_path / "out"
    return run_network(NetOptions(str(tmp_path / "small.json"), backend="cpu", attribution=True, out=out, **options))


class NodeClock(QuietClock):
    """A clock of a device on which each node takes a microsecond."""

    gap_between_launches_s = 0.0

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        launch()
        context = launch.__self__  # type: ignore[attr-defined]
        assert isinstance(context, Context)
        return Sample(1e-6 * len(context.launches))

    def chain(self, launches: list[Callable[[], None]]) -> list[float]:
        for launch in launches:
            launch()
        return [1e-6 for _ in launches]


class TimedCpu(CpuBackend):
    """The cpu backend with a clock, as a GPU has one."""

    l2_bytes = 1 << 20
    name = "cuda"

    def clock(self, mode: str = "cold") -> NodeClock:
        return NodeClock()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.backends, "open_backend", lambda name: TimedCpu())
    monkeypatch.setattr(running, "TIMING", QUICK)
    monkeypatch.setattr(attribution, "TIMING_OPTIONS", QUICK)
    monkeypatch.setattr(running, "_known_ceilings", lambda *_: None)


def by_choice(found: Record) -> dict[str, AlternativeRecord]:
    assert found.attribution
    return {one.choice: one for one in found.attribution.alternatives}


def test_without_a_clock_alternatives_are_checked_and_counted(tmp_path: Path) -> None:
    found = attributed(tmp_path)
    every = by_choice(found)
    assert found.attribution and found.attribution.counts.nodes == len(found.nodes) == 2
    assert every.keys() == {"fold_batchnorm", "fuse_relu", "fuse_residual", "optimised variants"}
    nodes = {name: one.counts and one.counts.nodes for name, one in every.items()}
    assert nodes == {"fold_batchnorm": 3, "fuse_relu": 4, "fuse_residual": 3, "optimised variants": 2}
    assert "norm" in every["fold_batchnorm"].changed and {"clip", "end"} <= set(every["fuse_relu"].changed)
    for one in every.values():
        assert not one.error and one.norm_error is not None and one.allowed and one.norm_error <= one.allowed
        assert one.times is None and one.difference is None
    assert read_network(tmp_path / "out") == found
    assert "They were not timed" in attribution_sentences(found)[0]


@pytest.mark.usefixtures("timed")
def test_each_alternative_is_timed_in_turns_with_the_plan(tmp_path: Path) -> None:
    found = attributed(tmp_path)
    every = by_choice(found)
    for name, more in {"fold_batchnorm": 1, "fuse_relu": 2, "fuse_residual": 1}.items():
        one = every[name]
        assert one.times and one.plan and len(one.times.samples_s) == len(one.plan.samples_s) == 12
        assert one.difference and one.difference.value == pytest.approx(more * 1e-6) and not one.difference.is_noise
    plain = every["optimised variants"].difference
    assert plain and plain.value == 0 and plain.is_noise
    rows = {row["choice"]: row for row in attribution_rows(found)}
    assert rows["fuse_relu"]["nodes"] == "2 → 4" and rows["fuse_relu"]["saves"] == "2.00 µs"
    assert rows["optimised variants"]["saves"] == "noise"
    assert read_network(tmp_path / "out") == found


@pytest.mark.usefixtures("timed")
def test_what_fails_is_listed_with_its_reason_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("no layout works", kind="no-layouts")

    monkeypatch.setattr(alternatives, "_without_pass", refuse)
    every = by_choice(attributed(tmp_path))
    assert every["fuse_relu"].error == "UsageError: no layout works" and every["fuse_relu"].times is None
    assert every["optimised variants"].times


@pytest.mark.usefixtures("timed")
def test_a_wrong_alternative_has_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cheat,) = own_variants(CHEATS / "time" / "works_every_eighth_launch.cu", CATALOG)
    net = Builder("small")
    graph = net.graph(net.maxpool2d(net.relu(net.input("image", 4, 3, 16, 16), name="clip")))
    genuine = alternatives.simplest_case

    def plainest(catalog: Catalog, node: Node, *rest: Any) -> Case:
        return Case(cheat, cheat.configs[0], node.problem) if node.operator == "relu" else genuine(catalog, node, *rest)

    monkeypatch.setattr(alternatives, "simplest_case", plainest)
    found = attributed(tmp_path, graph)
    one = by_choice(found)["optimised variants"]
    assert one.error.startswith("wrong: ") and one.times is None and "clip" in one.changed
    assert found.total and found.check and found.check.right, "the plan itself is right"


@pytest.mark.usefixtures("timed")
def test_a_slow_alternative_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MAX_RUN_S", 0.0)
    every = by_choice(attributed(tmp_path))
    assert all(one.error.startswith("not timed: one run takes") for one in every.values())
    assert all(one.norm_error is not None and one.times is None for one in every.values())


def test_attribution_needs_the_check() -> None:
    with refuses("exclusive", ("--attribution", "--no-check")):
        NetOptions("lenet", attribution=True, check=False)


def test_a_launch_that_may_not_overlap_waits() -> None:
    operator = CATALOG.operator("linear")
    case = next(
        case
        for variant in CATALOG.variants("linear")
        if variant.name == "split_k_stream_early"
        for problem in operator.examples()
        for config in variant.configs
        if (case := Case(variant, config, problem)).unmet_requirement() is None
        and any(step.programmatic for step in case.launches(4))
    )
    backend, problem = open_backend("cpu"), case.problem
    tensors = [*problem.input_tensors(), *problem.output_tensors(), *case.workspace(backend.sm_count)]
    buffers = allocate(backend, tensors)
    waits = [
        [launch.programmatic for launch in bind(backend, case, buffers, overlapped=overlapped).launches]
        for overlapped in (True, False)
    ]
    backend.free(buffers)
    assert any(waits[0]) and not any(waits[1]) and len(waits[0]) == len(waits[1])


# What is shown ----------------------------------------------------------------------------------------------------


def test_a_difference_has_an_interval_that_joins_both() -> None:
    first, second = Interval(9.0, 12.0, 0.95), Interval(6.0, 8.0, 0.96)
    apart = interval_difference(10.0, first, 7.0, second)
    assert (apart.value, apart.coverage, apart.is_noise) == (3.0, 0.95, False)
    assert apart.low == pytest.approx(3 - 2**0.5) and apart.high == pytest.approx(3 + 5**0.5)
    assert interval_difference(7.1, Interval(6.9, 7.3, 0.95), 7.0, second).is_noise


ATTRIBUTED = ROOT / "reports/h100/attribution/unet-1-bf16"
COUNTS = Counts(11, 11, 10**6, 10**7, 10**5, 1e-6)


def with_choices(**saved: float | str) -> Record:
    """A fabricated record whose choices save so many seconds, or fail for a reason; one choice is no step."""
    made = typed(record(lenet()))
    assert made.total
    plan_s = made.total.median_s
    found = []
    for name, saves in saved.items():
        failed = isinstance(saves, str)
        found.append(
            AlternativeRecord(
                name,
                f"no {name}",
                additive=name != "kernels",
                counts=None if failed else replace(COUNTS, nodes=12),
                error=str(saves) if failed else "",
                times=None if failed else measurement(plan_s + float(saves), 0.001),
                plan=None if failed else measurement(plan_s, 0.001),
            )
        )
    return replace(made, attribution=AttributionRecord(COUNTS, tuple(found)))


def test_the_steps_add_up_to_the_difference_from_pytorch() -> None:
    found = with_choices(fuse_relu=4e-6, layouts=-2e-6, memory=1e-12, kernels=1.0, fuse_gelu="UsageError: no")
    steps = waterfall(found)
    assert steps and steps.peer == "torch.compile, channels_last"
    assert [step.name for step in steps.steps] == ["fuse_relu", "layouts", COMBINED_STEP]
    assert steps.steps[0].change_s == pytest.approx(-4e-6) and steps.steps[1].change_s == pytest.approx(2e-6)
    assert steps.peer_s + sum(step.change_s for step in steps.steps) == pytest.approx(steps.own_s)
    sentences = attribution_sentences(found)
    assert "`fuse_relu` −4.00 µs, `layouts` +2.00 µs and `together`" in sentences[0]
    assert sentences[1].startswith("`memory` makes no difference beyond noise")
    assert waterfall(replace(found, peers={})) is None
    huge = with_choices(fuse_relu=4e-6, layouts=1.0)
    steps = waterfall(huge)
    assert steps and [step.name for step in steps.steps] == ["fuse_relu", COMBINED_STEP], (
        "no step is longer than PyTorch"
    )
    assert "`layouts` saves more than PyTorch's whole time" in attribution_sentences(huge)[1]
    assert waterfall(replace(found, attribution=None)) is None


def test_page_and_terminal_have_the_choices_and_the_nodes_worth_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = with_choices(fuse_relu=4e-6, kernels=1.0, fuse_gelu="UsageError: <no>")
    files = write_network(found, tmp_path)
    page = files[0].read_text()
    assert "network-attribution.png" in {path.name for path in files}
    assert 'id="choices"' in page and "UsageError: &lt;no&gt;" in page and "not in the picture" in page
    print_network(found, Console(width=200), "runs/it")
    text = capsys.readouterr().out
    assert "What each choice saves" in text and "  4.00 µs" in text and "UsageError: <no>" in text
    for one in work_nodes(found, "runs/it"):
        assert all(command in text for command in one.commands) and f"<dt>{one.name}</dt>" in page
    plain = write_network(typed(record(lenet())), tmp_path / "plain")
    assert 'id="choices"' not in plain[0].read_text() and len(plain) == len(files) - 1


def test_nodes_rank_by_the_time_above_their_lower_bounds() -> None:
    made = record(lenet())
    times = [(9e-6, 8.9e-6), (5e-6, 1e-6), (4e-6, None), (3e-6, 2e-6), (2e-6, 3e-6)]
    for node, (kernel_s, bound_s) in zip(made["nodes"], times, strict=False):
        node |= {"kernel_s": kernel_s, "bound_s": bound_s}
    made["nodes"] = made["nodes"][: len(times)]
    found = typed(made)
    ranked = work_nodes(found)
    assert [one.name for one in ranked] == [found.nodes[place].name for place in (1, 3, 0)]
    assert [recoverable_s(node) for node in found.nodes] == pytest.approx([1e-7, 4e-6, 0, 1e-6, 0])
    assert ranked[0].share == pytest.approx(4e-6 / 23e-6)
    assert ranked[0].commands[0] == f"opbench explain '{ranked[0].nodes[0].case}'"
    made["nodes"][3]["case"] = made["nodes"][0]["case"] = "conv2d/same(n=1)"
    made["nodes"][3]["kernel_s"] = 6e-6
    together = work_nodes(typed(made))[0]
    assert together.name == f"{found.nodes[0].name} and 1 more" and together.recoverable_s == pytest.approx(4.1e-6)
    assert together.kernel_s == pytest.approx(15e-6) and together.bound_s == pytest.approx(10.9e-6)
    assert not work_nodes(typed(record(lenet(), timed=False)))


def test_older_records_have_no_attribution() -> None:
    stored = json.loads(json.dumps(record(lenet())))
    assert "attribution" not in stored and Record.from_json(stored).attribution is None


def test_the_table_of_the_guide_has_the_numbers_of_the_committed_runs() -> None:
    text = (ROOT / "docs/networks.md").read_text().partition("**On an H100**")[2]
    head, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][:19]
    runs = [read_network(ROOT / "docs" / link.partition("(")[2].rstrip(")")) for link in head if "](" in link]
    assert len(runs) == 5 and len(rows) == 17
    known = {"fastest PyTorch": [units.time(steps.peer_s) for run in runs if (steps := waterfall(run))]}
    known["opbench"] = [f"**{units.time(run.total.median_s)}**" for run in runs if run.total]
    for run in runs:
        for row in attribution_rows(run):
            known.setdefault(f"`{row['choice']}`", ["–"] * len(runs))[runs.index(run)] = str(row["saves"])
    assert {row[0]: row[1:] for row in rows} == known


def test_figures_of_a_notebook_have_the_steps() -> None:
    drawn = [
        set(opbench.figures(opbench.read_run(folder)))
        for folder in (ATTRIBUTED, ROOT / "reports/h200/networks/unet-1-bf16")
    ]
    assert drawn == [{"timeline", "memory", "attribution"}, {"timeline", "memory"}]
