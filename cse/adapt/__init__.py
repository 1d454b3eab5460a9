"""``cse adapt``: from a user's own text to a better embedding, and proof, within a time budget."""
