"""Reports for people: an HTML page of runs and queries, training curves as text, and plots."""
