"""What happens inside a rank: one loop, one clock, and the rules that every run is held to."""
