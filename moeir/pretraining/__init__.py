"""Pre-training without labels: spans and their contexts, masks, batches, and objectives."""
