"""Programs: parts of the sweep command, and the commands that make starts."""
