"""The interface of a backend and the data that it reports: launches, counts, findings and their rules."""
