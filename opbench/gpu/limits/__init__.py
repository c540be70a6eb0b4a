"""The limits of a GPU: models, measured peaks, occupancy, and the lower bound of a time."""
