"""Representations of texts by kind, each with its similarity and its file format: Dense, Sparse, MultiVector, ExactMatch."""
