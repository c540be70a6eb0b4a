"""A network as one C++ program."""
