"""Reports for people: an HTML page of runs and queries, and training curves as text."""
