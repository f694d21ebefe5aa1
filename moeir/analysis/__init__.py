"""Analyses of experts: overlap, attribution, router usage, divergence, projection, training metrics and FLOPs."""
