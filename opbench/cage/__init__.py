"""The cage: a process confines itself, so that untrusted kernels cannot read files, use the network or run on."""
