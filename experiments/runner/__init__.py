"""Runs each spec in a process of its own and composes its record. Portable: the standard library and Python 3.9."""
