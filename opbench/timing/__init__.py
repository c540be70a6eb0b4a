"""Timing of launches: samples, stopping rules and statistics. Nothing here depends on a GPU."""
