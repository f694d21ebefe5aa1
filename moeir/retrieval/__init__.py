"""Search for people: indexes opened with the checkpoint that reads queries, several as one, what was found explained and timed."""
