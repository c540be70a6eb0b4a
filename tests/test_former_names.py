"""Names of the release before that are still read: options, header keys, attributes of operators."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest
from click.testing import CliRunner

from opbench.cli import FORMER_OPTIONS, cli
from opbench.kernels.folders import Catalog
from opbench.results.rows import FORMER_COLUMNS, frame
from support.builders.runs import relu_run
from support.common import RELU


def network(*words: str) -> str:
    done = CliRunner().invoke(cli, ["net", "show", "lenet", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_former_option_is_read_and_no_help_shows_it() -> None:
    assert FORMER_OPTIONS == {"--without": "--disable", "--leave-out": "--exclude"}
    assert network("--without", "fuse_relu") == network("--disable=fuse_relu") != network()
    assert network("--without=fuse_relu") == network("--disable", "fuse_relu")
    for words in (["net", "run"], ["net", "train"], ["net", "show"], ["ship"]):
        shown = CliRunner().invoke(cli, [*words, "--help"]).output
        assert not any(former in shown for former in FORMER_OPTIONS)
    refused = CliRunner().invoke(cli, ["net", "run", "lenet", "--leave-out", "conv2d/*"])
    assert refused.exit_code and "--exclude" in str(refused.exception or refused.output)


@pytest.mark.parametrize(("former", "now"), [("once = true", "setup = true"), ("[rung.second]", "[variant.second]")])
def test_a_former_header_key_means_the_new_one(tmp_path: Path, former: str, now: str) -> None:
    def read(key: str) -> object:
        table = '[[launch]]\n// kernel = "mine"\n// grid = ["1"]\n// block = ["256"]\n// args = ["x", "out", "n"]\n'
        table += f"// {key}\n" if "=" in key else f'// {key}\n// title = "another"\n'
        path = tmp_path / "mine.cu"
        path.write_text(
            RELU.replace('launch = [{ kernel = "mine", grid = ["cdiv(n, 256)"], block = ["256"] }]\n', table)
        )
        return [(v.name, v.title, [one.setup for one in v.launch]) for v in Catalog().own_variants(path, "relu")]

    assert read(former) == read(now)
    assert "second" in str(read(now)) or "True" in str(read(now))


def test_former_columns_of_a_frame_equal_the_new_ones() -> None:
    table = frame(relu_run())
    assert FORMER_COLUMNS.keys() == {"roof_share", "above_roof", "speedup_over_rung", "predicted_roof_s"}
    for former, now in FORMER_COLUMNS.items():
        pandas.testing.assert_series_equal(table[former], table[now], check_names=False)
    assert table["peak_share"].notna().any() and table["speedup_over_previous"].notna().any()
