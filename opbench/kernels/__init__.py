"""Data on operators, headers, variants, cases and their launches."""
