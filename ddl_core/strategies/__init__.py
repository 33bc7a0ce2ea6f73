"""How ranks work together: one file per framework."""
