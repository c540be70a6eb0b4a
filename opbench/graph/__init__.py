"""Networks as graphs of problems: build, import, transform, save and load them."""
