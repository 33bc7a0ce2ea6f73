"""Measure what is installed here, and say how to train: `ddl recommend`."""
