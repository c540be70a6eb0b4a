"""Many cases: suites, worker processes, the files of a run, and how one is resumed."""
