"""The operators behind `opbench.torch`; importing this package needs PyTorch."""
