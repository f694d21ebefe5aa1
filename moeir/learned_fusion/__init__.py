"""Fusions that are found on judged queries: weights by trial, weights by gradient, and weights that each query has for itself."""
