"""What happened, for people: trainings as tables of text and as pictures."""
