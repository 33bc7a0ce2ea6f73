"""Make, list and verify image folders; no torch."""
