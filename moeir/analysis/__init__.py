"""Analyses of experts: overlap, wins, competition, router usage and training metrics."""
