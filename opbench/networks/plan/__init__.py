"""Plan and run networks: a variant for each node, memory, CUDA graphs, and the comparison with PyTorch."""
