"""Support for GPUs: limits of GPU models, the NVRTC compiler, and the CUDA driver that runs kernels."""
