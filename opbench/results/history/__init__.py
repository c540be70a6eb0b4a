"""Many runs over time: kept in a file database, cut where a case's time changed for good."""

from opbench.results.history.database import TABLES, add_runs, find_runs, open_database, query
from opbench.results.history.series import Point, Series, all_series

__all__ = ["TABLES", "Point", "Series", "add_runs", "all_series", "find_runs", "open_database", "query"]
