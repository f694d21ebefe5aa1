"""Analyses of experts: overlap, attribution, router usage, projection, training metrics and FLOPs."""
