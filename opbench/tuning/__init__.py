"""The search for the best of thousands of configs within a time budget: strategies, races and recorded trials."""
