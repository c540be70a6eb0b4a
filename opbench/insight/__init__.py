"""Rules that read a kernel's traffic and say what limits it and what to try."""
