"""Operators, variants with their headers, cases, and the launches of a case."""
