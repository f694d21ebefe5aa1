"""Operations worth a fast form: packed attention, the maximum over the vocabulary, late interaction, and compiled loops over rows."""
