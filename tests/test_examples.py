"""The example that no page walks through and no search needs, run as its first lines say."""

from __future__ import annotations

import re
import runpy

import pytest

from support.common import ROOT


def test_a_residual_network_is_planned_run_and_right(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "residual_net.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("folded into the weights") == 5
    assert printed.count("epilogue=bias_add_relu") == 2, "each block's sum is part of its last convolution"
    off = re.search(r"off by (\S+) at most", printed)
    assert off and 0 < float(off[1]) < 1e-6
