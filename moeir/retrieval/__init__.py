"""Search: indexes with the checkpoint that encodes queries, explanations, an interactive session, and latency."""
