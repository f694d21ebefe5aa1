"""States of the last layer → one representation: pooling (dense), lexical (sparse), token_vectors (one vector per token),
classification (one score per pair)."""
