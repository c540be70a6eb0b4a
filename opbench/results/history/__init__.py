"""Times of cases over many runs: a database in a file, and the detection of lasting changes."""

from opbench.results.history.database import TABLES, add_runs, find_runs, open_database, query
from opbench.results.history.series import Point, Series, all_series

__all__ = ["TABLES", "Point", "Series", "add_runs", "all_series", "find_runs", "open_database", "query"]
