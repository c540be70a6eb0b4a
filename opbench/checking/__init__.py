"""One case on one device: bound, checked, judged and timed."""
