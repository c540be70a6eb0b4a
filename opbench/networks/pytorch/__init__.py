"""Operators for PyTorch: what `opbench.torch` is made of. Importing it needs PyTorch."""
