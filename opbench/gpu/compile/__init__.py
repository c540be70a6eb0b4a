"""Compile kernels with NVRTC, which needs no GPU, and read the resulting cubins."""
