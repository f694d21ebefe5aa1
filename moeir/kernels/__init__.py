"""Tensor operations worth a fast form: packed attention, the maximum over the vocabulary, late interaction."""
