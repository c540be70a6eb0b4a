"""Write a network as one C++ program."""
