"""The cage: what this system offers to confine a stranger's code, and how a process confines itself with it."""
