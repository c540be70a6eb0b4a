"""The chosen kernels as C++ sources: a library of problems, or a network as one program; see docs/shipping.md."""
