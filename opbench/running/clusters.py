"""Connect to workers: of a running scheduler (`--on dask://HOST:PORT`), or of a new one (`--on slurm:FILE.toml`)."""

from __future__ import annotations

import contextlib
import ipaddress
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from opbench.errors import EnvironmentFault, UsageError, unknown_name
from opbench.paths import MissingExtra
from opbench.records import from_json, read_toml

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

WORKER_WAIT_S = 60.0
"""Longest wait for a worker of an existing scheduler."""
SLURM_WAIT_S = 3600.0
"""Longest wait in Slurm's queue, unless the file states `wait_s`."""


@dataclass(frozen=True)
class Tls:
    """Certificate files by which a scheduler and its workers authenticate each other."""

    ca: Path
    certificate: Path
    key: Path

    def security(self) -> Security:
        """Return the security settings of a client that requires encryption."""
        from distributed.security import Security

        for path in (self.ca, self.certificate, self.key):
            if not path.is_file():
                raise UsageError(
                    f"{path}: this file does not exist; give each of --tls-ca, --tls-cert and --tls-key the path of a "
                    "PEM file (docs/clusters.md)",
                    kind="no-such-file",
                    subject=path,
                )
        return Security(
            require_encryption=True,
            tls_ca_file=str(self.ca),
            tls_client_cert=str(self.certificate),
            tls_client_key=str(self.key),
        )


@contextlib.contextmanager
def connect(scheduler_url: str, tls: Tls | None) -> Iterator[tuple[Client, float]]:
    """Connect to the scheduler that `--on` names; yield the client and the time to wait for a worker.

    A scheduler that this function started ends with it. Raises UsageError for an invalid place, and
    EnvironmentFault if no scheduler answers or a package is missing.
    """
    scheme, _, location = scheduler_url.partition(":")
    if scheme not in ("dask", "slurm") or not location:
        raise UsageError(
            f"--on {scheduler_url}: this is not the address of a scheduler; give --on dask://HOST:PORT or "
            "--on slurm:FILE.toml (docs/clusters.md)",
            kind="not-allowed",
            subject="--on",
            value=scheduler_url,
        )
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise MissingExtra(f"--on {scheduler_url}: Dask is not installed", "cluster") from None
    if scheme == "dask":
        with _connect_to_scheduler(scheduler_url, location.removeprefix("//"), tls) as client:
            yield client, WORKER_WAIT_S
    else:
        if tls is not None:
            raise UsageError(
                f"--on {scheduler_url}: --tls-ca, --tls-cert and --tls-key apply to dask:// only; remove these options "
                f"and set tls = true in {location}, so that opbench makes new certificates for each run",
                kind="exclusive",
                subject=("--tls-ca", "--on slurm"),
                value=scheduler_url,
                allowed="dask://HOST:PORT",
            )
        with _start_slurm_jobs(Path(location)) as scheduler:
            yield scheduler


