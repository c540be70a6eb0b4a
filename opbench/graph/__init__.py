"""Networks as data: the graph, the ways to build one, passes over it, layouts, and its forms on disk."""
