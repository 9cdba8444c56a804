"""Evidence reports from records, and what the records say about published claims."""
