"""Setup launches, which fill workspaces from inputs and need to run again only when those inputs change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.kernels.launch import KernelLaunch


@dataclass(frozen=True)
class Setup:
    """The buffers that all setup launches of a case read and write."""

    inputs: tuple[str, ...] = ()
    """Inputs that the setup launches read; the workspaces stay valid until one of these changes."""
    workspaces: tuple[str, ...] = ()
    """Workspaces that the setup launches fill. No other launch may write them; a check verifies this."""
    persistent: tuple[str, ...] = ()
    """Workspaces of the setup launches that other launches read; the other ones are not needed after the setup."""
    launches: int = 0

    def depends_only_on(self, constant: Collection[str]) -> bool:
        """Return whether the case has setup launches, and they read only inputs in `constant`."""
        return bool(self.launches) and set(self.inputs) <= set(constant)


def setup_of(launches: Sequence[KernelLaunch], inputs: Collection[str], outputs: Collection[str]) -> Setup:
    """Return the buffers that a case's setup launches read and write; raise UsageError for an invalid setup launch."""
    read_inputs: dict[str, None] = {}
    filled_workspaces: dict[str, None] = {}
    other_buffers: set[str] = set()
    for launch in launches:
        if not launch.setup:
            other_buffers |= launch.buffers()
            continue
        key = f"setup = true of {launch.kernel}"
        if constants := [other_launch.constant for other_launch in launches if other_launch.constant]:
            raise UsageError(
                f"{key} is not allowed together with constants ({', '.join(constants)}), which every run writes; "
                "remove setup = true, or pass the constants as arguments",
                kind="setup-with-constants",
                subject=launch.kernel,
                value=constants,
            )
        for name in sorted(launch.buffers()):
            if name in outputs:
                raise UsageError(
                    f"{key}: the launch names the output {name}, but a setup launch may fill only workspaces, so "
                    f"remove {name} from its args",
                    kind="setup-names-output",
                    subject=launch.kernel,
                    value=name,
                )
            if name not in inputs and name in other_buffers:
                raise UsageError(
                    f"{key}: an earlier launch that is not a setup launch also names {name}; move the setup launch "
                    "before that launch",
                    kind="setup-too-late",
                    subject=launch.kernel,
                    value=name,
                )
            (read_inputs if name in inputs else filled_workspaces)[name] = None
        if not launch.buffers() - set(inputs):
            raise UsageError(
                f"{key}: the setup launch names {', '.join(sorted(launch.buffers())) or 'no buffer'}, but no "
                "workspace to fill; declare a buffer in [workspace] and name the buffer in args, or remove setup = "
                "true",
                kind="setup-without-workspace",
                subject=launch.kernel,
                value=sorted(launch.buffers()),
            )
    persistent = tuple(name for name in filled_workspaces if name in other_buffers)
    return Setup(tuple(read_inputs), tuple(filled_workspaces), persistent, sum(launch.setup for launch in launches))
