"""Layer 5: which schedule a program gets: the sketches that match it, and a pick among their points."""
