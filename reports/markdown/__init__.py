"""The report as markdown: elements, the page of a sweep, the page of settings."""
