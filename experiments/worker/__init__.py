"""The worker process: it reads a spec and writes an observation. Imports only the standard library and torch."""
