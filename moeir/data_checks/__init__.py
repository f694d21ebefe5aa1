"""Checks of data files: every fault with its line, and repaired copies."""
