"""What it shows: evidence reports from records, and what they say about published claims."""
