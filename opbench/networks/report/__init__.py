"""The report of a network's run: an HTML page and text for the terminal, from network.json."""

from __future__ import annotations

from opbench.networks.records.network import FILE, is_network, read_network, store_network_record

__all__ = ["FILE", "is_network", "read_network", "store_network_record"]
