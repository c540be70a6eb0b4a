"""Choose the GPUs of a run, with one worker process each; all must have the same model and driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opbench.backend.environment import Environment
from opbench.checking import backends
from opbench.errors import EnvironmentFault, UsageError

EQUAL_FIELDS = (
    "gpu",
    "memory_bytes",
    "driver",
    "driver_cuda",
    "ecc",
    "power_limit_w",
    "application_sm_clock_hz",
    "mig",
)
"""Properties that the devices of one run must share, because their times share a table."""


@dataclass(frozen=True)
class ChosenGpu:
    """A GPU that one worker of a run uses alone."""

    index: int
    """The index as in `--gpus`."""
    uuid: str
    environment: Mapping[str, str]
    """Additional environment variables of its worker, so that the process sees only this GPU."""


def choose_devices(wanted: str, backend: str) -> tuple[ChosenGpu, ...]:
    """Return the GPUs that `--gpus` names: "all", or indices such as "0,2"; none for "".

    Raises UsageError for a GPU that this machine does not show, and EnvironmentFault if it shows none.
    """
    if not wanted:
        return ()
    if backends.resolve(backend) != "cuda":
        raise UsageError(
            f"--gpus {wanted}: the cpu backend has no GPU; remove --gpus: cpu runs use all cores anyway",
            kind="backend-without-gpu",
            subject="--gpus",
            value=wanted,
        )
    shown = {gpu.index: gpu for gpu in backends.gpus()}
    if not shown:
        raise EnvironmentFault(
            f"--gpus {wanted}: this machine shows no GPU (opbench doctor)",
            kind="no-gpu",
            subject="--gpus",
            value=wanted,
        )
    listed = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in shown.values())
    if wanted == "all":
        chosen = list(shown)
    else:
        entries = [word.strip() for word in wanted.split(",")]
        for word in entries:
            if not word.isdecimal() or int(word) not in shown:
                raise UsageError(
                    f"--gpus {wanted}: '{word}' is not a GPU of this machine; give all or some of {listed}",
                    kind="no-such-gpu",
                    subject="--gpus",
                    value=word,
                    allowed=tuple(shown),
                )
        chosen = [int(word) for word in entries]
        if len(set(chosen)) < len(chosen):
            raise UsageError(
                f"--gpus {wanted}: names a GPU twice; give each once",
                kind="duplicate-gpu",
                subject="--gpus",
                value=wanted,
            )
    if len({shown[index].name for index in chosen}) > 1:
        several = ", ".join(f"{index} is {shown[index].name}" for index in chosen)
        alike = ",".join(str(index) for index in chosen if shown[index].name == shown[chosen[0]].name)
        raise UsageError(
            f"--gpus {wanted}: {several}; times of different GPU models are not compared in one run: "
            "name GPUs of one model, "
            f"such as --gpus {alike}",
            kind="mixed-gpus",
            subject="--gpus",
            value=tuple(shown[index].name for index in chosen),
            allowed=alike,
        )
    return tuple(ChosenGpu(index, shown[index].uuid, shown[index].environment) for index in chosen)


def require_alike(environments: Mapping[str, Environment]) -> None:
    """Raise EnvironmentFault, with the values that differ, unless results of these devices may share a table."""
    timed = any(environment.gpu for environment in environments.values())
    for key in EQUAL_FIELDS if timed else ("machine",):  # a cpu run has no times, and its memory size varies
        seen = {place: getattr(environment, key) for place, environment in environments.items()}
        if len(set(seen.values())) > 1:
            listed = "; ".join(f"{place}: {value}" for place, value in seen.items())
            raise EnvironmentFault(
                f"the devices of a run must have the same {key}, because their times share tables: {listed}; use "
                "the same settings, or select equal devices with --gpus",
                kind="devices-differ",
                subject=key,
                value=seen,
            )


def common_environment(environments: Sequence[Environment]) -> Environment:
    """Return the environment for a run's header: that of the first device, with the UUIDs of all."""
    uuids = [environment.uuid for environment in environments if environment.uuid]
    return replace(environments[0], uuid=", ".join(uuids))
