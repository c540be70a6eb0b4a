"""A network's report: its record, network.json, as a self-contained page and as text on the terminal."""

from __future__ import annotations

from opbench.networks.records.network import FILE, is_network, keep_network, read_network

__all__ = ["FILE", "is_network", "keep_network", "read_network"]
