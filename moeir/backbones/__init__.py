"""A pre-trained encoder, packed: tokens in, one state for each token out."""
