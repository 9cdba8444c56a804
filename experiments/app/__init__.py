"""The programs of the lab: parts of the sweep command, and what make starts."""
