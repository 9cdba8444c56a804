"""Instruments that observe a case while it runs."""
