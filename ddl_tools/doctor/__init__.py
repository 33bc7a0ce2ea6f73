"""What stands in the way of a run: checks that cost nothing, and a judge of what ranks found."""
