"""One question a file: its points, a table, and the figure drawn from them alone."""
