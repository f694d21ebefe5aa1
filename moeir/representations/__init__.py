"""What an expert says about a text: its similarity and its file format. Dense, Sparse, MultiVector, ExactMatch."""
