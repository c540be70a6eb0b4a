"""Runs of many cases: suites, worker processes, the files of a run, and resuming."""
