"""Search: indexes with the checkpoint that encodes queries, explanations, and latency."""
