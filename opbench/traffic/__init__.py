"""What a kernel does to memory, line by line: counts, cache levels, findings."""
