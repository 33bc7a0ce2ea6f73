"""The emulated cluster: nodes of this machine, shaped links, and compute that sleeps."""
