"""Claims and advice: how evidence decides them, and what the two notes claimed."""
