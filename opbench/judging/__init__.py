"""One verdict on a kernel that somebody submits: right, safe, fast, honest, and what to do next."""
