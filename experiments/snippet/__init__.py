"""Print one case as a self-contained script, after checking it."""
