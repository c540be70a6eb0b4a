"""The results files of runs: write, read and compare them."""
