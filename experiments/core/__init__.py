"""Records and their comparison. Portable: only the standard library, Python 3.9, and no input or output."""
