"""Charts of a run: rooflines, bars and lines, as PNG and SVG."""
