"""Judge a submitted kernel: whether it is right, safe, fast and honest, and what its author should do next."""
