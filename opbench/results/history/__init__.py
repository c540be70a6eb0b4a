"""Many runs over time: a file database, and the detection of lasting changes in a case's time."""

from opbench.results.history.database import TABLES, add_runs, find_runs, open_database, query
from opbench.results.history.series import Point, Series, all_series

__all__ = ["TABLES", "Point", "Series", "add_runs", "all_series", "find_runs", "open_database", "query"]
