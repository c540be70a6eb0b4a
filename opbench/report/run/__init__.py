"""The HTML page of a run: its sections, tables and sentences."""
