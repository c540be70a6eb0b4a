"""Networks planned and run: a variant for each node, memory, one CUDA graph, peers."""
