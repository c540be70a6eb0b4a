"""Compiles kernels for a GPU, with or without one, and reads what the compiler made."""
