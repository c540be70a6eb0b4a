"""Runs on a Dask cluster of this machine: complete and judged once, whoever dies; places and files that are refused."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed import Client, LocalCluster

from opbench import api
from opbench.errors import EnvironmentFault
from opbench.kernels.folders import Catalog, case_named
from opbench.results.files import FILE
from opbench.running import cluster, remote
from opbench.running.cluster import run_on_cluster
from opbench.running.clusters import SlurmFile, Tls, connect, private_address
from opbench.running.runner import Progress, RunSetup
from opbench.running.suite import Suite
from support.builders.two_problems import own_variant
from support.checks.errors import Refusal, refuses
from support.common import RELU

KILLS = "kill -9 $(awk '/^PPid/ { print $2 }' /proc/$PPID/status)"
"""What a machine that goes away does to the Dask worker whose worker process runs it."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A scheduler with two workers, each a process that is started again when it dies."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made,
        Client(made, set_as_default=False) as client,
    ):
        yield client


def two_problems(folder: Path, **variants: str) -> tuple[Suite, RunSetup]:
    """Relu's first variant and kernels of the test's own on two sizes."""
    for name, condition in variants.items():
        kernel = RELU.replace("// ///\n", "// ///\n#include <stdlib.h>\n", 1)
        call = f'if (i == 0 && {condition}) (void)!system("{KILLS}; sleep 1");\n    if (i < n)'
        own_variant(folder, kernel.replace("if (i < n)", call), name)
    path = folder / "two.toml"
    names = ", ".join(f'"{name}"' for name in ("scalar", *variants))
    path.write_text(
        f'[[run]]\noperator = "relu"\nvariants = [{names}]\nconfigs = "default"\n'
        "problems = [{ n = 7 }, { n = 1000 }]\n"
    )
    suite, roots, _ = api.expand_target(path, "cpu", [], [folder / "mine"])
    return suite, RunSetup(out=folder / "out", measure=False, roots=roots)


def test_whoever_dies_a_run_is_complete_and_judged_once(client: Client, tmp_path: Path) -> None:
    """A kernel takes its Dask worker along: its problem is run again whole, and the second time it is held to blame."""
    suite, options = two_problems(tmp_path, always="n == 1000")
    told: list[Progress] = []
    run = run_on_cluster(suite, options, client, 60, told.append)
    status = {r.case: r.status for r in run.results}
    assert run.finished and set(status) == {case.name for case in suite.cases}
    assert {case: s for case, s in status.items() if s != "right"} == {"relu/always(n=1000)": "failed"}
    lines = [json.loads(line) for line in (tmp_path / "out" / FILE).read_text().splitlines()]
    assert set(Counter(line["case"] for line in lines if line["type"] == "result").values()) == {1}
    assert sum("is gone" in p.case for p in told) == 2
    assert [r.reason[:16] for r in run.results if r.status != "right"] == ["two workers died"]
    assert all(run.device_name(r).startswith("worker ") for r in run.results if r.status == "right")
    assert {line["case"] for line in lines if line["type"] == "traffic"} == {
        c for c, s in status.items() if s == "right"
    }
    # Completed, nothing is asked of anybody.
    before = (tmp_path / "out" / FILE).read_text().count('"result"')
    assert run_on_cluster(suite, replace(options, resume=True), client, 60, told.append).finished
    assert (tmp_path / "out" / FILE).read_text().count('"result"') == before


def test_workers_with_other_variants_are_refused_before_anything_runs(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, options = two_problems(tmp_path, mine="false")
    with monkeypatch.context() as here:
        here.setattr(cluster.remote, "variants_digest", lambda roots: "0123")
        with refuses("other-installation", "variants", allowed="0123", error=EnvironmentFault):
            run_on_cluster(suite, options, client, 60, lambda progress: None)
    monkeypatch.setattr(cluster, "__version__", "9.9")
    with refuses("other-installation", "opbench", value="0.1.0", allowed="9.9", error=EnvironmentFault):
        run_on_cluster(suite, replace(options, out=tmp_path / "other"), client, 60, lambda progress: None)
    assert not (tmp_path / "out" / FILE).read_bytes()


def test_a_case_travels_by_its_place_in_the_folders(tmp_path: Path) -> None:
    own_variant(tmp_path, RELU)
    roots = (tmp_path / "mine",)
    for name in ("relu/scalar(n=7)", "relu/zz_last(n=7)"):
        case = case_named(name, roots)
        sent = remote.pack_for_worker(case, Catalog(roots).roots)
        assert not Path(sent.path).is_absolute()
        assert remote._unpack_from_run(sent, Catalog(roots)).name == case.name
    digest = remote.variants_digest(roots)
    (tmp_path / "mine" / "relu" / "zz_last.cu").write_text(RELU + "\n")
    assert remote.variants_digest(roots) != digest
    stray = tmp_path / "stray.cu"
    stray.write_text(RELU)
    variant = Catalog().own_variants(stray)[0]
    with refuses("not-in-variants", "stray.cu"):
        remote.pack_for_worker(replace(case_named("relu/scalar(n=7)"), variant=variant), Catalog().roots)


SLURM = """\
jobs = 4
cores = 8
memory = "64GB"
walltime = "02:00:00"
queue = "gpu"
directives = ["--gres=gpu:1"]
shared_folder = "/shared/me"
"""


def test_places_and_files_that_are_none_are_refused_in_words(tmp_path: Path) -> None:
    for place, refusal in (
        ("ray://here", Refusal("not-allowed", "--on", value="ray://here")),
        ("dask://nowhere", Refusal("no-address", "--on", value="dask://nowhere")),
        (f"slurm:{tmp_path}/none.toml", Refusal("unreadable", "none.toml")),
    ):
        with refuses(refusal), connect(place, None):
            pass
    with refuses("no-such-file", "ca.pem"):
        Tls(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem").security()
    path = tmp_path / "slurm.toml"
    for text, refusal in (
        (SLURM.replace("jobs", "job"), Refusal("unknown-name", "key", value="job")),
        (SLURM.replace("jobs = 4\n", ""), Refusal("missing-key", "jobs")),
        (SLURM.replace("= 4", '= "4"'), Refusal("not-allowed", "jobs", value="4", allowed="int")),
    ):
        path.write_text(text)
        with refuses(refusal):
            SlurmFile.read(path)
    with refuses("no-address", "interface", value="nope0"):
        private_address("nope0")


def test_a_machine_without_a_private_address_names_its_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    public = SimpleNamespace(family=socket.AF_INET, address="8.8.8.8")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth7": [public]})
    with refuses("no-private-address", allowed=("eth7",), error=EnvironmentFault):
        private_address()


def test_a_slurm_job_is_one_worker_behind_tls(tmp_path: Path) -> None:
    from dask_jobqueue.slurm import SLURMJob

    path = tmp_path / "slurm.toml"
    path.write_text(SLURM)
    options = SlurmFile.read(path).options("10.0.0.5", tmp_path)
    assert (options["protocol"], options["security"]) == ("tls://", True)
    assert options["scheduler_options"]["host"] == "10.0.0.5"  # type: ignore[index]
    kept = ("queue", "account", "cores", "processes", "memory", "walltime", "job_extra_directives", "log_directory")
    script = SLURMJob("tls://10.0.0.5:8786", name="w", **{key: options[key] for key in kept}).job_script()
    assert "#SBATCH -p gpu" in script and "#SBATCH --gres=gpu:1" in script and "tls://10.0.0.5:8786" in script
