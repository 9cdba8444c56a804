"""Where passes run."""
