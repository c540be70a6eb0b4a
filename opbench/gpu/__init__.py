"""GPUs: their limits, the NVRTC compiler, and the CUDA driver that runs kernels."""
