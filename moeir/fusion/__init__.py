"""Fusion of runs: formulas, and weights learned on judged queries by search, by gradient, or with a gate for each query."""

FUSED = "fused"  # the name of the run that merges those of the experts, beside theirs
