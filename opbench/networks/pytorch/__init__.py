"""The implementation of `opbench.torch`; importing this package requires PyTorch."""
