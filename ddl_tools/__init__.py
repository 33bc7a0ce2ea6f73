"""Everything around a run: start, watch and record it, compare it with others, draw figures."""
