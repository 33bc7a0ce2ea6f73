"""What all figures share: their look, their canvas, their captions."""
