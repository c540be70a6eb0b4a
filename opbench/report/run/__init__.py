"""The page of a run: its parts, and what each says."""
