"""Prints one case as a script to paste, after running it."""
