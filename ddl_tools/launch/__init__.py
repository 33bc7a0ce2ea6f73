"""One run started, watched and ended, here or as a job; many runs one after the other."""
