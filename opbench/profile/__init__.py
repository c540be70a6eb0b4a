"""Hardware counters and timelines of one case, through Nsight Compute and Nsight Systems."""

from opbench.profile.commands import Target, target_argv
from opbench.profile.metrics import chip_of
from opbench.profile.profile import ProfileOptions, profile_case

__all__ = ["ProfileOptions", "Target", "chip_of", "profile_case", "target_argv"]
