"""The limits of GPUs: models, measured peaks, occupancy, and lower bounds of times."""
