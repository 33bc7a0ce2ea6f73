"""A cluster in a box: nodes of this machine, joined by links of a given rate."""
