"""Hardware counters and timelines of one case, through Nsight Compute and Nsight Systems."""
