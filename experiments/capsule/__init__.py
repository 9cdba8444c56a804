"""The capsule: one file that runs scenarios anywhere with torch and compares the results. Portable."""
