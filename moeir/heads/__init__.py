"""States of the last layer → one representation: pooled (dense), lexical (sparse), tokenwise (one vector a token),
exact_match (with its term), projected (dense of another width)."""
