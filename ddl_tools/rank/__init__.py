"""One rank of a run with any framework: worker, record, energy, profile and turns."""
