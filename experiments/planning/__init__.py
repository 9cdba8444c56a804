"""From configuration and catalogue to a plan: the specs of a sweep."""
