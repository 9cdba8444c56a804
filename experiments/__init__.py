"""What is run, and running it: scenarios, the worker that runs one, and the parent that watches it."""
