"""Faults in real runs: what is done (`kinds`), to what (`world`), how often (`__main__`)."""
