"""`make gpu`: what only a GPU can show. Start at `__main__`."""
