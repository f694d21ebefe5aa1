"""Documents that a run has found, scored again: by cross-encoders, by an architecture's own experts, by several together."""
