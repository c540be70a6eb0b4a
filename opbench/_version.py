"""The version of opbench. This module imports nothing, so any other module may write the version into a record."""

__version__ = "0.1.0"
