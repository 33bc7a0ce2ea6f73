"""What is kept of a run: files, written whole and read strictly, in which all others meet."""
