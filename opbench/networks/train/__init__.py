"""Training: steps, losses, ranks, checkpoints, what comes of them beside PyTorch."""
