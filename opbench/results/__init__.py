"""Runs on disk, and the functions that read and compare them."""
