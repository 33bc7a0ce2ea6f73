"""What a rank is and does whatever it computes with: no torch, no other library of that kind."""
