"""Texts to a loss without labels: spans and their contexts, masks, batches, and the objectives that learn from them."""
