"""Run each spec in its own process and build its record. Portable: the standard library and Python 3.9."""
