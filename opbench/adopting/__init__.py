"""Propose a header for a file that has none: read its host code, and match its kernel with an operator."""
