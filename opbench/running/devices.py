"""Choose the GPUs of a run, with one worker process each; all must have the same model and driver."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
    processors: frozenset[int] = field(default=frozenset(), compare=False)
    """The logical processors that only its worker uses; empty for all."""


def choose_devices(requested: str, backend: str) -> tuple[ChosenGpu, ...]:
    """Return the GPUs that `--gpus` names: "all", or indices such as "0,2"; none for "".

    Raises UsageError for a GPU that this machine does not show, and EnvironmentFault if it shows none.
    """
    if not requested:
        return ()
    if backends.resolve_name(backend) != "cuda":
        raise UsageError(
            f"--gpus {requested}: the cpu backend uses no GPU, but all CPU cores; remove --gpus, or add --backend cuda",
            kind="backend-without-gpu",
            subject="--gpus",
            value=requested,
        )
    visible = {gpu.index: gpu for gpu in backends.available_gpus()}
    if not visible:
        raise EnvironmentFault(
            f"--gpus {requested}: no GPU is visible on this machine; find the reason with: opbench doctor",
            kind="no-gpu",
            subject="--gpus",
            value=requested,
        )
    names = {index: gpu.name for index, gpu in visible.items()}
    device_indices = list(visible) if requested == "all" else _listed_devices(requested, names)
    if len({names[index] for index in device_indices}) > 1:
        models_text = ", ".join(f"{index} is {names[index]}" for index in device_indices)
        same_model = ",".join(str(index) for index in device_indices if names[index] == names[device_indices[0]])
        raise UsageError(
            f"--gpus {requested}: {models_text}; times of different GPU models are not compared in one run: "
            "name GPUs of one model, "
            f"such as --gpus {same_model}",
            kind="mixed-gpus",
            subject="--gpus",
            value=tuple(names[index] for index in device_indices),
            allowed=same_model,
        )
    shares = share_processors(os.sched_getaffinity(0), len(device_indices))
    return tuple(
        ChosenGpu(index, visible[index].uuid, visible[index].environment, share)
        for index, share in zip(device_indices, shares, strict=True)
    )


PROCESSORS_FOLDER = Path("/sys/devices/system/cpu")


def share_processors(processors: Iterable[int], count: int) -> list[frozenset[int]]:
    """Divide logical processors into `count` disjoint shares; empty shares if there is one or too few to divide.

    The processors of one core stay together, and so do those of one socket, as far as the shares allow.
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for processor in sorted(processors):
        cores.setdefault(_core_of(processor), []).append(processor)
    ordered = [cores[core] for core in sorted(cores)]
    if count < 2 or len(ordered) < count:
        return [frozenset()] * count
    ends = [len(ordered) * number // count for number in range(count + 1)]
    return [
        frozenset(processor for core in ordered[first:end] for processor in core)
        for first, end in itertools.pairwise(ends)
    ]


def _core_of(processor: int) -> tuple[int, int]:
    """Return the socket and the core of a logical processor; a core of its own if the system does not say."""
    folder = PROCESSORS_FOLDER / f"cpu{processor}" / "topology"
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text())
    except (OSError, ValueError):
        return 0, processor


def _listed_devices(requested: str, names: Mapping[int, str]) -> list[int]:
    """Return the indices of a list such as "0,2"; raise UsageError for an unknown GPU, and for a GPU named twice."""
    entries = [entry.strip() for entry in requested.split(",")]
    for entry in entries:
        if not entry.isdecimal() or int(entry) not in names:
            visible_text = ", ".join(f"{index} ({name})" for index, name in names.items())
            raise UsageError(
                f"--gpus {requested}: '{entry}' is not a GPU of this machine; give all or some of {visible_text}",
                kind="no-such-gpu",
                subject="--gpus",
                value=entry,
                allowed=tuple(names),
            )
    device_indices = [int(entry) for entry in entries]
    if len(set(device_indices)) < len(device_indices):
        raise UsageError(
            f"--gpus {requested}: this list names a GPU twice; name each GPU once: "
            f"--gpus {','.join(dict.fromkeys(entries))}",
            kind="duplicate-gpu",
            subject="--gpus",
            value=requested,
        )
    return device_indices


def require_same_model(environments: Mapping[str, Environment]) -> None:
    """Raise EnvironmentFault, with the values that differ, if devices differ so that their times are not comparable."""
    timed = any(environment.gpu for environment in environments.values())
    for key in EQUAL_FIELDS if timed else ("machine",):  # a cpu run has no times, and its memory size varies
        values = {device: getattr(environment, key) for device, environment in environments.items()}
        if len(set(values.values())) > 1:
            values_text = "; ".join(f"{device}: {value}" for device, value in values.items())
            raise EnvironmentFault(
                f"the GPUs of this run differ in {key} ({values_text}), so their times cannot be compared in one "
                "table; give all GPUs the same settings, or select equal GPUs with --gpus",
                kind="devices-differ",
                subject=key,
                value=values,
            )


def common_environment(environments: Sequence[Environment]) -> Environment:
    """Return the environment for a run's header: that of the first device, with the UUIDs of all."""
    uuids = [environment.uuid for environment in environments if environment.uuid]
    return replace(environments[0], uuid=", ".join(uuids))
