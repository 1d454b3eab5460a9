"""The training loop, its resumable state and its observers. Dimension letters: see ``cse.model``."""
