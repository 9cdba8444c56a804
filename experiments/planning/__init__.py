"""Turn configuration and catalogue into a plan: the specs of a sweep."""
