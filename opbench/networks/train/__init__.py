"""Training: steps, losses, ranks, checkpoints, and the comparison with PyTorch."""
