"""Read and judge what opbench gives: gradients, graphs, pages, command lines, documents."""
