"""The bundle, a zip of records and of what they rest on: its format, written and read. Portable."""
