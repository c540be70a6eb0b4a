"""The tools of `opbench mcp`: short, structured answers for programs that write kernels."""
