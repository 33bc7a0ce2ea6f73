"""Which images a rank reads, in which order, and which part of each."""
