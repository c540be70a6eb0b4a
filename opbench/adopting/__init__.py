"""A header for a file that has none: its host code read, its launch matched with an operator."""
