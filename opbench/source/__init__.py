"""Reading CUDA C++ files: tokens, declarations, names, includes, precision; knows nothing of operators."""
