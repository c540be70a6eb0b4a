"""Check and time cases on one device: bind them to buffers, run them and judge their outputs."""
