"""`python -m opbench` is the same as `opbench`."""

from opbench.cli import main

main()
