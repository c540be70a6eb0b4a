"""Every network with every named data set: it trains, or the message names commands that do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from opbench.cli import cli
from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.zoo import NETWORKS, alexnet, gpt2_for_training, lenet, unet
from opbench.networks.plan.data import DATA_OF_NETWORK, DataSet, load_data
from support.checks.errors import refuses

DATA = ("digits", "digits+1", "digits:28", "digits:224", "textures", "textures:8", "text")
SMALLEST: Mapping[str, Callable[[], Graph]] = {
    "lenet": lambda: lenet(batch=1),
    "alexnet": lambda: alexnet(batch=1),
    "unet": lambda: unet(batch=1, size=16, base=2, levels=1),
    "resnet18": lambda: NETWORKS["resnet18"](size=32, base=2, classes=10),
    "resnet50": lambda: NETWORKS["resnet50"](size=32, base=2, classes=10),
    "mobilenetv3": lambda: NETWORKS["mobilenetv3"](size=32, width=10, classes=10),
    "gpt2": lambda: gpt2_for_training(tokens=8, layers=1, heads=1, width=4, vocabulary=256),
}
FITTING = {
    ("lenet", "digits"), ("lenet", "digits+1"), ("lenet", "digits:28"),
    ("alexnet", "digits"), ("alexnet", "digits:224"),
    ("unet", "textures"), ("unet", "textures:8"),
    ("resnet18", "digits"), ("resnet18", "digits+1"),
    ("resnet50", "digits"), ("resnet50", "digits+1"),
    ("mobilenetv3", "digits"), ("mobilenetv3", "digits+1"),
    ("gpt2", "text"),
}  # fmt: skip


@cache
def smallest(network: str) -> Graph:
    return SMALLEST[network]()


def data_for(network: str, data: str) -> DataSet:
    """Load the data for the smallest form of a network; refuse what it cannot be trained with."""
    graph = smallest(network)
    found = load_data(data, graph.values[graph.inputs[0]].shape, 0, graph.name)
    found.require_targets(found.loss, graph.values[graph.outputs[0]].shape, graph.name)
    return found


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("network", DATA_OF_NETWORK)
def test_each_pair_fits_or_its_message_names_commands_that_fit(network: str, data: str) -> None:
    if (network, data) in FITTING:
        graph = smallest(network)
        assert data_for(network, data).images.shape[1:] == graph.values[graph.inputs[0]].shape[1:]
        return
    with pytest.raises(UsageError) as refused:
        data_for(network, data)
    commands = set(re.findall(r"opbench net train (\S+) --data ([^\s;]+)", str(refused.value)))
    commands |= {(network, other) for other in re.findall(r"(?:fit: |choose )--data ([^\s;,]+)", str(refused.value))}
    assert network in {name for name, _ in commands}, "for those who stay with the network"
    assert data.partition(":")[0].partition("+")[0] in {source for _, source in commands}, "or with the data"
    assert commands <= FITTING, "each command works"


def test_each_network_is_trained_with_the_data_named_for_it() -> None:
    assert NETWORKS.keys() - DATA_OF_NETWORK.keys() == {"diffusion"}, "for inference only"
    for network, data in DATA_OF_NETWORK.items():
        assert (network, data) in FITTING


def test_textures_are_as_large_as_unet_takes_them_by_default() -> None:
    small, large = (load_data("textures:4", (1, 1, size, size)) for size in (128, 256))
    assert large.images.shape == (4, 1, 256, 256) and large.test_images.shape == (1, 1, 256, 256)
    assert set(np.unique(large.targets)) == {0.0, 1.0} and 0.4 < large.targets.mean() < 0.6
    changes = [float((data.images[..., 1:] != data.images[..., :-1]).mean()) for data in (small, large)]
    assert changes[1] < 0.6 * changes[0], "each pixel of a photograph is two wide"


@pytest.mark.parametrize("data", ["textures:8", "digits"])
def test_grey_data_is_repeated_for_a_network_of_three_channels(data: str) -> None:
    grey, coloured = (load_data(data, (1, channels, 16, 16)) for channels in (1, 3))
    for one, three in ((grey.images, coloured.images), (grey.test_images, coloured.test_images)):
        np.testing.assert_array_equal(three, np.repeat(one, 3, axis=1))
    np.testing.assert_array_equal(grey.targets, coloured.targets)


def test_grey_data_for_a_network_of_other_channels_names_the_way_out() -> None:
    graph = unet(batch=1, size=16, base=2, levels=1, channels=2)
    with refuses("other-shape", "textures:8", value=(1, 16, 16), allowed=(2, 16, 16)):
        load_data("textures:8", graph.values["image"].shape, 0, graph.name)
    classes = unet(batch=1, size=16, base=2, levels=1, classes=3)
    found = load_data("textures:8", classes.values["image"].shape)
    with refuses("other-targets", allowed=(3, 16, 16)):
        found.require_targets(found.loss, classes.values[classes.outputs[0]].shape, "unet")


def test_a_data_set_that_no_memory_holds_is_refused_before_it_is_made() -> None:
    with refuses("too-large", "digits+2", value=4 * 35925 * 224 * 224):
        load_data("digits+2", (1, 1, 224, 224))
    with refuses("too-large", "textures:9999999"):
        load_data("textures:9999999", (1, 1, 64, 64))


@pytest.mark.parametrize(
    "words",
    [
        "unet --data textures:8 --batch 2 --size 16 --base 2 --levels 1",
        "gpt2 --data text --batch 2 --tokens 16 --layers 1 --heads 1 --width 8 --vocabulary 256",
    ],
)
def test_a_pair_that_fits_trains_as_typed(tmp_path: Path, words: str) -> None:
    line = ["net", "train", *words.split(), "--steps", "2", "--backend", "cpu", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli, line)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "train.json").exists()


def test_of_text_the_target_of_each_token_is_the_next_byte(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_bytes(bytes(range(41)))
    data = load_data(str(file), (2, 4), 0, "gpt2")
    assert data.images.dtype == data.targets.dtype == np.int32 and data.targets_per_item == 4
    assert data.unit == "sequences"
    assert len(data.images) + len(data.test_images) == 10 and len(data.test_images) == 2
    everything = np.concatenate([data.images, data.test_images])
    assert sorted(everything.reshape(-1).tolist()) == list(range(40))
    np.testing.assert_array_equal(data.targets, data.images + 1)
    np.testing.assert_array_equal(data.test_targets, data.test_images + 1)
    with refuses("too-short", str(file), value=41, allowed=81):
        load_data(str(file), (2, 40), 0, "gpt2")
    with refuses("unreadable", str(tmp_path / "none.txt")):
        load_data(str(tmp_path / "none.txt"), (2, 4), 0, "gpt2")


def test_a_vocabulary_too_small_for_bytes_is_refused() -> None:
    found = load_data("text", (1, 64), 0, "gpt2")
    with refuses("class-out-of-range", allowed=99):
        found.require_targets("cross_entropy", (64, 100), "gpt2")
