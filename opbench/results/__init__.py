"""Runs on disk, and the questions that are put to them."""
