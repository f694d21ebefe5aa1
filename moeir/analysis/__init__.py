"""Analyses of experts: overlap, wins, competition, router usage, training metrics and FLOPs."""
