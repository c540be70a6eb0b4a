"""What network.json, train.json and checkpoints hold."""
