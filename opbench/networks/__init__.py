"""Networks: graphs of problems, the passes that rewrite them, the plan that chooses variants, and their execution."""
