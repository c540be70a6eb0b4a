"""opbench inside other programs."""
