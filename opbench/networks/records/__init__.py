"""The content of network.json, train.json and checkpoints."""
