"""The version of opbench, on the ground so that any module may write it into a record."""

__version__ = "0.1.0"
