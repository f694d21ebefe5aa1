"""Fusion of runs: formulas, and weights learned on judged queries by search, by gradient, or with a gate for each query."""
