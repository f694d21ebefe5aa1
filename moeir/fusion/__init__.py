"""Fusion of runs: formulas, and weights found on judged queries by search or by gradient."""

FUSED = "fused"  # the name of the run that merges those of the experts, beside theirs
