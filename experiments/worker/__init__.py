"""The fresh process: a spec in, an observation out. Imports only the standard library and torch."""
