"""Read CUDA C++ files: tokens, declarations, names, includes, precision. Nothing here depends on operators."""
