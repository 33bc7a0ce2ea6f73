"""What the ranks of a probe measure: their place, the data path, and what lies between them."""
