"""Training: sampling, objectives (mean over queries of Σ share · loss, plus Σ weight · regularizer), the trainer, and the resume state."""
