"""Where batches come from: one file per data path."""
