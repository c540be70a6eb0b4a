"""Hardware counters and timelines of one case, through Nsight Compute and Nsight Systems."""

from opbench.profile.commands import Target, target_argv
from opbench.profile.profile import ProfileOptions, profile_case
from opbench.profile.tools import current_chip

__all__ = ["ProfileOptions", "Target", "current_chip", "profile_case", "target_argv"]
