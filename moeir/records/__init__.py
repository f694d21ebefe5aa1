"""Readers and writers of records, one per line of text: texts, judgements, runs, examples. Loads without torch."""
