"""Rules that find in a kernel's traffic what limits the kernel and what to try."""
