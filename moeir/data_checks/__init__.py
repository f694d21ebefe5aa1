"""Checks of data files: every fault with its line, and copies without duplicates and wrong encodings."""
