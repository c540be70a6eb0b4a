"""Stand-ins for what a test does not have: a GPU, a driver, a clock, a cluster, a worker."""
