"""One line of text is one record: texts, judgements, ranked lists, examples. Loads without torch."""
