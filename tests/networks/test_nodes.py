"""Nodes are checked as every case is: what hangs, crashes or writes elsewhere costs itself and is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.graph.build import Builder
from opbench.graph.saving import load, save
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.running import run_network
from opbench.networks.records.network import NetworkVerdict
from opbench.networks.report.phrases import headline
from support.common import RELU, Cli

BODY = "if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;"
CRASHES = RELU.replace("const int i", "raise(9);\n    const int i").replace(
    "// ///\n", "// ///\n#include <signal.h>\n", 1
)
FAULTS = {
    "hangs": (RELU.replace("const int i", "for (volatile int go = 1; go;) {}\n    const int i"), "stopped after 3 s"),
    "crashes": (CRASHES, "the process running it died (signal SIGKILL)"),
    "no_kernel": (RELU.replace("void mine(", "void yours("), "unknown kernel 'mine'; known: yours"),
    "spills": (RELU.replace(BODY, f"{BODY} if (i == 0) out[n] = 1.0f;"), "out-of-bounds"),
    "negates": (RELU.replace(BODY, "if (i < n) out[i] = -x[i];"), "wrong-result: out["),
    "real_only": (RELU.replace(BODY, f"if (i < n && x[0] == 7.0f) out[i] = 9.0f; else {BODY}"), "wrong-result: out["),
}
"""Variants of relu by name, and what is said of a node that one of them serves."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two times relu with something between; the first image begins with 7."""
    net = Builder("twice")
    x = net.input("image", 1, 2, 8, 8)
    y = net.elementwise("sub", net.relu(x, name="first"), x, name="difference")
    path = tmp_path_factory.mktemp("net") / "twice.json"
    save(net.graph(net.relu(y, name="second")), path)
    return path


def planned(network: Path, folder: Path, fault: str) -> dict[str, Any]:
    """Options of a run whose first node is served by a faulty variant of a folder of the user's own."""
    mine = folder / "mine" / "relu" / f"{fault}.cu"
    mine.parent.mkdir(parents=True)
    mine.write_text(FAULTS[fault][0])
    choices = {
        "first": {"case": f"relu/{fault}(n=128)"},
        "difference": {"case": f"elementwise/scalar{load(network).node('difference').problem}"},
        "second": {"case": "relu/scalar(n=128)"},
    }
    plan = {"format": 1, "network": "twice", "gpu": "", "precision": "f32", "choices": choices}
    (folder / "plan.json").write_text(json.dumps(plan))
    return {"plan": folder / "plan.json", "variants": (folder / "mine",), "out": folder / "out", "backend": "cpu"}


LIMIT_S = {"hangs": 3.0}
"""Limits other than 10 s. Kernels that do not hang take milliseconds, and must not reach it on a loaded machine."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_that_is_not_right_costs_itself_and_is_named(network: Path, tmp_path: Path, fault: str) -> None:
    image = np.random.default_rng(0).standard_normal((1, 2, 8, 8), np.float32)
    image[0, 0, 0, 0] = 7.0
    options = NetOptions(
        str(network),
        inputs={"image": image},
        time_limit_s=LIMIT_S.get(fault, 10.0),
        **planned(network, tmp_path, fault),
    )
    record = run_network(options)
    checks = {node.name: node.check for node in record.nodes if node.check}
    assert FAULTS[fault][1] in checks["first"].reason
    assert checks["first"].status == ("failed" if fault in ("hangs", "crashes", "no_kernel") else "wrong")
    assert checks["difference"].right and checks["second"].right, "judged on the reference's output of the first"
    assert record.check == NetworkVerdict(False, missing=("first",)) and record.classes is None
    assert any("Wrong: node `first`. The network was not run as a whole." in said for said in headline(record))


def test_nodes_are_looked_at_as_cases_are(network: Path, tmp_path: Path) -> None:
    record = run_network(NetOptions(str(network), backend="cpu", out=tmp_path / "out"))
    assert [node.check.integers for node in record.nodes] == ["exact"] * 3
    assert record.check.right and record.check.missing == () and record.check.outputs


def test_the_command_names_node_and_case_and_leaves_with_1(network: Path, tmp_path: Path, cli: Cli) -> None:
    planned(network, tmp_path, "crashes")
    words = ("--plan", "plan.json", "--variants", "mine", "--out", "out", "--backend", "cpu", "--time-limit", "20")
    done = cli("net", "run", network, *words)
    assert done.returncode == 1, done.stderr
    assert "first (relu/crashes(n=128)): failed: the process running it died (signal SIGKILL)" in done.stdout
    assert "Traceback" not in done.stderr and (tmp_path / "out" / "network.html").is_file()
