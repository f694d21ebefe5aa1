"""loss = mean over queries of Σ share · loss, plus Σ strength · penalty; batches, the loop, and what is needed to continue it."""
