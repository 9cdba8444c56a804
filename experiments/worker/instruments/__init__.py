"""Instruments: what looks at a case while it runs."""