@contextlib.contextmanager
def _connect_to_scheduler(scheduler_url: str, address: str, tls: Tls | None) -> Iterator[Client]:
    from distributed import Client

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"--on {scheduler_url}: the address has no HOST:PORT; give the address that 'dask scheduler' prints, such "
            "as --on dask://10.0.0.5:8786",
            kind="no-address",
            subject="--on",
            value=scheduler_url,
        )
    scheme, security = ("tls", tls.security()) if tls else ("tcp", None)
    try:
        client = Client(f"{scheme}://{address}", security=security, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise EnvironmentFault(
            f"--on {scheduler_url}: no scheduler answers over {scheme} ({error}); start a scheduler on a private "
            f"interface: dask scheduler --interface ib0 --port {port}. If the scheduler runs with TLS, name its "
            "certificates with --tls-ca, --tls-cert and --tls-key",
            kind="no-scheduler",
            subject="--on",
            value=scheduler_url,
        ) from None
    with client:
        yield client


@dataclass(frozen=True, kw_only=True)
class SlurmFile:
    """The settings for Slurm jobs from a TOML file; docs/clusters.md describes the keys."""

    jobs: int
    cores: int
    memory: str
    walltime: str
    shared_folder: str
    queue: str | None = None
    account: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    python: str = ""
    interface: str = ""
    tls: bool = True
    wait_s: float = SLURM_WAIT_S

    @classmethod
    def read(cls, path: Path) -> SlurmFile:
        """Read the settings from a file.

        Raise UsageError for an unknown or missing key or a value of the wrong type.
        """
        table, keys = read_toml(path), [f.name for f in fields(cls)]
        for key in table:
            if key not in keys:
                raise UsageError(unknown_name("key", key, keys, place=str(path)))
        try:
            return from_json(cls, table)
        except ValueError as error:
            raise UsageError(
                f"{path}: {error}; correct the file (docs/clusters.md shows a complete one)", cause=error
            ) from None

    def options(self, host: str, shared: Path) -> dict[str, object]:
        """Return the arguments of `dask_jobqueue.SLURMCluster`: each job has one worker and thus one GPU."""
        options: dict[str, object] = {
            "queue": self.queue,
            "account": self.account,
            "cores": self.cores,
            "processes": 1,
            "memory": self.memory,
            "walltime": self.walltime,
            "job_extra_directives": list(self.directives),
            "job_script_prologue": list(self.prologue),
            "interface": self.interface or None,
            "shared_temp_directory": str(shared),
            "log_directory": str(shared / "opbench-logs"),
            "scheduler_options": {"host": host, "dashboard": False, "dashboard_address": ""},
            "protocol": "tls://" if self.tls else "tcp://",
            "security": True if self.tls else None,  # new certificates for this run
        }
        return options | ({"python": self.python} if self.python else {})


def private_address(interface: str = "") -> str:
    """Return the address on which a scheduler listens: that of the named interface, else a private one.

    Raises EnvironmentFault if there is none, because anyone who can reach a scheduler can run code on its workers.
    """
    import psutil

    addresses_by_interface: dict[str, list[str]] = {
        name: [a.address for a in addresses if a.family == socket.AF_INET]
        for name, addresses in psutil.net_if_addrs().items()
    }
    if interface:
        if not addresses_by_interface.get(interface):
            raise UsageError(
                f"interface = {interface!r}: this network interface has no IPv4 address; name another interface of "
                f"this machine: {', '.join(addresses_by_interface)}",
                kind="no-address",
                subject="interface",
                value=interface,
                allowed=tuple(addresses_by_interface),
            )
        return addresses_by_interface[interface][0]
    for addresses in addresses_by_interface.values():
        for address in addresses:
            parsed = ipaddress.ip_address(address)
            if parsed.is_private and not parsed.is_loopback and not parsed.is_link_local:
                return address
    raise EnvironmentFault(
        "no network interface of this machine has a private address, and a scheduler runs any code that it receives; "
        'write interface = "NAME" into the file of --on slurm:FILE.toml, with an interface that only the cluster can '
        f"reach (this machine has {', '.join(addresses_by_interface)})",
        kind="no-private-address",
        allowed=tuple(addresses_by_interface),
    )


@contextlib.contextmanager
def _start_slurm_jobs(path: Path) -> Iterator[tuple[Client, float]]:
    file = SlurmFile.read(path)
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise MissingExtra(f"--on slurm:{path}: dask-jobqueue is not installed", "cluster") from None
    if shutil.which("sbatch") is None:
        raise EnvironmentFault(
            f"--on slurm:{path}: this machine has no command sbatch; run opbench on a login node of the Slurm cluster",
            kind="no-sbatch",
            subject="sbatch",
        )
    host = private_address(file.interface)
    shared = Path(file.shared_folder).expanduser()
    if not shared.is_dir():
        raise UsageError(
            f'{path}: shared_folder = "{shared}": this folder does not exist; create it with mkdir -p, or name another '
            "folder that all nodes of the cluster see",
            kind="no-such-folder",
            subject="shared_folder",
            value=shared,
        )
    from distributed import Client

    try:
        cluster = SLURMCluster(**file.options(host, shared))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise EnvironmentFault(
            f"--on slurm:{path}: the scheduler does not start: {error}; correct {path} (docs/clusters.md), or check "
            "that sinfo lists the partition of the file",
            kind="scheduler-not-started",
            subject=path,
            cause=error,
        ) from None
    with cluster, Client(cluster, set_as_default=False) as client:
        cluster.scale(jobs=file.jobs)
        yield client, file.wait_s
