"""Evaluation of runs against judgements: measures, significance tests, result tables. Loads without torch."""
