"""Pictures: rooflines, bars and lines, as PNG and as SVG."""
