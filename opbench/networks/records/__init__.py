"""The data in network.json, train.json and checkpoints."""
