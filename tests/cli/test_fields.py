"""Options of a command made from the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from opbench import TrainOptions
from opbench.cli import cli, net
from opbench.cli.dataclass_options import add_options
from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.networks import api
from opbench.networks.plan.options import NetOptions
from opbench.options import argument, option, option_fields, read_bytes, read_seconds, set_types
from opbench.shipping.options import ShipOptions
from opbench.tuning.options import TuneOptions
from support.checks.errors import refuses


@dataclass(frozen=True, kw_only=True)
class Common:
    backend: str = option("auto", "Where it runs.", choices=("auto", "cpu"))
    folders: tuple[Path, ...] = option((), "Further folders.", "--folder", "-f", folder=True)
    memory_bytes: int | None = option(None, "The most.", "--memory", parse=read_bytes)

    def __post_init__(self) -> None:
        set_types(self)


@dataclass(frozen=True, kw_only=True)
class Choices(Common):
    target: str = field(metadata=argument("TARGET"))
    steps: int = option(0, "How many.", minimum=1)
    bucket_bytes: int = option(8 << 20, "How much.", "--bucket", factor=1 << 20, minimum=1)
    rate: float = option(0.5, "How fast.", greater_than=0)
    graph: bool = option(True, "No graph.", "--no-graph")
    tune: bool = option(False, "Tune.")
    out: Path | None = option(None, "Where.")
    command: tuple[str, ...] = ()


SEEN: list[Choices] = []


@click.command()
@add_options(Choices)
@click.option("--more", default=1)
def command(options: Choices, more: int) -> None:
    SEEN.append(options)


def invoke(*words: str) -> Result:
    SEEN.clear()
    return CliRunner().invoke(command, words)


def test_an_option_that_is_not_given_has_the_default_of_its_field() -> None:
    assert invoke("x").exit_code == 0
    assert [Choices(target="x")] == SEEN


def test_values_become_the_types_of_the_fields(tmp_path: Path) -> None:
    words = "x --steps 3 --bucket 2 --rate 2 --no-graph --tune --out o --backend cpu --memory 1.5KB"
    assert invoke(*words.split(), "-f", str(tmp_path), "--folder", "other").exit_code == 0
    (options,) = SEEN
    assert options == Choices(
        target="x", steps=3, bucket_bytes=2 << 20, rate=2.0, graph=False, tune=True, out=Path("o"), backend="cpu",
        memory_bytes=1500, folders=(tmp_path, Path("other")),
    )  # fmt: skip
    assert isinstance(options.rate, float)


@pytest.mark.parametrize(
    "words", ["--steps 0", "--rate 0", "--bucket 0", "--backend gpu", "--memory 3x", "--bucket 1.5", "--more a"]
)
def test_what_a_field_does_not_take_is_refused(words: str) -> None:
    done = invoke("x", *words.split())
    assert not SEEN
    assert done.exit_code == 2 or isinstance(done.exception, UsageError)


def test_only_defaults_that_can_be_typed_are_shown() -> None:
    shown = {p.name: p.default for p in command.params if isinstance(p, click.Option) and p.show_default}
    assert shown == {"bucket_bytes": 8, "rate": 0.5, "backend": "auto"}


def test_own_options_come_before_those_of_bases() -> None:
    names = list(option_fields(Choices))
    assert names.index("out") < names.index("backend") and "command" not in names


def test_texts_become_paths_in_python() -> None:
    made = Choices(target="x", folders=["a", Path("b")], out="c")  # type: ignore[arg-type]
    assert (made.folders, made.out) == ((Path("a"), Path("b")), Path("c"))


def test_a_bare_net_train_passes_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[TrainOptions] = []

    def train(graph: Graph, data: str, options: TrainOptions, **further: object) -> None:
        calls.append(options)
        raise UsageError("enough")

    monkeypatch.setattr(api, "train", train)
    CliRunner().invoke(cli, ["net", "train", "lenet", "--data", "digits"])
    assert [replace(options, out=None, command=()) for options in calls] == [TrainOptions()]


def test_a_bare_net_run_passes_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[NetOptions] = []
    monkeypatch.setattr(net, "run_and_exit", lambda options, as_json: calls.append(options))
    assert CliRunner().invoke(cli, ["net", "run", "lenet"]).exit_code == 0
    (options,) = calls
    assert replace(options, out=NetOptions.out, command=()) == NetOptions("lenet", {"batch": 1})


@pytest.mark.parametrize(("text", "value_s"), [("60s", 60.0), ("90", 90.0), ("5min", 300.0), ("1.5 h", 5400.0)])
def test_a_time_is_read_in_seconds(text: str, value_s: float) -> None:
    assert read_seconds(5.0)(text) == value_s


@pytest.mark.parametrize("text", ["4s", "soon", "-60s", "60 m"])
def test_a_time_that_is_none_or_too_short_is_refused(text: str) -> None:
    with refuses("not-allowed", allowed=5, error=ValueError):
        read_seconds(5.0)(text)


def test_a_search_is_timed_hot_where_it_ranks_by_energy() -> None:
    assert [TuneOptions(energy=energy).mode for energy in (False, True)] == ["cold", "hot"]
    with refuses("exclusive", ("--energy", "--mode")):
        TuneOptions(energy=True, mode="cold")


@pytest.mark.parametrize("kind", [TuneOptions, ShipOptions])
def test_folders_of_variants_are_absolute(
    kind: type[TuneOptions | ShipOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kind(variants=("mine",)).variants == ((tmp_path / "mine").resolve(),)  # type: ignore[arg-type]
