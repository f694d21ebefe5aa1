"""Runs and judgements become numbers. Loads without torch."""
