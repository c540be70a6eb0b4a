"""Make what tests feed to opbench: kernels, networks, data, records of runs."""
