"""Analyses of experts: overlap, attribution, router usage, projection and training metrics."""
