"""GPUs: what they can do at most, what NVRTC makes for them, and the driver that runs it."""
