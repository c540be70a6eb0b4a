"""The best of thousands of configs within a budget: strategies that ask, races that decide, trials that are kept."""
