"""The loss terms, each in a file named after its settings key. Dimension letters: see ``cse.model``."""
