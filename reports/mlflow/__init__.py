"""The view of the archive in MLflow: what a run holds, how it is synchronized, the UI."""
