"""Compare the machines, settings and timing options of two runs: their times are comparable if these match."""

from __future__ import annotations

import json
from dataclasses import dataclass

from opbench.records import JSON, to_json
from opbench.results.files import Run

MACHINE_FIELDS = (
    "gpu", "compute_capability", "sm_count", "memory_bytes", "driver", "driver_cuda", "nvrtc", "nvrtc_options",
    "ecc", "mig", "power_limit_w", "max_sm_clock_hz", "max_memory_clock_hz", "application_sm_clock_hz",
)  # fmt: skip
"""Keys of a run's environment that decide its times."""

FORMER_NAMES = {"soak_s": "load_s"}
"""Settings of the timing under their names in older runs."""


@dataclass(frozen=True)
class Difference:
    """One property of machine or settings in which two runs differ."""

    key: str
    base: object
    new: object
    matters: bool
    """Whether the difference makes times incomparable."""

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.base)} against {_shown(self.new)}"


def differences(base: Run, new: Run) -> list[Difference]:
    """Return the differences of two runs' environments and settings, the important ones first.

    An entry that only one run knows is no difference. Runs without times are comparable if their backend is the
    same.
    """
    have_times = all(any(result.measurement for result in run.results) for run in (base, new))
    environments = [_settings(run) for run in (base, new)]
    differences = []
    for key in dict.fromkeys([*environments[0], *environments[1]]):
        base_value, new_value = (settings.get(key) for settings in environments)
        if base_value != new_value and base_value is not None and new_value is not None:
            is_important = key in MACHINE_FIELDS or key.startswith("timing.")
            differences.append(
                Difference(key, base_value, new_value, key == "backend" or (have_times and is_important))
            )
    return sorted(differences, key=lambda difference: not difference.matters)


def _settings(run: Run) -> dict[str, JSON]:
    header = run.header
    # The seed only orders the samples, and more processes measure the same times more often.
    timing = {
        f"timing.{FORMER_NAMES.get(key, key)}": value
        for key, value in to_json(header.timing, omit_defaults=True).items()
        if key not in ("seed", "processes")
    }
    header_fields = {"backend": header.backend or None, "opbench": header.opbench or None, "seed": header.seed}
    environment = header.environment.to_json()
    if header.backend == "cpu":
        environment.pop("memory_bytes", None)  # the free memory at that moment is no property of the machine
    return {**header_fields, **environment, **header.settings, **timing}


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def comparable_conditions(run: Run) -> str:
    """Return the machine's properties (`MACHINE_FIELDS`) and the timing mode of a run as text that can be compared."""
    environment = run.header.environment.to_json()
    machine = {key: environment[key] for key in MACHINE_FIELDS if key in environment}
    machine["timing.mode"] = run.header.timing.mode
    return json.dumps(machine, sort_keys=True)
