"""Fair measurement of data-parallel training: one loop, one clock, one record."""

__version__ = "0.1.0"
